"""A plain model made into one with majority kernels."""

import random
from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk import composite
from keras_mk import convert
from keras_mk import registry
from keras_mk.choose import choose
from keras_mk.copy_model import copy_model
from keras_mk.initial_copies import check_copies
from keras_mk.initial_copies import initial_values
from keras_mk.initial_copies import start_equal
from keras_mk.initial_copies import warn_of_equal
from keras_mk.mixing import hashing
from keras_mk.validation import check_seed
from keras_mk.walk import walk


def expand(
    model: keras.Model,
    expansion: int = 3,
    *,
    copies: str = "replicate",
    include: Any = None,
    exclude: Any = None,
    seed: int | None = None,
    scale: float | None = None,
) -> keras.Model:
    """Returns a copy of a model whose kernels are majority kernels.

    Every `Dense`, `EinsumDense` and convolution, however deep in the model, is
    the majority-kernel layer of the same name in the result. The model that
    is given is never changed. The result is not compiled.

    It is saved and loaded like any other model, in a process that has imported
    `keras_mk`.

    Args:
        model: A built model, pretrained or not.
        expansion: Number of copies of each kernel.
        copies: What the copies start as. `"replicate"`: the kernel they are
            copies of, so that the result computes what the model did; the way
            for pretrained models. `"independent"`: each drawn anew by the
            layer's initializer, for training from scratch. `"perturb"`: the
            kernel plus noise that has mean zero over the copies.
        include: Convert only these layers: a layer class, a regular
            expression that is searched for in the layer's path, a function
            `layer -> bool`, or a list of them. `keras_mk.plan` shows paths.
            What fits a layer that holds others, and none of these that can be
            converted, speaks for all of them: a class of attention layers
            means their projections. Where it fits some of these, each of them
            is asked by itself. The model itself is not asked.
        exclude: Do not convert these, likewise.
        seed: Seed from which the layers' seeds are derived.
        scale: With `"perturb"`, and only there, the noise's standard deviation
            relative to that of the kernel. Defaults to 0.1.

    Returns:
        A new model of the same class.

    Raises:
        ValueError: If an argument is wrong, the model is not built, has
            majority kernels already, has nothing to convert, or cannot be
            copied because Keras cannot save and load it.

    Warns:
        UserWarning: If copies that should differ are equal: those of an
            initializer that always gives the same values, or of a kernel of
            zeros that is perturbed.

    Example:

    >>> import keras, keras_mk
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    >>> expanded = keras_mk.expand(model, expansion=3)
    >>> expanded.count_params(), keras_mk.collapse(expanded).count_params()
    (100, 36)
    """
    check_seed(seed)
    check_copies(copies, scale)
    found, reasons = choose(model, expansion, include, exclude)
    paths = {
        f.key: f.path
        for f, reason in zip(found, reasons, strict=True)
        if not reason
    }
    if not paths:
        raise ValueError(
            f"Model '{model.name}' has no layer to convert. "
            "`print(keras_mk.plan(model))` shows why."
        )
    seed = random.randrange(2**31) if seed is None else seed
    result = copy_model(model)
    places = {f.key: f for f in walk(result)}
    hiding = composite.hiding_parents(result, set(paths))
    equal = []
    for key, path in paths.items():
        layer = places[key].layer
        mk_class = registry.mk_class_of(layer)
        assert mk_class is not None
        layer_seed = hashing.derive_seed(seed, key)
        values = initial_values(
            layer, mk_class, expansion, layer_seed, copies, scale
        )
        convert.to_majority(layer, mk_class, expansion, layer_seed, values)
        if copies != "replicate" and start_equal(layer):
            equal.append(path)
    for parent in hiding:
        composite.become(composite.Expanded, parent)
    internals.refresh_tracking(result)
    if equal:
        warn_of_equal(equal, copies)
    return result
