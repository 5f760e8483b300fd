"""Uniform points on the simplex from sorted uniform numbers.

`e - 1` independent uniform numbers cut the unit interval into `e` pieces whose
lengths are Dirichlet(1, ..., 1): the same law as `e` normalised exponentials
(the paper's equation for p), without a logarithm or a division. Cuts are 16-bit
integers until the end, so that every step is exact in float32: the pieces are
never negative, sum to exactly one, and do not depend on how a backend rounds.
"""

from collections.abc import Callable
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

RESOLUTION = 1 << 16


def words_per_element(expansion: int) -> int:
    """Random 32-bit words needed per element: two cuts come out of each."""
    return expansion // 2


def sorting_network(size: int) -> tuple[tuple[int, int], ...]:
    """Batcher's odd-even merge sort as a list of (low, high) comparators."""
    pairs = []
    p = 1
    while p < size:
        k = p
        while k >= 1:
            for j in range(k % p, size - k, 2 * k):
                for i in range(min(k, size - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return tuple(pairs)


def sort(
    values: Sequence[Any],
    minimum: Callable[[Any, Any], Any],
    maximum: Callable[[Any, Any], Any],
) -> list[Any]:
    """Sorts arrays elementwise with comparators, which a compiler can fuse."""
    values = list(values)
    for i, j in sorting_network(len(values)):
        low, high = minimum(values[i], values[j]), maximum(values[i], values[j])
        values[i], values[j] = low, high
    return values


def to_unit(integer: Any) -> Any:
    """A 16-bit integer, already as floating point, to the open unit interval.

    Exact in float32: the result is an odd multiple of 2**-17.
    """
    return integer * (1 / RESOLUTION) + 0.5 / RESOLUTION


def pieces(cuts: Sequence[Any]) -> tuple[Any, ...]:
    """The mixing weights p: lengths of the pieces between sorted cuts."""
    inner = (right - left for left, right in pairwise(cuts))
    return (cuts[0], *inner, 1 - cuts[-1])


def mixture_from_cuts(kernels: Sequence[Any], cuts: Sequence[Any]) -> Any:
    """`sum(kernels[k] * p[k])`, summed by parts.

    Written this way, copies that are equal mix to exactly their own value.
    """
    mixed = kernels[-1]
    for left, right, cut in zip(kernels, kernels[1:], cuts):
        mixed = mixed + (left - right) * cut
    return mixed


def weighted_sum(kernels: Sequence[Any], p: Sequence[Any]) -> Any:
    """`sum(kernels[k] * p[k])` for mixing weights that are given."""
    terms = [w * q for w, q in zip(kernels, p, strict=True)]
    return sum(terms[1:], terms[0])


def mean(kernels: Sequence[Any]) -> Any:
    """The average, exact for copies that are equal.

    The sum is written out: a reduction over a stacked axis of copies costs
    several times as much.
    """
    first, *others = kernels
    if not others:
        return first
    total = others[0] - first
    for other in others[1:]:
        total = total + (other - first)
    return first + total / len(kernels)
