"""Random bits from (seed, counter, index), the same on every backend.

A counter-based generator has no state to carry: the bits of element `i` are a
function of the seed, the step and `i` alone. So the backward pass can draw
them again instead of storing them, a shard of a kernel draws its own part, and
TensorFlow, JAX, torch and numpy agree to the last bit.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B9


@dataclass(frozen=True)
class Words:
    """How a backend computes with unsigned 32-bit words.

    `shift_right` is its logical right shift, `constant` makes a word of a
    Python integer, and `wrap` reduces a number to a word where the type does
    not wrap around by itself.
    """

    shift_right: Callable[[Any, int], Any]
    constant: Callable[[int], Any] = np.uint32
    wrap: Callable[[Any], Any] = lambda x: x

    def multiply(self, x: Any, factor: int) -> Any:
        return self.wrap(x * self.constant(factor))

    def add(self, x: Any, y: Any) -> Any:
        return self.wrap(x + y)

    def xor_shift(self, x: Any, bits: int) -> Any:
        return x ^ self.shift_right(x, bits)

    def mix(self, x: Any) -> Any:
        """A bijection that spreads every input bit over the output."""
        x = self.multiply(self.xor_shift(x, 16), 0x7FEB352D)
        x = self.multiply(self.xor_shift(x, 15), 0x846CA68B)
        return self.xor_shift(x, 16)

    def keys(self, seed: Any, counter: Any, block: Any) -> tuple[Any, Any]:
        """The two words that select a stream.

        For one seed, no two (counter, block) pairs share both words, and
        neither do two (seed, counter) pairs of one block.

        Args:
            seed: First word of the seed state.
            counter: Second word of the seed state, one higher at each step.
            block: Which run of 2**32 indices the elements belong to. An
                element has 32 bits of index within its block, so that kernels
                of more than 2**32 elements, or more than one word per
                element, have room.
        """
        key0 = self.mix(self.add(self.mix(seed), counter))
        key0 = self.mix(self.add(key0, block))
        key1 = self.mix(self.add(key0 ^ self.constant(GOLDEN), seed))
        key1 = self.mix(self.add(key1, block))
        return key0, key1

    def hash(self, index: Any, key0: Any, key1: Any) -> Any:
        """The random word of each index: two and a half rounds of mixing."""
        x = self.add(index, key0)
        x = self.multiply(self.xor_shift(x, 17), 0xED5AD4BB) ^ key1
        x = self.multiply(self.xor_shift(x, 11), 0xAC4C1B51)
        x = self.multiply(self.xor_shift(x, 15), 0x31848BAB)
        return self.xor_shift(x, 14)


python_words = Words(
    shift_right=lambda x, bits: x >> bits,
    constant=int,
    wrap=lambda x: x & MASK,
)


def split_axes(shape: tuple[int, ...]) -> int:
    """How many leading axes of a kernel number its blocks.

    The remaining axes hold at most 2**32 elements and number the index within
    a block. It is 0 for every kernel of at most 2**32 elements.
    """
    axis = 0
    while math.prod(shape[axis:]) > MASK + 1:
        axis += 1
    return axis


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Distance in C order between neighbours along each axis."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def derive_seed(seed: int, label: str) -> int:
    """A seed of its own for a named part, below 2**31 for signed backends."""
    word = seed & MASK
    for byte in label.encode():
        word = python_words.mix(python_words.add(word, byte + 1))
    return int(word >> 1)
