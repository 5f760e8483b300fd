"""Layers and models whose config hides the layers inside of them.

A KerasHub backbone, a subclassed model or an attention layer is saved as its
constructor's arguments, which know nothing of copies. Such a composite gets a
class of its own that is saved as the plain composite and a recipe: which
layers in it to convert, and how. Loading makes the plain one and follows it.
"""

from functools import cache
from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk import convert
from keras_mk import registry
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.walk import walk


@keras.saving.register_keras_serializable(package="keras_mk")
class Expanded:
    """Mixin of a composite with majority-kernel layers inside."""

    def get_config(self) -> dict[str, Any]:
        found = walk(self)
        return {
            "plain": vars(self)["_plain_config"],
            "recipe": {
                f.key: {
                    "expansion": f.layer.expansion,
                    "seed": f.layer.seed,
                }
                for f in found
                if isinstance(f.layer, MajorityKernel)
            },
            "frozen": [f.key for f in found if not f.layer.trainable],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        plain = keras.saving.deserialize_keras_object(config["plain"])
        found = {f.key: f.layer for f in walk(plain)}
        for key, item in config["recipe"].items():
            layer = found[key]
            mk_class = registry.mk_class_of(layer)
            if mk_class is None:
                raise ValueError(
                    f"'{type(layer).__name__}' at '{key}' was converted when "
                    "the model was saved, and cannot be now. Name its class "
                    "with `keras_mk.register` before loading."
                )
            values = convert.replicas(item["expansion"])
            convert.to_majority(
                layer, mk_class, item["expansion"], item["seed"], values
            )
        for key in config["frozen"]:
            found[key].trainable = False
        become_expanded(plain, config["plain"])
        internals.refresh_tracking(plain)
        return plain


def become_expanded(layer: Any, plain_config: dict[str, Any]) -> None:
    """Gives a composite the class that saves it with a recipe."""
    base: Any = type(layer)
    internals.change_class(layer, _expanded_class(base))
    # Not by attribute: Keras would wrap the dict to track what is in it.
    vars(layer)["_plain_config"] = plain_config


def become_plain(layer: Any) -> None:
    """Gives an expanded composite its own class back."""
    internals.change_class(layer, plain_type(layer))
    vars(layer).pop("_plain_config")


def plain_type(layer: Any) -> type:
    """The class of a layer, or of the composite it expands."""
    cls = type(layer)
    return cls.__bases__[1] if issubclass(cls, Expanded) else cls


@cache
def _expanded_class(base: type) -> type:
    # The base's name: Keras names the groups in a weights file by it.
    cls = type(base.__name__, (Expanded, base), {"__module__": base.__module__})
    internals.register_alias(cls, "keras_mk>Expanded")
    return cls
