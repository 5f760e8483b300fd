"""Weights of the plain architecture put into an expanded model."""

import os
from collections.abc import Iterator
from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk import convert
from keras_mk.collapse import collapse
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.walk import Found
from keras_mk.walk import walk


def load_plain_weights(mk_model: keras.Model, path: str | os.PathLike) -> None:  # type: ignore[type-arg]
    """Loads weights that the plain architecture saved, into every copy.

    Args:
        mk_model: A model with majority kernels, of `keras_mk.expand` or of
            majority-kernel layers. It is changed only if the whole file fits.
        path: A file that `plain_model.save_weights` or `plain_model.save` has
            written.

    Raises:
        ValueError: If the file does not fit the plain architecture.

    Example:

    >>> import keras, keras_mk, os, tempfile
    >>> plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    >>> model = keras_mk.expand(plain)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "plain.weights.h5")
    ...     plain.save_weights(path)
    ...     keras_mk.load_plain_weights(model, path)
    """
    plain = collapse(mk_model)
    plain.load_weights(path)
    sources = {f.key: f.layer for f in walk(plain)}
    values = [
        pair for f in walk(mk_model) for pair in _values(f, sources[f.key])
    ]
    for variable, value in values:
        if variable.shape != value.shape:
            raise ValueError(
                f"Variable '{variable.path}' has the shape {variable.shape}, "
                f"that of the plain layer {value.shape}. Nothing was loaded."
            )
    for variable, value in values:
        variable.assign(value)


def _values(found: Found, plain: Any) -> Iterator[tuple[Any, Any]]:
    """The variables of a layer, each with its value."""
    layer = found.layer
    converted = isinstance(layer, MajorityKernel) and layer.built
    names = layer.kernel_names if converted else ()
    groups = [getattr(layer, f"{name}s") for name in names]
    kernels = [convert.plain_kernel(plain, name) for name in names]
    for group, kernel in zip(groups, kernels):
        value = keras.ops.convert_to_numpy(kernel)
        yield from ((variable, value) for variable in group)
    copies = [variable for group in groups for variable in group]
    for variable, other in zip(
        _without(internals.own_variables(layer), copies),
        _without(internals.own_variables(plain), kernels),
        strict=True,
    ):
        yield variable, keras.ops.convert_to_numpy(other)


def _without(variables: list[Any], others: list[Any]) -> list[Any]:
    taken = {id(variable) for variable in others}
    return [variable for variable in variables if id(variable) not in taken]
