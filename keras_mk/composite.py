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
from keras_mk import trainability
from keras_mk.layers import MKMultiHeadAttention
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.state import layers_by_key
from keras_mk.validation import check_expansion
from keras_mk.validation import check_seed
from keras_mk.walk import walk


class _Disguised:
    """Mixin of a composite that is saved as one of its own class, and more."""

    def get_config(self) -> dict[str, Any]:
        plain = internals.config_as(self, plain_type(self))
        return {"plain": plain, **trainability.flags_of(layers_by_key(self))}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        composite = keras.saving.deserialize_keras_object(
            trainability.thawed(config["plain"])
        )
        for layer in [composite, *cls.follow(composite, config)]:
            become(cls, layer)
        flags = {**config, "frozen": list(config["frozen"])}
        if not config["plain"]["config"].get("trainable", True):
            flags["frozen"].append("")
        trainability.set_flags(layers_by_key(composite), flags)
        internals.refresh_tracking(composite)
        return composite

    @classmethod
    def follow(cls, composite: Any, config: dict[str, Any]) -> list[Any]:
        """Does what the config says; returns the composites that hide it."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_mk")
class Expanded(_Disguised):
    """Mixin of a composite with majority-kernel layers inside."""

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "recipe": _recipe(self)}

    @classmethod
    def follow(cls, composite: Any, config: dict[str, Any]) -> list[Any]:
        recipe = config["recipe"]
        found = {f.key: f.layer for f in walk(composite)}
        # A composite may show some of its layers, which are converted already.
        shown = _recipe(composite)
        if any(recipe.get(key) != item for key, item in shown.items()):
            make_plain(composite)
        for key, item in recipe.items():
            layer = found.get(key)
            if isinstance(layer, MajorityKernel):
                continue
            expansion, seed = item["expansion"], item["seed"]
            check_expansion(expansion)
            check_seed(seed)
            mk_class = registry.mk_class_of(layer)
            if mk_class is None:
                raise ValueError(
                    f"{_described(layer)} at '{key}' was converted when "
                    "the model was saved, and cannot be now. If its class is "
                    "one of your own, name it with `keras_mk.register` before "
                    "loading; otherwise the model's class has changed since."
                )
            values = convert.replicas(expansion)
            convert.to_majority(layer, mk_class, expansion, seed, values)
        return hiding_parents(composite, set(recipe))


@keras.saving.register_keras_serializable(package="keras_mk")
class Collapsed(_Disguised):
    """Mixin of a plain composite whose constructor makes majority kernels."""

    @classmethod
    def follow(cls, composite: Any, config: dict[str, Any]) -> list[Any]:
        return kept_plain(composite)


def _recipe(composite: Any) -> dict[str, Any]:
    """How the layers of a composite that have copies are converted."""
    return {
        f.key: {"expansion": f.layer.expansion, "seed": f.layer.seed}
        for f in walk(composite)
        if isinstance(f.layer, MajorityKernel)
    }


def _described(layer: Any) -> str:
    return "No layer" if layer is None else f"'{type(layer).__name__}'"


def make_plain(model: Any) -> None:
    """Turns every layer of a model plain, in place."""
    places = list(layers_by_key(model).values())
    for layer in places:
        if isinstance(layer, MajorityKernel):
            convert.to_plain(layer, registry.plain_class_of(layer))
    for layer in places:
        if isinstance(layer, Expanded):
            internals.change_class(layer, plain_type(layer))
        if isinstance(layer, MKMultiHeadAttention):
            del layer.expansion
            internals.change_class(layer, keras.layers.MultiHeadAttention)
    internals.refresh_tracking(model)


def kept_plain(model: Any) -> list[Any]:
    """Turns plain what constructors have made; returns what hides it."""
    hiding = hiding_parents(model, set(_recipe(model)))
    hiding = [x for x in hiding if not isinstance(x, MKMultiHeadAttention)]
    make_plain(model)
    return hiding


def hiding_parents(model: Any, keys: set[str]) -> list[Any]:
    """The composites whose configs hide the layers of some keys.

    Also those inside of others: each is saved, and used, by itself as well.
    """
    hiding = {
        id(parent): parent
        for found in walk(model)
        if found.key in keys
        for parent in found.parents
        if not internals.shows_its_layers(parent)
    }
    return list(hiding.values())


def become(disguise: type, layer: Any) -> None:
    """Gives a composite the class that saves it with what is done to it."""
    internals.change_class(layer, _disguised_class(disguise, plain_type(layer)))


def plain_type(layer: Any) -> type:
    """The class of a layer, or of the composite that it disguises."""
    cls = type(layer)
    return cls.__bases__[1] if issubclass(cls, _Disguised) else cls


@cache
def _disguised_class(disguise: type, base: type) -> type:
    # The base's name: Keras names the groups in a weights file by it.
    cls = type(base.__name__, (disguise, base), {"__module__": base.__module__})
    internals.register_alias(cls, f"keras_mk>{disguise.__name__}")
    return cls
