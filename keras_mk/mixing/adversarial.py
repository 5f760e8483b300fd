"""Mixing weights that raise the loss: the paper's adversarial p.

With all mixing weights at `1 / e`, the gradient of the loss in the mixing
weight `p[k]` is `g * kernels[k]`, where `g` is its gradient in the mixture.
The paper moves p along it, normalises, and in Adv-MK blends the result with
random mixing weights, the more so the less it was moved.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

Weights = list[Any]

PER = ("element", "unit")


def adversarial_weights(
    kernels: Sequence[Any], gradient: Any, epsilon: float, per: str = "element"
) -> Weights:
    """`Normalize(1 / e + epsilon * dL/dp)`.

    Args:
        kernels: The copies.
        gradient: Gradient of the loss in the mixture of them.
        epsilon: How far to move.
        per: `"element"`: each element of a kernel has mixing weights of its
            own, as in the paper's equation for the mixture. `"unit"`: all
            elements of an output unit (the last axis) share theirs, as its
            algorithm writes them.

    Returns:
        The mixing weights of each copy; `"unit"` gives them a shape that
        broadcasts to the kernel's.
    """
    slopes = [gradient * kernel for kernel in kernels]
    if per == "unit":
        inputs = list(range(len(gradient.shape) - 1))
        slopes = [ops.sum(slope, inputs, keepdims=True) for slope in slopes]
    return normalize([1 / len(kernels) + epsilon * slope for slope in slopes])


def normalize(p: Weights) -> Weights:
    """Cuts negative entries off, and divides by the sum.

    Where nothing is positive the weights are uniform.

    >>> import numpy as np
    >>> [float(q) for q in normalize([np.float32(1), np.float32(-1)])]
    [1.0, 0.0]
    """
    kept = [ops.maximum(q, 0) for q in p]
    total = sum(kept[1:], kept[0])
    positive = total > 0
    divisor = ops.where(positive, total, ops.ones_like(total))
    uniform = ops.full_like(total, 1 / len(p))
    return [ops.where(positive, q / divisor, uniform) for q in kept]


def relative_divergence(p: Weights) -> Any:
    """`KL(p, 1 / e) / log e`: 0 for uniform weights, 1 for a single copy.

    >>> import numpy as np
    >>> float(relative_divergence([np.float32(1), np.float32(0)]))
    1.0
    """
    expansion = len(p)
    terms = [
        # 0 log 0 is 0.
        q * ops.log(ops.where(q > 0, q * expansion, ops.ones_like(q)))
        for q in p
    ]
    return sum(terms[1:], terms[0]) / math.log(expansion)


def blend(p: Weights, drawn: Weights) -> Weights:
    """`u * p + (1 - u) * drawn`, with u the relative divergence of p."""
    u = relative_divergence(p)
    return [u * q + (1 - u) * r for q, r in zip(p, drawn)]
