"""The training step with two gradients, on torch."""

from typing import Any

import keras
import torch

from keras_mk import _keras_internals as internals
from keras_mk.training.scaling import unscaled


class TwoPassStep:
    def train_step(self: Any, data: Any) -> Any:
        if not self.trainable_variables:
            return keras.Model.train_step(self, data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        weights = self.trainable_weights

        def one_pass() -> Any:
            self.zero_grad()
            y_pred = self(x, training=True)
            loss = internals.compute_loss(self, x, y, y_pred, sample_weight)
            scaled = self.optimizer.scale_loss(loss)
            scaled.backward()
            return loss, scaled, y_pred, [w.value.grad for w in weights]

        before = _values(self.non_trainable_variables)
        with self.first_pass():
            loss, scaled, _, gradients = one_pass()
        _assign(self.non_trainable_variables, before)
        with torch.no_grad():
            gradients = unscaled(gradients, loss, scaled)
            values = _values(weights)
            moved = self.second_point(values, gradients)
            if moved is not values:
                _assign(weights, moved)
        with self.second_pass(gradients):
            loss, _, y_pred, gradients = one_pass()
        if moved is not values:
            _assign(weights, values)
        internals.update_loss(self, loss, x)
        with torch.no_grad():
            self.optimizer.apply(gradients, weights)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _values(weights: list[Any]) -> list[Any]:
    return [w.value.detach().clone() for w in weights]


def _assign(weights: list[Any], values: list[Any]) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values):
            weight.value.copy_(value)
