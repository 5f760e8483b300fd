"""Mixing on JAX."""

from collections.abc import Callable
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from keras_mk.mixing import hashing
from keras_mk.mixing import simplex

Kernels = tuple[jax.Array, ...]

_words = hashing.Words(lambda x, bits: x >> np.uint32(bits))


def _flat_index(shape: tuple[int, ...], start: int, stop: int) -> jax.Array:
    """C-order index over the axes `start:stop`; a shard computes its own."""
    index = jnp.zeros(shape, "uint32")
    for axis, stride in enumerate(hashing.strides(shape[start:stop]), start):
        iota = jax.lax.broadcasted_iota("uint32", shape, axis)
        index = index + iota * np.uint32(stride)
    return index


def random_bits(
    state: jax.Array, shape: tuple[int, ...], word: int = 0, words: int = 1
) -> jax.Array:
    seed, counter = jnp.asarray(state).astype("uint32")
    axis = hashing.split_axes(shape)
    block: Any = np.uint32(word)
    if axis:
        block = _flat_index(shape, 0, axis) * np.uint32(words) + block
    keys = _words.keys(seed, counter, block)
    bits: jax.Array = _words.hash(_flat_index(shape, axis, len(shape)), *keys)
    return bits


def _random_cuts(
    state: jax.Array, expansion: int, shape: tuple[int, ...], dtype: Any
) -> list[jax.Array]:
    words = simplex.words_per_element(expansion)
    halves: list[jax.Array] = []
    for word in range(words):
        bits = random_bits(state, shape, word, words)
        halves += [bits & np.uint32(0xFFFF), bits >> np.uint32(16)]
    integers = [half.astype("int32") for half in halves[: expansion - 1]]
    cuts = simplex.sort(integers, jnp.minimum, jnp.maximum)
    return [simplex.to_unit(cut.astype(dtype)) for cut in cuts]


def mixing_weights(
    state: jax.Array,
    expansion: int,
    shape: tuple[int, ...],
    dtype: Any = "float32",
) -> Kernels:
    if expansion == 1:
        return (jnp.ones(shape, dtype),)
    return simplex.pieces(_random_cuts(state, expansion, shape, dtype))


def mixture(kernels: Sequence[Any], p: Sequence[Any]) -> jax.Array:
    return simplex.weighted_sum(kernels, p)


def _mixing_dtype(dtype: Any) -> Any:
    return jnp.promote_types(dtype, "float32")


@jax.custom_vjp
def _sampled_mixture(kernels: Kernels, state: jax.Array) -> jax.Array:
    dtype = kernels[0].dtype
    wide = _mixing_dtype(dtype)
    cuts = _random_cuts(state, len(kernels), kernels[0].shape, wide)
    kernels = tuple(w.astype(wide) for w in kernels)
    return simplex.mixture_from_cuts(kernels, cuts).astype(dtype)


def _forward(kernels: Kernels, state: jax.Array) -> tuple[jax.Array, Any]:
    # The empty tuple's length carries the number of copies.
    return _sampled_mixture(kernels, state), (state, (None,) * len(kernels))


def _backward(residuals: Any, gradient: jax.Array) -> tuple[Kernels, None]:
    state, copies = residuals
    # Without the barrier XLA would keep p from the forward pass.
    state = jax.lax.optimization_barrier(state)
    wide = _mixing_dtype(gradient.dtype)
    p = mixing_weights(state, len(copies), gradient.shape, wide)
    return tuple((gradient * q).astype(gradient.dtype) for q in p), None


_sampled_mixture.defvjp(_forward, _backward)


def sampled_mixture(kernels: Sequence[jax.Array], state: Any) -> jax.Array:
    if len(kernels) == 1:
        return kernels[0]
    return _sampled_mixture(tuple(kernels), state)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _watched_mean(
    kernels: Kernels, on_gradient: Callable[[], None]
) -> jax.Array:
    return mean(kernels)


def _mean_forward(
    kernels: Kernels, on_gradient: Callable[[], None]
) -> tuple[jax.Array, Any]:
    return mean(kernels), (None,) * len(kernels)


def _mean_backward(
    on_gradient: Callable[[], None], residuals: Any, gradient: jax.Array
) -> tuple[Kernels]:
    on_gradient()
    share = gradient / len(residuals)
    return ((share,) * len(residuals),)


_watched_mean.defvjp(_mean_forward, _mean_backward)


def mean(
    kernels: Sequence[jax.Array],
    on_gradient: Callable[[], None] | None = None,
) -> jax.Array:
    if on_gradient is not None:
        return _watched_mean(tuple(kernels), on_gradient)
    dtype = kernels[0].dtype
    wide = [w.astype(_mixing_dtype(dtype)) for w in kernels]
    return simplex.mean(wide).astype(dtype)
