"""A copy of a model."""

import keras

from keras_mk import _keras_internals as internals
from keras_mk.composite import plain_type


def copy_model(model: keras.Model) -> keras.Model:
    """Makes a model anew from its config, and gives it the state of the other.

    Not by `clone_model`, which enters only Sequential and Functional models,
    nor with `get_weights`, which leaves vocabularies behind. The copy is not
    compiled. A KerasHub task shares its preprocessor with its copy.
    """
    custom_objects = {cls.__name__: cls for cls in custom_classes(model)}
    try:
        config = keras.saving.serialize_keras_object(model)
        config.pop("compile_config", None)
        copy = keras.saving.deserialize_keras_object(
            config, custom_objects=custom_objects, safe_mode=False
        )
        internals.uncompile(copy)
        internals.transfer_state(model, copy)
    except OSError:
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


def custom_classes(model: keras.Model) -> list[type]:
    """The classes in a model that Keras cannot find by itself.

    Those of this package count, as long as a model has them.
    """
    classes = {plain_type(layer) for layer in internals.flatten_layers(model)}
    return [
        cls
        for cls in classes
        if not cls.__module__.startswith(("keras.", "keras_hub."))
    ]
