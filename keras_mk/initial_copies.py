"""What the copies of the kernels of an expanded model start as."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_mk import convert
from keras_mk.layers.majority_kernel import MajorityKernel

COPIES = ("replicate", "independent", "perturb")
SCALE = 0.1

_WHY_EQUAL = {
    "independent": (
        "the layer's initializer gives the same values at each call. Give it "
        "one that draws anew"
    ),
    "perturb": (
        "the noise is measured by the kernel's standard deviation, and that is "
        "0, or too small for the noise to change a value. Give the kernel "
        "values first"
    ),
}


def check_copies(copies: Any, scale: Any) -> None:
    """Raises unless `copies` and `scale` are such as `expand` takes."""
    if copies not in COPIES:
        raise ValueError(
            f"`copies` must be one of {COPIES}. Received: copies={copies!r}"
        )
    if scale is None:
        return
    if (
        not isinstance(scale, (int, float, np.floating))
        or isinstance(scale, bool)
        or not 0 < scale < math.inf
    ):
        raise ValueError(
            "`scale` must be a positive, finite number. "
            f"Received: scale={scale!r}"
        )
    if copies != "perturb":
        raise ValueError(
            '`scale` is the size of the noise with `copies="perturb"`, and '
            "there is none otherwise. Leave one of them out. "
            f"Received: copies={copies!r}, scale={scale!r}"
        )


def initial_values(
    layer: Any,
    mk_class: type[MajorityKernel],
    expansion: int,
    seed: int,
    copies: str,
    scale: float | None,
) -> convert.Values:
    """The values of the copies of a layer's kernels, as `copies` says."""
    if copies == "replicate":
        return convert.replicas(expansion)
    if copies == "independent":
        config = {**layer.get_config(), "expansion": expansion, "seed": seed}
        fresh: Any = mk_class.from_config(config)
        fresh.build_from_config(layer.get_build_config())
        return lambda name, kernel: [
            keras.ops.convert_to_numpy(w) for w in getattr(fresh, f"{name}s")
        ]
    width = SCALE if scale is None else scale

    def perturbed(name: str, kernel: Any) -> list[Any]:
        values = _perturbed(kernel, expansion, [seed, *name.encode()], width)
        if not all(np.isfinite(v.astype("float64")).all() for v in values):
            raise ValueError(
                f"The copies of the {name} of layer '{layer.name}' would be "
                "not finite: it is not finite itself, or the noise is too "
                f"large for its dtype. Received: dtype={kernel.dtype}, "
                f"scale={width!r}"
            )
        return values

    return perturbed


def _perturbed(
    kernel: Any, expansion: int, seed: Sequence[int], scale: float
) -> list[Any]:
    """The kernel plus noise that has mean zero over the copies."""
    noise = np.random.default_rng(seed).normal(size=(expansion, *kernel.shape))
    noise -= noise.mean(axis=0)
    wide = kernel.astype("float64")
    # The caller looks for what is not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        noise *= scale * wide.std()
        return [(wide + n).astype(kernel.dtype) for n in noise]


def start_equal(layer: MajorityKernel) -> bool:
    """Whether the copies of one of a layer's kernels are all the same."""
    if layer.expansion == 1:
        return False
    for name in layer.kernel_names:
        first, *others = (
            keras.ops.convert_to_numpy(w) for w in getattr(layer, f"{name}s")
        )
        if all(np.array_equal(first, other) for other in others):
            return True
    return False


def warn_of_equal(paths: list[str], copies: str) -> None:
    """Says of which layers the copies are equal though they should not be."""
    why = _WHY_EQUAL[copies]
    warnings.warn(
        f'In spite of `copies="{copies}"`, the copies in these layers start '
        f'equal, as with `copies="replicate"`: {paths}, because {why}, or '
        "leave it so: copies that are equal part in training.",
        stacklevel=3,
    )
