"""Weights of the plain architecture put into an expanded model."""

import os
from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk.collapse import collapse
from keras_mk.layers.majority_kernel import MajorityKernel
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
    for f in walk(mk_model):
        _assign(f.layer, sources[f.key])


def _assign(layer: Any, plain: Any) -> None:
    values = [
        keras.ops.convert_to_numpy(v) for v in internals.own_variables(plain)
    ]
    if isinstance(layer, MajorityKernel):
        kernels = [getattr(layer, f"{name}s") for name in layer.kernel_names]
        copies = {id(v) for group in kernels for v in group}
        for group, value in zip(kernels, values):
            for variable in group:
                variable.assign(value)
        values = values[len(kernels) :]
    else:
        copies = set()
    others = [v for v in internals.own_variables(layer) if id(v) not in copies]
    for variable, value in zip(others, values, strict=True):
        variable.assign(value)
