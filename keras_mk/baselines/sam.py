"""Sharpness-aware minimization."""

from typing import Any

import keras
from keras import ops

from keras_mk.training.two_pass import TwoPassModel
from keras_mk.validation import check_number


@keras.saving.register_keras_serializable(package="keras_mk")
class SAM(TwoPassModel):
    """Trains a model by sharpness-aware minimization.

    Each step takes the gradient `g` of the loss at the weights `w`, and then
    the one that the optimizer is given, at `w + rho * g / |g|`: the direction
    in which the loss grows fastest. So a step costs two.

    Reference: [Foret et al., 2021](https://arxiv.org/abs/2010.01412).

    Args:
        model: The `keras.Model` to train, by Keras's own `train_step`. It is
            trained in place.
        rho: How far to go: a finite number, at least 0. Defaults to 0.05, as
            in the paper.
        **kwargs: As `keras.Model`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_mk.baselines import SAM
    >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model = SAM(plain, rho=0.05)
    >>> model.compile("sgd", "mse")
    >>> history = model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    >>> tuple(plain.predict(np.ones((2, 3)), verbose=0).shape)
    (2, 1)
    """

    def __init__(
        self, model: keras.Model, rho: float = 0.05, **kwargs: Any
    ) -> None:
        check_number("rho", rho, at_least=0)
        super().__init__(model, **kwargs)
        self.rho = float(rho)

    def second_point(self, values: list[Any], gradients: list[Any]) -> Any:
        squares = [ops.sum(ops.square(g)) for g in gradients if g is not None]
        # A gradient of zero moves nothing.
        step = self.rho / ops.maximum(ops.sqrt(sum(squares)), 1e-12)
        return [
            w if g is None else w + ops.cast(step, g.dtype) * g
            for w, g in zip(values, gradients)
        ]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rho": self.rho}
