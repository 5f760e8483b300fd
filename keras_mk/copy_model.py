"""A copy of a model that shares nothing with it."""

from pathlib import Path
from tempfile import TemporaryDirectory

import keras

from keras_mk import _keras_internals as internals
from keras_mk.composite import plain_type


def copy_model(model: keras.Model) -> keras.Model:
    """Saves and loads a model, so that all of its state comes along.

    Not `clone_model`, which enters only Sequential and Functional models, nor
    `get_config` and `get_weights`, which leave vocabularies behind. The copy
    is not compiled.
    """
    custom_objects = {
        cls.__name__: cls
        for layer in internals.flatten_layers(model)
        for cls in [plain_type(layer)]
        if not cls.__module__.startswith(("keras.", "keras_hub."))
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
            copy = keras.saving.load_model(
                path,
                custom_objects=custom_objects,
                compile=False,
                safe_mode=False,
            )
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
    internals.uncompile(copy)
    return copy
