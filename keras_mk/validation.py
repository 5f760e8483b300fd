"""Checks of arguments that several parts of the package take."""

import math
from numbers import Integral
from numbers import Real
from typing import Any

import keras
import numpy as np


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


def check_number(
    name: str,
    value: Any,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> None:
    """Raises unless the value is a finite number within the bounds."""
    if (
        isinstance(value, Real)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and at_least <= float(value) <= at_most
        and float(value) > above
    ):
        return
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (
            ("at least", at_least),
            ("above", above),
            ("at most", at_most),
        )
        if math.isfinite(bound)
    ]
    expected = ", ".join(["a finite number", *bounds])
    raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}")


def check_count(name: str, value: Any, at_least: int = 1) -> None:
    """Raises unless the value is an integer that is large enough."""
    if (
        not isinstance(value, Integral)
        or isinstance(value, bool)
        or value < at_least
    ):
        raise ValueError(
            f"`{name}` must be an integer, at least {at_least}. "
            f"Received: {name}={value!r}"
        )


def check_flag(name: str, value: Any) -> None:
    """Raises unless the value is `True` or `False`."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(
            f"`{name}` must be `True` or `False`. Received: {name}={value!r}"
        )


def check_models(name: str, models: Any) -> list[keras.Model]:
    """The models in a list of them. Raises if it is not one, or is empty."""
    # A dict would give its keys, a text its letters.
    given = (
        list(models)
        if not isinstance(models, (str, dict)) and hasattr(models, "__iter__")
        else []
    )
    if not given or not all(isinstance(m, keras.Model) for m in given):
        raise ValueError(
            f"`{name}` must be a list of one or more `keras.Model`s. "
            f"Received: {name}={models!r}"
        )
    return given
