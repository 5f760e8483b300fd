"""Which majority-kernel layer stands for which plain layer."""

from typing import Any

import keras

from keras_mk import layers
from keras_mk.layers.majority_kernel import MajorityKernel

_MK_CLASSES: dict[type, type[MajorityKernel]] = {
    getattr(keras.layers, name.removeprefix("MK")): mk_class
    for name, mk_class in vars(layers).items()
    if name.startswith("MK") and issubclass(mk_class, MajorityKernel)
}


def register(layer_class: type, mk_class: type) -> None:
    """Lets `expand` and `collapse` convert a layer class of your own.

    Args:
        layer_class: A Keras layer class that makes its kernels by
            `self.add_weight(name=...)` in `build` and reads them as
            attributes of the same name, perhaps behind an underscore.
        mk_class: A class that inherits from `MajorityKernel` and
            `layer_class`, in this order, and names the kernels in
            `kernel_names`.

    Raises:
        ValueError: If the classes do not fit together.

    Example:

    >>> import keras, keras_mk
    >>> class Scaled(keras.layers.Dense):
    ...     def call(self, inputs):
    ...         return 2 * super().call(inputs)
    >>> class MKScaled(keras_mk.layers.MajorityKernel, Scaled):
    ...     pass
    >>> keras_mk.register(Scaled, MKScaled)
    """
    if not (isinstance(mk_class, type) and isinstance(layer_class, type)):
        raise ValueError(
            "`register` takes two classes. "
            f"Received: layer_class={layer_class!r}, mk_class={mk_class!r}"
        )
    if not issubclass(mk_class, MajorityKernel) or not issubclass(
        mk_class, layer_class
    ):
        raise ValueError(
            "`mk_class` must inherit from `keras_mk.layers.MajorityKernel` "
            "and from `layer_class`, in this order. "
            f"Received: layer_class={layer_class!r}, mk_class={mk_class!r}"
        )
    _MK_CLASSES[layer_class] = mk_class


def mk_class_of(layer: Any) -> type[MajorityKernel] | None:
    """The class a plain layer is converted to, or `None`."""
    return _MK_CLASSES.get(type(layer))


def plain_class_of(layer: Any) -> type:
    """The class a majority-kernel layer is converted back to."""
    for plain, mk_class in _MK_CLASSES.items():
        if mk_class is type(layer):
            return plain
    raise ValueError(
        f"Layer '{layer.name}' of class {type(layer).__name__} has no plain "
        "class. Name one with `keras_mk.register(LayerClass, MKClass)`."
    )
