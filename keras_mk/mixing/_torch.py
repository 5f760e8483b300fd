"""Mixing on torch.

Compiled and on accelerators, the mixture is written as on the other backends.
On the CPU in eager mode nothing fuses and fresh memory costs more than the
arithmetic, so there the same steps work in place on a few buffers that are
kept, one chunk of a kernel after the other. With `KERAS_MK_TORCH_COMPILE=1` the
mixture and its gradient are compiled by themselves there, whatever the model
around them: several times faster, after a compilation that takes a minute and
needs a C++ compiler.

torch has few operations on unsigned words: int32 holds the same bits, and a
mask after each arithmetic shift makes it logical.
"""

import math
import os
from collections.abc import Callable
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from keras_mk.mixing import hashing
from keras_mk.mixing import simplex
from keras_mk.mixing._torch_chunks import cuts_by_chunk
from keras_mk.mixing._torch_chunks import signed

Kernels = tuple[torch.Tensor, ...]
Shape = tuple[int, ...]

COMPILE = os.environ.get("KERAS_MK_TORCH_COMPILE", "0") == "1"


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (32 - bits)) - 1)


_words = hashing.Words(_shift_right, constant=signed)


def _as_state(state: Any) -> torch.Tensor:
    return torch.as_tensor(state).to(torch.int64) & hashing.MASK


def random_bits(
    state: Any, shape: Shape, word: int = 0, words: int = 1
) -> torch.Tensor:
    """The words as int32 of the same bits, as torch has no unsigned ones."""
    state = _as_state(state)
    axis = hashing.split_axes(shape)
    block: Any = word
    if axis:
        rows = torch.arange(math.prod(shape[:axis]), device=state.device)
        block = (rows[:, None] * words + word) & hashing.MASK
    keys = hashing.python_words.keys(state[0], state[1], block)
    size = math.prod(shape[axis:])
    index = signed(torch.arange(size, device=state.device))
    bits: torch.Tensor = _words.hash(index, *map(signed, keys))
    return bits.reshape(shape)


def _random_cuts(
    state: torch.Tensor, expansion: int, shape: Shape, dtype: torch.dtype
) -> list[torch.Tensor]:
    words = simplex.words_per_element(expansion)
    halves: list[torch.Tensor] = []
    for word in range(words):
        bits = random_bits(state, shape, word, words)
        halves += [bits & 0xFFFF, _shift_right(bits, 16)]
    integers = halves[: expansion - 1]
    cuts = simplex.sort(integers, torch.minimum, torch.maximum)
    return [simplex.to_unit(cut.to(dtype)) for cut in cuts]


def mixing_weights(
    state: Any, expansion: int, shape: Shape, dtype: Any = torch.float32
) -> Kernels:
    state = _as_state(state)
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    if expansion == 1:
        return (torch.ones(shape, dtype=dtype, device=state.device),)
    return simplex.pieces(_random_cuts(state, expansion, shape, dtype))


def mixture(kernels: Sequence[Any], p: Sequence[Any]) -> torch.Tensor:
    return simplex.weighted_sum(kernels, p)


