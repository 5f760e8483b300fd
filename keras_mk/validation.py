"""Checks of arguments that several parts of the package take."""

from typing import Any

import keras


def check_expansion(expansion: Any) -> None:
    """Raises unless `expansion`, the number of copies, is an integer >= 1."""
    if (
        not isinstance(expansion, int)
        or isinstance(expansion, bool)
        or expansion < 1
    ):
        raise ValueError(
            "`expansion` must be a positive integer, the number of copies of "
            f"each kernel. Received: expansion={expansion!r}"
        )


def check_seed(seed: Any) -> None:
    """Raises unless `seed` is `None` or an integer in `[0, 2**31)`."""
    if seed is None:
        return
    if (
        not isinstance(seed, int)
        or isinstance(seed, bool)
        or not 0 <= seed < 2**31
    ):
        raise ValueError(
            "`seed` must be `None` or an integer from 0 to 2**31 - 1. "
            f"Received: seed={seed!r}"
        )


def check_model(model: Any) -> None:
    """Raises unless `model` is a Keras model or layer."""
    if not isinstance(model, keras.layers.Layer):
        raise ValueError(
            f"`model` must be a Keras model. Received: {type(model).__name__}"
        )
