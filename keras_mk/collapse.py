"""A model with majority kernels made plain again."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_mk import _keras_internals as internals
from keras_mk import composite
from keras_mk.copy_model import copy_model
from keras_mk.copy_model import has_majority
from keras_mk.validation import check_model

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3}


def collapse(model: keras.Model, verify: Any = None) -> keras.Model:
    """Returns the plain model: each kernel is the average of its copies.

    The result is made of stock layers only and has the names, the config and
    the order of weights of the plain architecture; it loads where `keras_mk`
    is not installed. The model that is given is never changed. The result is
    not compiled.

    Args:
        model: A model with majority-kernel layers.
        verify: A batch of inputs, as the model is called with. If given, the
            outputs of both models on it are compared; infinite ones, as in
            masked logits, must be the same in both.

    Raises:
        ValueError: If the model has no majority-kernel layer, `verify` is no
            batch, or the outputs differ by more than the dtype's rounding
            explains.

    Example:

    >>> import keras, keras_mk
    >>> model = keras.Sequential(
    ...     [keras.Input((8,)), keras_mk.layers.MKDense(4)]
    ... )
    >>> plain = keras_mk.collapse(model)
    >>> type(plain.layers[0]).__name__, plain.count_params()
    ('Dense', 36)
    """
    check_majority(model)
    if verify is True:
        raise ValueError(
            "`verify` must be a batch of inputs on which to compare. "
            "`keras_mk.export_collapsed` makes one up. Received: verify=True"
        )
    plain = copy_model(model)
    composite.make_plain(plain)
    # Once more, so that what is returned was made by Keras alone.
    plain = copy_model(plain)
    if verify is not None and verify is not False:
        _verify(model, plain, verify)
    return plain


def check_majority(model: Any) -> None:
    """Raises unless the model has a majority-kernel layer."""
    check_model(model)
    if not has_majority(model):
        raise ValueError(
            f"Model '{model.name}' has no majority-kernel layer: it is plain "
            "already. `keras_mk.expand(model)` makes one that has."
        )
    if not model.built:
        raise ValueError(
            f"Model '{model.name}' is not built, so that it has no kernels to "
            "average. Call it on a batch, or `model.build(input_shape)`, first."
        )


def largest_difference(ours: Any, theirs: Any) -> float:
    """Largest difference between two structures of outputs."""
    pairs = zip(
        keras.tree.flatten(ours), keras.tree.flatten(theirs), strict=True
    )
    return largest(difference(_wide(a), _wide(b)) for a, b in pairs)


def difference(ours: Any, theirs: Any) -> Any:
    """The difference of two arrays; none between equal infinities."""
    with np.errstate(invalid="ignore"):
        return np.where(ours == theirs, 0.0, ours - theirs)


def largest_finite(arrays: Iterable[Any]) -> float:
    """Largest absolute value in some arrays, of those that are finite."""
    return largest(np.where(np.isfinite(x), x, 0.0) for x in arrays)


def largest(arrays: Iterable[Any]) -> float:
    """Largest absolute value in some arrays; NaN if there is one.

    Python's `max` would lose the NaN.
    """
    return float(np.max([np.abs(x).max(initial=0) for x in arrays]))


def _wide(x: Any) -> Any:
    return keras.ops.convert_to_numpy(x).astype("float64")


def _verify(model: keras.Model, plain: keras.Model, batch: Any) -> None:
    ours, theirs = plain(batch, training=False), model(batch, training=False)
    values = [_wide(x) for x in keras.tree.flatten(theirs)]
    check_comparable(model, values)
    gap = largest_difference(ours, theirs)
    size = largest_finite(values)
    tolerance = tolerance_of(model) * max(1.0, size)
    if not gap <= tolerance:
        raise ValueError(
            "The collapsed model differs from the inference of the model it "
            f"was made of by {gap:.2e} at most, where {tolerance:.2e} "
            "is allowed for its dtypes."
        )


def check_comparable(model: keras.Model, values: Iterable[Any]) -> None:
    """Raises if the outputs of a model are such that they equal nothing."""
    if any(np.isnan(x).any() for x in values):
        raise ValueError(
            f"Model '{model.name}' gives NaN on the inputs of `verify`, so "
            "that nothing can be compared with it. Pass other inputs, or "
            "train it again."
        )


def tolerance_of(model: keras.Model) -> float:
    """What rounding explains: as much as the shortest dtype in the model."""
    dtypes = {layer.compute_dtype for layer in internals.flatten_layers(model)}
    return max(TOLERANCE.get(dtype, 2e-2) for dtype in dtypes)
