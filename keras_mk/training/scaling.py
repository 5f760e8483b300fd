"""Gradients of a loss that an optimizer has scaled."""

from typing import Any

from keras import ops


def unscaled(gradients: list[Any], loss: Any, scaled: Any) -> list[Any]:
    """The gradients of `loss`, from those of `scaled`, a multiple of it."""
    if scaled is loss:
        return gradients
    # The gradients of a loss of zero are zero, whatever the scale.
    scale = ops.where(loss == 0, ops.ones_like(loss), scaled / loss)
    return [
        None if g is None else g / ops.cast(scale, g.dtype) for g in gradients
    ]
