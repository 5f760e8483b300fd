"""The mathematics in numpy, as the paper writes it.

What the other backends are tested against, and what the numpy backend of Keras
runs. Nothing here is written for speed.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_mk.mixing import hashing
from keras_mk.mixing import simplex

Array = npt.NDArray[Any]

_words = hashing.Words(lambda x, bits: x >> np.uint32(bits))


def random_bits(
    state: Any, shape: tuple[int, ...], word: int = 0, words: int = 1
) -> Array:
    """Independent uniform 32-bit words, the `word`-th of `words` an element."""
    seed, counter = np.asarray(state, "int64").astype("uint32")[:, None]
    axis = hashing.split_axes(shape)
    row = np.arange(math.prod(shape[:axis]), dtype="uint32")[:, None]
    block = row * np.uint32(words) + np.uint32(word)
    index = np.arange(math.prod(shape[axis:]), dtype="uint32")
    keys = _words.keys(seed, counter, block)
    return np.asarray(_words.hash(index, *keys)).reshape(shape)


def mixing_weights(
    state: Any, expansion: int, shape: tuple[int, ...], dtype: str = "float32"
) -> tuple[Array, ...]:
    """p: normalised exponentials, uniform on the simplex in each element."""
    if expansion == 1:
        return (np.ones(shape, dtype),)
    words = simplex.words_per_element(expansion)
    halves: list[Array] = []
    for word in range(words):
        bits = random_bits(state, shape, word, words)
        halves += [bits & np.uint32(0xFFFF), bits >> np.uint32(16)]
    cuts = np.sort(halves[: expansion - 1], axis=0)
    return simplex.pieces(simplex.to_unit(cuts.astype(dtype)))


def mixture(kernels: Sequence[Any], p: Sequence[Any]) -> Array:
    """The paper's <w>_p: the sum over the copies of w_k * p_k."""
    return np.sum([w * q for w, q in zip(kernels, p, strict=True)], axis=0)


def mixture_gradient(gradient: Any, p: Sequence[Any]) -> list[Array]:
    """The gradient of the mixture with respect to each copy."""
    return [gradient * q for q in p]


def sampled_mixture(kernels: Sequence[Any], state: Any) -> Array:
    kernels = [np.asarray(w) for w in kernels]
    p = mixing_weights(state, len(kernels), kernels[0].shape)
    return mixture(kernels, p).astype(kernels[0].dtype)


def mean(
    kernels: Sequence[Any], on_gradient: Callable[[], None] | None = None
) -> Array:
    """The paper's <w>: p = 1/e in every element."""
    return np.asarray(simplex.mean([np.asarray(w) for w in kernels]))
