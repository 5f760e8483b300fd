"""A training step that takes the gradient twice."""

import importlib
from typing import Any

import keras

_MODULES = {
    "tensorflow": "keras_mk.training._tensorflow",
    "jax": "keras_mk.training._jax",
    "torch": "keras_mk.training._torch",
}

_backend = importlib.import_module(_MODULES[keras.config.backend()])


class TwoPassModel(_backend.TwoPassStep, keras.Model):  # type: ignore[name-defined, misc]
    """A model around another, which `fit` trains with two gradients a step.

    The first gradient is taken where the weights are, and says where to take
    the second (`second_point`), which is what the optimizer is given, at the
    weights where they were. Random layers draw the same in both passes, and
    what a forward pass changes besides (the moving statistics of
    `BatchNormalization`, seeds, metrics) changes once a step.

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
        self.built = model.built

    def second_point(self, values: list[Any], gradients: list[Any]) -> Any:
        """Where to take the second gradient.

        Args:
            values: The trainable weights.
            gradients: Their gradients, `None` where the loss has none.

        Returns:
            As many weights.
        """
        raise NotImplementedError

    def build(self, input_shape: Any) -> None:
        if not self.model.built:
            self.model.build(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.model(inputs, training=training)

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        return {**super().get_config(), "model": model}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "TwoPassModel":
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(**{**config, "model": model})
