"""A plain model made into one with majority kernels."""

import random
from typing import Any

import keras
import numpy as np

from keras_mk import _keras_internals as internals
from keras_mk import composite
from keras_mk import convert
from keras_mk import registry
from keras_mk.choose import choose
from keras_mk.copy_model import copy_model
from keras_mk.mixing import hashing
from keras_mk.validation import check_seed
from keras_mk.walk import walk

COPIES = ("replicate", "independent", "perturb")


def expand(
    model: keras.Model,
    expansion: int = 3,
    *,
    copies: str = "replicate",
    include: Any = None,
    exclude: Any = None,
    seed: int | None = None,
    scale: float = 0.1,
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
        exclude: Do not convert these, likewise.
        seed: Seed from which the layers' seeds are derived.
        scale: With `"perturb"`, the noise's standard deviation relative to
            that of the kernel.

    Returns:
        A new model of the same class.

    Raises:
        ValueError: If an argument is wrong, the model is not built, has
            majority kernels already, has nothing to convert, or cannot be
            copied because Keras cannot save and load it.

    Example:

    >>> import keras, keras_mk
    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    >>> expanded = keras_mk.expand(model, expansion=3)
    >>> expanded.count_params(), keras_mk.collapse(expanded).count_params()
    (100, 36)
    """
    check_seed(seed)
    if copies not in COPIES:
        raise ValueError(
            f"`copies` must be one of {COPIES}. Received: copies={copies!r}"
        )
    if not isinstance(scale, (int, float)) or not scale > 0:
        raise ValueError(
            f"`scale` must be a positive number. Received: scale={scale!r}"
        )
    found, reasons = choose(model, expansion, include, exclude)
    keys = [
        f.key for f, reason in zip(found, reasons, strict=True) if not reason
    ]
    if not keys:
        raise ValueError(
            f"Model '{model.name}' has no layer to convert. "
            "`print(keras_mk.plan(model))` shows why."
        )
    seed = random.randrange(2**31) if seed is None else seed
    result = copy_model(model)
    places = {f.key: f for f in walk(result)}
    hiding = composite.hiding_parents(result, set(keys))
    for key in keys:
        layer = places[key].layer
        mk_class = registry.mk_class_of(layer)
        assert mk_class is not None
        layer_seed = hashing.derive_seed(seed, key)
        values = _values(layer, mk_class, expansion, layer_seed, copies, scale)
        convert.to_majority(layer, mk_class, expansion, layer_seed, values)
    for parent in hiding:
        composite.become(composite.Expanded, parent)
    internals.refresh_tracking(result)
    return result


def _values(
    layer: Any,
    mk_class: Any,
    expansion: int,
    seed: int,
    copies: str,
    scale: float,
) -> convert.Values:
    """The values of the copies of a layer's kernels, as `copies` says."""
    if copies == "replicate":
        return convert.replicas(expansion)
    if copies == "independent":
        config = {**layer.get_config(), "expansion": expansion, "seed": seed}
        fresh = mk_class.from_config(config)
        fresh.build_from_config(layer.get_build_config())
        return lambda name, kernel: [
            keras.ops.convert_to_numpy(w) for w in getattr(fresh, f"{name}s")
        ]

    def perturbed(name: str, kernel: Any) -> list[Any]:
        generator = np.random.default_rng([seed, *name.encode()])
        noise = generator.normal(size=(expansion, *kernel.shape))
        noise -= noise.mean(axis=0)
        wide = kernel.astype("float64")
        noise *= scale * wide.std()
        return [(wide + n).astype(kernel.dtype) for n in noise]

    return perturbed
