"""The training step with two gradients, on torch."""

from typing import Any

import keras
import torch

from keras_mk import _keras_internals as internals


class TwoPassStep:
    def train_step(self: Any, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        weights = self.trainable_weights

        def one_pass() -> Any:
            self.zero_grad()
            y_pred = self(x, training=True)
            loss = internals.compute_loss(self, x, y, y_pred, sample_weight)
            self.optimizer.scale_loss(loss).backward()
            return loss, y_pred, [w.value.grad for w in weights]

        before = _values(self.non_trainable_variables)
        _, _, gradients = one_pass()
        _assign(self.non_trainable_variables, before)
        values = _values(weights)
        with torch.no_grad():
            _assign(weights, self.second_point(values, gradients))
        loss, y_pred, gradients = one_pass()
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
