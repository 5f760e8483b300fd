"""A model around another."""

from typing import Any

import keras


class AroundModel(keras.Model):
    """Holds a model as `model`, and saves and revives it with itself.

    Args:
        model: The `keras.Model` to train. It is trained in place.
        **kwargs: As `keras.Model`.
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        if not isinstance(model, keras.Model):
            raise TypeError(
                f"`model` must be a `keras.Model`. Received: model={model!r}"
            )
        super().__init__(**kwargs)
        self.model = model

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        return {**super().get_config(), "model": model}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "AroundModel":
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(**{**config, "model": model})
