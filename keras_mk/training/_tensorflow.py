"""The training step with two gradients, on TensorFlow."""

from typing import Any

import keras
import tensorflow as tf

from keras_mk import _keras_internals as internals
from keras_mk.training.scaling import unscaled


class TwoPassStep:
    def train_step(self: Any, data: Any) -> Any:
        if not self.trainable_variables:
            return keras.Model.train_step(self, data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        weights = self.trainable_weights

        def one_pass() -> Any:
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = internals.compute_loss(self, x, y, y_pred, sample_weight)
                scaled = self.optimizer.scale_loss(loss)
            return loss, scaled, y_pred, tape.gradient(scaled, weights)

        before = _values(self.non_trainable_variables)
        with self.first_pass():
            loss, scaled, _, gradients = one_pass()
        _assign(self.non_trainable_variables, before)
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
        self.optimizer.apply_gradients(zip(gradients, weights))
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _values(weights: list[Any]) -> list[Any]:
    return [tf.identity(w.value) for w in weights]


def _assign(weights: list[Any], values: list[Any]) -> None:
    for weight, value in zip(weights, values):
        weight.assign(value)
