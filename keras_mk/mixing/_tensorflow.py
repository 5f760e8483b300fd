"""Mixing on TensorFlow.

The mixture and its gradient are each compiled into one fused loop, also where
the model around them is not compiled.
"""

from collections.abc import Callable
from collections.abc import Sequence
from functools import cache
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from keras_mk.mixing import hashing
from keras_mk.mixing import simplex

Kernels = tuple[tf.Tensor, ...]
Shape = tuple[int, ...]


def _shift_right(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, np.uint32(bits))


_words = hashing.Words(_shift_right)


@cache
def _compiled(function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
    """One compiled function per static arguments, so that none retraces.

    TensorFlow counts tracings by the code of a function, and would warn that
    functions made of one `lambda` retrace; a `partial` has none.
    """
    return tf.function(
        partial(function, *static), jit_compile=True, autograph=False
    )


def _flat_index(shape: Shape, start: int, stop: int) -> tf.Tensor:
    """C-order index over the axes `start:stop`, broadcastable to `shape`."""
    index = tf.zeros((1,) * len(shape), "uint32")
    for axis, stride in enumerate(hashing.strides(shape[start:stop]), start):
        along = [shape[axis] if i == axis else 1 for i in range(len(shape))]
        iota = tf.reshape(tf.range(shape[axis]), along)
        index = index + tf.cast(iota, "uint32") * np.uint32(stride)
    return index


def _random_bits(
    shape: Shape, word: int, words: int, state: tf.Tensor
) -> tf.Tensor:
    seed, counter = tf.unstack(tf.cast(state, "uint32"))
    axis = hashing.split_axes(shape)
    block: Any = np.uint32(word)
    if axis:
        block = _flat_index(shape, 0, axis) * np.uint32(words) + block
    keys = _words.keys(seed, counter, block)
    return _words.hash(_flat_index(shape, axis, len(shape)), *keys)


def random_bits(
    state: Any, shape: Shape, word: int = 0, words: int = 1
) -> tf.Tensor:
    draw = _compiled(_random_bits, tuple(shape), word, words)
    return draw(tf.convert_to_tensor(state))


def _random_cuts(
    expansion: int, shape: Shape, dtype: Any, state: tf.Tensor
) -> list[tf.Tensor]:
    words = simplex.words_per_element(expansion)
    halves: list[tf.Tensor] = []
    for word in range(words):
        bits = _random_bits(shape, word, words, state)
        halves += [bits & np.uint32(0xFFFF), _shift_right(bits, 16)]
    integers = [tf.cast(half, "int32") for half in halves[: expansion - 1]]
    cuts = simplex.sort(integers, tf.minimum, tf.maximum)
    return [simplex.to_unit(tf.cast(cut, dtype)) for cut in cuts]


def _mixing_weights(
    expansion: int, shape: Shape, dtype: Any, state: tf.Tensor
) -> Kernels:
    return simplex.pieces(_random_cuts(expansion, shape, dtype, state))


def mixing_weights(
    state: Any, expansion: int, shape: Shape, dtype: Any = "float32"
) -> Kernels:
    if expansion == 1:
        return (tf.ones(shape, dtype),)
    draw = _compiled(_mixing_weights, expansion, tuple(shape), dtype)
    return tuple(draw(tf.convert_to_tensor(state)))


def mixture(kernels: Sequence[Any], p: Sequence[Any]) -> tf.Tensor:
    return simplex.weighted_sum(kernels, p)


def _mixing_dtype(dtype: tf.DType) -> tf.DType:
    return dtype if dtype.size > 4 else tf.float32


def _mix(
    expansion: int,
    shape: Shape,
    dtype: tf.DType,
    state: tf.Tensor,
    *kernels: tf.Tensor,
) -> tf.Tensor:
    wide = _mixing_dtype(dtype)
    cuts = _random_cuts(expansion, shape, wide, state)
    kernels = tuple(tf.cast(w, wide) for w in kernels)
    return tf.cast(simplex.mixture_from_cuts(kernels, cuts), dtype)


def _mix_gradient(
    expansion: int,
    shape: Shape,
    dtype: tf.DType,
    state: tf.Tensor,
    gradient: tf.Tensor,
) -> Kernels:
    wide = _mixing_dtype(dtype)
    p = _mixing_weights(expansion, shape, wide, state)
    gradient = tf.cast(gradient, wide)
    return tuple(tf.cast(gradient * q, dtype) for q in p)


def sampled_mixture(kernels: Sequence[Any], state: Any) -> tf.Tensor:
    kernels = [tf.convert_to_tensor(w) for w in kernels]
    if len(kernels) == 1:
        return kernels[0]
    state = tf.convert_to_tensor(state)
    static = (len(kernels), tuple(kernels[0].shape), kernels[0].dtype)

    def gradient(upstream: tf.Tensor) -> Kernels:
        return tuple(_compiled(_mix_gradient, *static)(state, upstream))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def mix(*kernels: tf.Tensor) -> Any:
        return _compiled(_mix, *static)(state, *kernels), gradient

    return mix(*kernels)


def _mean(
    expansion: int, shape: Shape, dtype: tf.DType, *kernels: tf.Tensor
) -> tf.Tensor:
    wide = [tf.cast(w, _mixing_dtype(dtype)) for w in kernels]
    return tf.cast(simplex.mean(wide), dtype)


def mean(
    kernels: Sequence[Any], on_gradient: Callable[[], None] | None = None
) -> tf.Tensor:
    kernels = [tf.convert_to_tensor(w) for w in kernels]
    if len(kernels) == 1:
        return kernels[0]
    static = (len(kernels), tuple(kernels[0].shape), kernels[0].dtype)

    def gradient(upstream: tf.Tensor) -> Kernels:
        if on_gradient is not None:
            on_gradient()
        return (upstream / len(kernels),) * len(kernels)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def average(*kernels: tf.Tensor) -> Any:
        return _compiled(_mean, *static)(*kernels), gradient

    return average(*kernels)
