"""`keras-mk bench growth`: the cost as copies, batch and layers grow.

The model behind it: a step of majority kernels moves more words of memory
than the plain step, and does nothing else that takes time. Per parameter,

- forward it reads e copies and writes the kernel that the layer uses;
- backward it reads the gradient of that kernel, as the plain step does, and
  reads and writes e copies, and e times each slot of the optimizer, where the
  plain step does so once.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_mk.bench import steps as training
from keras_mk.bench import timing
from keras_mk.bench import workloads

# What stands still while one of them grows.
FIXED = {"expansion": 3, "batch": 256, "width": 1024}
SWEEPS = {
    "expansion": (1, 2, 3, 4, 6, 8),
    "batch": (8, 32, 128, 256, 1024),
    "width": (64, 256, 1024, 4096),
}
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
WORD = 4


def words(expansion: int, slots: int) -> int:
    """Words per parameter that a step moves beyond those of the plain step.

    >>> words(expansion=3, slots=0)
    8
    >>> words(expansion=1, slots=2)
    0
    """
    if expansion == 1:
        return 0
    forward = expansion + 1
    update = 2 * (1 + slots)
    return forward + (expansion - 1) * update


def predicted_ratio(
    expansion: int,
    slots: int,
    parameters: int,
    plain_seconds: float,
    bandwidth: float,
) -> float:
    """Step time as a multiple of the plain one, from bytes and bandwidth."""
    moved = WORD * words(expansion, slots) * parameters
    return 1 + moved / bandwidth / plain_seconds


def measured_bandwidth(size: int, rounds: int = 9) -> float:
    """Bytes per second of adding one array to another, in place.

    Args:
        size: Bytes of each, so that caches hold as much of them as they would
            of kernels of that size.
        rounds: How often to measure.
    """
    add, finish = _adder(size // WORD)

    def run(steps: int) -> None:
        for _ in range(steps):
            add()
        finish()

    steps = max(3, 2**28 // size)
    seconds, _ = timing.interleave({"add": run}, rounds, steps, "bandwidth")
    return 3 * size / float(np.median(seconds["add"]))


def _adder(count: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What adds in place on this backend, and what waits until it is done."""
    x, y = np.zeros(count, "float32"), np.ones(count, "float32")
    backend = keras.config.backend()
    if backend == "jax":
        import jax

        step = jax.jit(lambda a, b: a + b, donate_argnums=0)
        held = [jax.device_put(x), jax.device_put(y)]

        def add() -> None:
            held[0] = step(*held)

        return add, lambda: jax.block_until_ready(held[0])
    if backend == "tensorflow":
        import tensorflow as tf

        variable, constant = tf.Variable(x), tf.constant(y)
        return lambda: variable.assign_add(constant), lambda: None
    import torch

    first, second = torch.from_numpy(x), torch.from_numpy(y)
    return lambda: first.add_(second), lambda: None


def points(
    sweeps: dict[str, tuple[int, ...]],
) -> Iterator[tuple[str, dict[str, int]]]:
    """Each sweep's name with each of its points."""
    for sweep, values in sweeps.items():
        for value in values:
            yield sweep, {**FIXED, sweep: value}


def measure(
    sweeps: dict[str, tuple[int, ...]],
    optimizer: str,
    dtype: str,
    jit: bool | str,
    rounds: int,
    steps: int,
) -> Iterator[list[dict[str, Any]]]:
    """Rows of square MLPs, with what the model of the cost predicts."""
    for sweep, point in points(sweeps):
        (workload,) = workloads.find("mlp", point["width"])
        setting = training.Setting(
            workload,
            point["batch"],
            point["expansion"],
            optimizer,
            dtype,
            jit,
            "step",
        )
        found = training.measure(
            setting, ["plain", "floor", "mk"], rounds, steps
        )
        parameters = workload.make().count_params()
        bandwidth = measured_bandwidth(WORD * point["expansion"] * parameters)
        predicted = predicted_ratio(
            point["expansion"],
            SLOTS[optimizer],
            parameters,
            found[0]["step_ms"] / 1e3,
            bandwidth,
        )
        for row in found:
            row |= {"sweep": sweep, "width": point["width"]}
            if row["variant"] == "mk":
                row["predicted"] = round(predicted, 3)
                row["bandwidth_gb_s"] = round(bandwidth / 1e9, 2)
        yield found
