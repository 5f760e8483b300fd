"""A copy of a model."""

from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk import composite
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.state import Unlike
from keras_mk.state import give_state
from keras_mk.trainability import thawed


def copy_model(model: keras.Model) -> keras.Model:
    """Makes a model anew from its config, and gives it the state of the other.

    Not by `clone_model`, which enters only Sequential and Functional models,
    nor with `get_weights`, which leaves vocabularies behind. The copy is not
    compiled. A KerasHub task shares its preprocessor with its copy. The global
    random state stays where it was.
    """
    classes = custom_classes(model)
    try:
        with internals.preserved_random_state():
            with internals.sharing_objects():
                config = internals.config_as(model, type(model))
            config.pop("compile_config", None)
            with internals.sharing_objects():
                copy = keras.saving.deserialize_keras_object(
                    _naming_modules(thawed(config), classes),
                    custom_objects=_by_name(classes),
                    safe_mode=False,
                )
            internals.uncompile(copy)
            if not has_majority(model):
                # Its constructor may have made copies.
                for parent in composite.kept_plain(copy):
                    composite.become(composite.Collapsed, parent)
            give_state(model, copy)
    except (OSError, Unlike):
        raise
    except Exception as error:
        raise ValueError(
            f"Model '{model.name}' cannot be copied, because Keras cannot "
            "save it and load it again. Its own classes need `get_config` "
            "(and `from_config`), its own functions "
            "`keras.saving.register_keras_serializable`. Keras says: "
            f"{error}"
        ) from error
    internals.share_preprocessor(model, copy)
    return copy


def has_majority(model: Any) -> bool:
    return any(
        isinstance(layer, MajorityKernel)
        for layer in internals.flatten_layers(model)
    )


def custom_classes(model: keras.Model) -> list[type]:
    """The classes in a model that Keras cannot find by itself.

    Those of this package count, as long as a model has them.
    """
    classes = {
        composite.plain_type(layer) for layer in internals.flatten_layers(model)
    }
    return [
        cls
        for cls in classes
        if not cls.__module__.startswith(("keras.", "keras_hub."))
    ]


def _by_name(classes: list[type]) -> dict[str, type]:
    """Each class by a name that no other has, and by its own as well."""
    names: dict[str, type] = {cls.__name__: cls for cls in classes}
    for cls in classes:
        other = names.setdefault(f"{cls.__module__}>{cls.__name__}", cls)
        if other is not cls:
            raise ValueError(
                f"it has layers of two classes that are both called "
                f"'{cls.__module__}.{cls.__name__}'. Rename one of them."
            )
    return names


def _naming_modules(config: Any, classes: list[type]) -> Any:
    """A config in which unregistered classes are named with their modules.

    By their name alone, two of one name would be taken for one.
    """
    names = {(cls.__module__, cls.__name__) for cls in classes}

    def renamed(config: Any) -> Any:
        if isinstance(config, list):
            return [renamed(item) for item in config]
        if not isinstance(config, dict):
            return config
        items = {key: renamed(value) for key, value in config.items()}
        module, name = items.get("module"), items.get("class_name")
        if items.get("registered_name") == name and (module, name) in names:
            items["registered_name"] = f"{module}>{name}"
        return items

    return renamed(config)
