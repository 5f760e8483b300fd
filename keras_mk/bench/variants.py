"""The networks that majority kernels are measured against."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_mk import mixing
from keras_mk.baselines.sam import SAM
from keras_mk.bench.workloads import Workload
from keras_mk.expand import expand
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.walk import walk

Kernels = dict[str, Any]


def mean_kernels(layer: Any, training: bool | None) -> Kernels:
    """The floor: the copies train through their average, nothing is drawn.

    What a layer with several times the parameters costs before sampling.
    """
    return {
        name: mixing.mean(layer._copy_values(name))
        for name in layer.kernel_names
    }


def _obvious(
    exponentials: Callable[..., Any], layer: Any, training: bool | None
) -> Kernels:
    """Majority kernels as the paper's equations, with `keras.random`."""
    if not training:
        return mean_kernels(layer, training)
    kernels = {}
    for name in layer.kernel_names:
        copies = ops.stack(layer._copy_values(name))
        drawn = exponentials(tuple(copies.shape), layer.mixing_seed_generator)
        p = drawn / ops.sum(drawn, axis=0)
        kernels[name] = ops.sum(copies * p, axis=0)
    return kernels


def _by_log_uniform(shape: tuple[int, ...], seed: Any) -> Any:
    return -ops.log(keras.random.uniform(shape, minval=1e-7, seed=seed))


def _by_gamma(shape: tuple[int, ...], seed: Any) -> Any:
    return keras.random.gamma(shape, alpha=1.0, seed=seed)


CHOICES: dict[str, Any] = {
    "floor": mean_kernels,
    "mk": None,
    "log(uniform)": partial(_obvious, _by_log_uniform),
    "gamma": partial(_obvious, _by_gamma),
}

NAMES = ("plain", *CHOICES, "dropout", "sam", "ensemble")


def make(name: str, workload: Workload, expansion: int) -> list[keras.Model]:
    """The models of a variant: one, or those of an ensemble."""
    if name == "ensemble":
        return [workload.make() for _ in range(expansion)]
    if name == "dropout":
        assert workload.make_dropout is not None
        return [workload.make_dropout()]
    plain = workload.make()
    if name == "plain":
        return [plain]
    if name == "sam":
        return [SAM(plain)]
    model = expand(plain, expansion)
    choose = CHOICES[name]
    if choose is not None:
        for found in walk(model):
            if isinstance(found.layer, MajorityKernel):
                chosen = partial(choose, found.layer)
                setattr(found.layer, "_choose_kernels", chosen)  # noqa: B010
    return [model]


def why_not(name: str, workload: Workload, jit: bool | str) -> str | None:
    """Why a variant cannot be measured, or `None`."""
    if name == "dropout" and workload.make_dropout is None:
        return "only the MLPs have a variant with dropout"
    compiled = keras.config.backend() == "tensorflow" and jit is not False
    if name == "gamma" and compiled:
        return "XLA in TensorFlow has no kernel for keras.random.gamma"
    return None
