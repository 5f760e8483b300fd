"""`keras-mk bench sampling`: one kernel's mixture and its gradient."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk import mixing
from keras_mk.bench import timing

WIDTHS = (64, 256, 1024, 4096)


def measure(
    expansion: int, widths: tuple[int, ...], rounds: int, steps: int
) -> list[dict[str, Any]]:
    """Square kernels: the average of the copies, and their mixture.

    The plain model's share is one kernel that is read and one gradient that
    is written, which is what `plain` does.
    """
    rows: list[dict[str, Any]] = []
    for width in widths:
        random = np.random.default_rng(0)
        copies = [
            ops.convert_to_tensor(
                random.normal(size=(width, width)).astype("float32")
            )
            for _ in range(expansion)
        ]
        state = keras.random.SeedGenerator(1).next()
        functions: dict[str, Callable[..., Any]] = {
            "plain": lambda *kernels: kernels[0] * 1.5,
            "floor": lambda *kernels: mixing.mean(list(kernels)),
            "mk": lambda *kernels, state=state: mixing.sampled_mixture(
                list(kernels), state
            ),
        }
        runs = {
            name: _repeated(_with_gradient(function), copies)
            for name, function in functions.items()
        }
        seconds, first = timing.interleave(
            runs, rounds, steps, f"{width} x {width}"
        )
        rows += [
            {
                "backend": keras.config.backend(),
                "workload": f"kernel {width} x {width}",
                "expansion": expansion,
                **row,
            }
            for row in timing.rows(seconds, first)
        ]
    return rows


def _repeated(step: Callable[..., Any], copies: list[Any]) -> Any:
    def run(steps: int) -> None:
        for _ in range(steps):
            result = step(*copies)
        if keras.config.backend() == "jax":
            import jax

            jax.block_until_ready(result)

    return run


def _with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The value and the gradient of a function of kernels, compiled."""
    backend = keras.config.backend()
    if backend == "jax":
        import jax

        def jax_step(*kernels: Any) -> Any:
            value, pullback = jax.vjp(function, *kernels)
            return value, pullback(value)

        return jax.jit(jax_step)
    if backend == "tensorflow":
        import tensorflow as tf

        def tf_step(*kernels: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(kernels)
                value = function(*kernels)
            return value, tape.gradient(value, kernels, value)

        return tf.function(tf_step)
    import torch

    def torch_step(*kernels: Any) -> Any:
        leaves = [k.detach().requires_grad_() for k in kernels]
        value = function(*leaves)
        used = leaves if value.grad_fn is not None else []
        gradients = torch.autograd.grad(
            value, used, value.detach(), allow_unused=True
        )
        return value, gradients

    return torch_step
