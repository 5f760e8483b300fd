"""A model around another."""

from typing import Any
from typing import ClassVar

import keras


class AroundModel(keras.Model):
    """Holds a model as `model`, and saves and revives it with itself.

    The model is given what this one is given: nothing is cast before.

    Args:
        model: The `keras.Model` to train. It is trained in place.
        **kwargs: As `keras.Model`.
    """

    # Whether a call of it says how copies are mixed.
    chooses_mixtures: ClassVar[bool] = False

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        check_trained_as_usual("model", model, type(self).__name__)
        super().__init__(**{"autocast": False, **kwargs})
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


def check_trained_as_usual(name: str, model: Any, wrapper: str) -> None:
    """Raises if it is no model, or one whose own training would not run."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`{name}` must be a `keras.Model`. Received: {name}={model!r}"
        )
    for method in ("train_step", "compute_loss"):
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise ValueError(
                f"`{name}` must be trained by Keras's own `{method}`: that of "
                f"class '{type(model).__name__}' would never run inside of "
                f"`{wrapper}`. Give it the model without. "
                f"Received: model '{model.name}'"
            )


def innermost(model: Any) -> Any:
    """The model that is trained, without what has been put around it."""
    while isinstance(model, AroundModel):
        model = model.model
    return model
