"""What of a model is frozen, layer by layer and variable by variable.

Setting `layer.trainable` sets all that is below it, so the flags of a model
are told, and set, each by itself.
"""

from typing import Any

from keras_mk import _keras_internals as internals

Layers = dict[str, Any]


def flags_of(layers: Layers) -> dict[str, Any]:
    """The flags of layers that are given by key, as JSON.

    The layers that are frozen, and the variables that are not as their layer
    is.
    """
    return {
        "frozen": [k for k, layer in layers.items() if not layer.trainable],
        "exceptions": [
            [key, i]
            for key, layer in layers.items()
            for i, variable in enumerate(internals.trainables(layer))
            if variable.trainable != layer.trainable
        ],
    }


def set_flags(layers: Layers, flags: dict[str, Any]) -> None:
    """Sets the flags of layers as `flags_of` told them."""
    frozen = set(flags["frozen"])
    # Older files have none.
    exceptions = {(key, i) for key, i in flags.get("exceptions", ())}
    for key, layer in layers.items():
        internals.set_trainable(layer, key not in frozen)
        for i, variable in enumerate(internals.trainables(layer)):
            variable.trainable = (key in frozen) == ((key, i) in exceptions)


def thawed(config: Any) -> Any:
    """A layer's config with all that is in it trainable.

    On TensorFlow, what is made frozen may never be trained again; so what is
    revived is frozen afterwards.
    """
    if isinstance(config, list):
        return [thawed(item) for item in config]
    if not isinstance(config, dict):
        return config
    items = {key: thawed(value) for key, value in config.items()}
    if {"name", "trainable"} <= set(items) and items["trainable"] is False:
        items["trainable"] = True
    return items