def _mixing_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _fused_mix(
    state: torch.Tensor, kernels: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The mixture as one expression, for a compiler to fuse."""
    dtype, shape = kernels[0].dtype, tuple(kernels[0].shape)
    wide = _mixing_dtype(dtype)
    cuts = _random_cuts(state, len(kernels), shape, wide)
    mixed = simplex.mixture_from_cuts([w.to(wide) for w in kernels], cuts)
    return mixed.to(dtype)


def _fused_spread(
    state: torch.Tensor, expansion: int, gradient: torch.Tensor
) -> Kernels:
    wide = _mixing_dtype(gradient.dtype)
    p = mixing_weights(state, expansion, tuple(gradient.shape), wide)
    return tuple((gradient * q).to(gradient.dtype) for q in p)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled for flat kernels of any size."""
    return torch.compile(function, dynamic=True)


def _on_eager_cpu(state: torch.Tensor, like: torch.Tensor) -> bool:
    return (
        state.device.type == "cpu"
        and like.device.type == "cpu"
        and like.dtype == torch.float32
        and not hashing.split_axes(tuple(like.shape))
        and not torch.compiler.is_compiling()
    )


def _mix(state: torch.Tensor, kernels: Sequence[torch.Tensor]) -> torch.Tensor:
    first = kernels[0]
    if not _on_eager_cpu(state, first):
        return _fused_mix(state, kernels)
    flat = [w.reshape(-1) for w in kernels]
    if COMPILE:
        return _compiled(_fused_mix)(state, flat).view(first.shape)
    mixed = torch.empty(first.shape, dtype=first.dtype, device="cpu")
    out = mixed.view(-1)
    chunks = cuts_by_chunk(state, len(kernels), out.numel())
    for part, cuts, scratch in chunks:
        term = flat[-1][part]
        for left, right, cut in zip(flat, flat[1:], cuts):
            torch.sub(left[part], right[part], out=scratch)
            term = torch.addcmul(term, scratch, cut, out=out[part])
    return mixed


def _spread(
    state: torch.Tensor, expansion: int, gradient: torch.Tensor
) -> Kernels:
    """The adjoint of `_mix`: `gradient * p[k]` for each copy."""
    if not _on_eager_cpu(state, gradient):
        return _fused_spread(state, expansion, gradient)
    shape = tuple(gradient.shape)
    flat = gradient.reshape(-1)
    if COMPILE:
        found = _compiled(_fused_spread)(state, expansion, flat)
        return tuple(share.view(shape) for share in found)
    shares = [
        torch.empty(shape, dtype=gradient.dtype, device="cpu")
        for _ in range(expansion)
    ]
    outs = [share.view(-1) for share in shares]
    chunks = cuts_by_chunk(state, expansion, flat.numel())
    for part, cuts, scratch in chunks:
        torch.mul(flat[part], cuts[0], out=outs[0][part])
        for left, right, out in zip(cuts, cuts[1:], outs[1:]):
            torch.sub(right, left, out=scratch)
            torch.mul(flat[part], scratch, out=out[part])
        torch.mul(flat[part], cuts[-1].neg_().add_(1), out=outs[-1][part])
    return tuple(shares)


class _Mixture(torch.autograd.Function):
    """Mixes; keeps nothing but the state for the backward pass."""

    @staticmethod
    def forward(ctx: Any, state: torch.Tensor, *kernels: Any) -> torch.Tensor:
        ctx.state, ctx.expansion = state, len(kernels)
        return _mix(state, kernels)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, *_Spread.apply(ctx.state, ctx.expansion, gradient)


class _Spread(torch.autograd.Function):
    """Adjoint of the mixture, so each is the other's gradient."""

    @staticmethod
    def forward(
        ctx: Any, state: torch.Tensor, expansion: int, gradient: torch.Tensor
    ) -> Kernels:
        ctx.state = state
        return _spread(state, expansion, gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, _Mixture.apply(ctx.state, *gradients)


def sampled_mixture(kernels: Sequence[torch.Tensor], state: Any) -> Any:
    if len(kernels) == 1:
        return kernels[0]
    return _Mixture.apply(_as_state(state), *kernels)


class _Watched(torch.autograd.Function):
    """The identity, but calls back when a gradient passes through it."""

    @staticmethod
    def forward(
        ctx: Any, kernel: torch.Tensor, on_gradient: Callable[[], None]
    ) -> torch.Tensor:
        ctx.on_gradient = on_gradient
        return kernel.view_as(kernel)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.on_gradient()
        return gradient, None


def mean(
    kernels: Sequence[torch.Tensor],
    on_gradient: Callable[[], None] | None = None,
) -> torch.Tensor:
    dtype = kernels[0].dtype
    wide = [w.to(_mixing_dtype(dtype)) for w in kernels]
    average = simplex.mean(wide).to(dtype)
    if on_gradient is not None:
        average = _Watched.apply(average, on_gradient)
    return average
