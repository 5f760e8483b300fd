"""Sorted cuts on torch's CPU, chunk by chunk in buffers that are kept."""

import threading
from collections.abc import Iterator
from typing import Any

import torch

from keras_mk.mixing import hashing
from keras_mk.mixing import simplex

# Its buffers fit in the cache of the cores.
CHUNK = 1 << 18


def signed(word: Any) -> Any:
    """The int32 with the bits of a word held as an int or an int64 tensor."""
    signed = word - ((word >> 31) << 32)
    return signed.to(torch.int32) if torch.is_tensor(signed) else signed


class _Buffers(threading.local):
    """int32 buffers of one chunk each, kept from call to call."""

    def __init__(self) -> None:
        self.index = torch.empty(0, dtype=torch.int32)
        self.spare: list[torch.Tensor] = []

    @torch.inference_mode(False)
    def take(self, count: int, size: int) -> list[torch.Tensor]:
        if not self.index.numel():
            self.index = torch.arange(CHUNK, dtype=torch.int32, device="cpu")
        while len(self.spare) < count:
            self.spare.append(torch.empty_like(self.index))
        return [buffer[:size] for buffer in self.spare[:count]]


_buffers = _Buffers()


def _xor_shift_(x: torch.Tensor, bits: int, scratch: torch.Tensor) -> None:
    torch.bitwise_right_shift(x, bits, out=scratch)
    x.bitwise_xor_(scratch.bitwise_and_((1 << (32 - bits)) - 1))


def _hash_chunk_(
    x: torch.Tensor, scratch: torch.Tensor, start: int, key0: int, key1: int
) -> None:
    """`_words.hash` of the indices from `start` on, into `x`."""
    first = (key0 + start) & hashing.MASK
    torch.add(_buffers.index[: x.numel()], signed(first), out=x)
    _xor_shift_(x, 17, scratch)
    x.mul_(signed(0xED5AD4BB)).bitwise_xor_(signed(key1))
    _xor_shift_(x, 11, scratch)
    x.mul_(signed(0xAC4C1B51))
    _xor_shift_(x, 15, scratch)
    x.mul_(signed(0x31848BAB))
    _xor_shift_(x, 14, scratch)


def cuts_by_chunk(
    state: torch.Tensor, expansion: int, size: int
) -> Iterator[tuple[slice, list[torch.Tensor], torch.Tensor]]:
    """Yields a slice, its sorted cuts as float32, and a float32 scratch."""
    seed, counter = state.tolist()
    words = simplex.words_per_element(expansion)
    keys = [
        hashing.python_words.keys(seed, counter, word) for word in range(words)
    ]
    for start in range(0, size, CHUNK):
        stop = min(start + CHUNK, size)
        scratch, *halves = _buffers.take(2 * words + 1, stop - start)
        for (key0, key1), low, high in zip(keys, halves[::2], halves[1::2]):
            _hash_chunk_(low, scratch, start, key0, key1)
            torch.bitwise_right_shift(low, 16, out=high)
            high.bitwise_and_(0xFFFF)
            low.bitwise_and_(0xFFFF)
        cuts = halves[: expansion - 1]
        for i, j in simplex.sorting_network(len(cuts)):
            torch.minimum(cuts[i], cuts[j], out=scratch)
            torch.maximum(cuts[i], cuts[j], out=cuts[j])
            cuts[i], scratch = scratch, cuts[i]
        floats = []
        for cut in cuts:
            # An int32 buffer becomes the float32 buffer of the same memory.
            floats.append(cut.view(torch.float32).copy_(cut))
            floats[-1].add_(0.5).mul_(1 / simplex.RESOLUTION)
        yield slice(start, stop), floats, scratch.view(torch.float32)
