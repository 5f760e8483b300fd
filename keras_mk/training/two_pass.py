"""A training step that takes the gradient twice."""

import importlib
from contextlib import AbstractContextManager
from contextlib import nullcontext
from typing import Any

import keras

from keras_mk.training.around import AroundModel

_MODULES = {
    "tensorflow": "keras_mk.training._tensorflow",
    "jax": "keras_mk.training._jax",
    "torch": "keras_mk.training._torch",
}


class _NoStep:
    """On backends that do not train."""


_Step: Any = _NoStep
if keras.config.backend() in _MODULES:
    _Step = importlib.import_module(
        _MODULES[keras.config.backend()]
    ).TwoPassStep


class TwoPassModel(_Step, AroundModel):
    """A model around another, which `fit` trains with two gradients a step.

    The first gradient is taken where the weights are, and says where and how
    to take the second (`second_point`, `second_pass`), which is what the
    optimizer is given, with the weights where they were. Random layers draw
    the same in both passes, and what a forward pass changes besides (the
    moving statistics of `BatchNormalization`, seeds, metrics) changes once a
    step, as the second pass has it.

    A model that is frozen takes Keras's own step, which trains nothing.

    Loss scaling, clipping and the accumulation of gradients are the
    optimizer's, and work as without the wrapper.

    Args:
        model: The `keras.Model` to train. It is trained in place.
        **kwargs: As `keras.Model`.
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.built = model.built

    def first_pass(self) -> AbstractContextManager[Any]:
        """What the first forward pass runs in."""
        return nullcontext()

    def second_point(
        self, values: list[Any], gradients: list[Any]
    ) -> list[Any]:
        """Where to take the second gradient.

        Args:
            values: The trainable weights.
            gradients: Their first gradients, not scaled, `None` where the
                loss has none.

        Returns:
            As many weights; `values` itself to leave them where they are.
        """
        return values

    def second_pass(self, gradients: list[Any]) -> AbstractContextManager[Any]:
        """What the second forward pass runs in, given the first gradients."""
        return nullcontext()

    def build(self, input_shape: Any) -> None:
        if not self.model.built:
            self.model.build(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.model(inputs, training=training)
