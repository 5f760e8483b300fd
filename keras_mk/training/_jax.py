"""The training step with two gradients, on JAX."""

from typing import Any

import jax
import keras

from keras_mk import _keras_internals as internals
from keras_mk.training.scaling import unscaled


class TwoPassStep:
    def train_step(self: Any, state: Any, data: Any) -> Any:
        if not self.trainable_variables:
            return keras.Model.train_step(self, state, data)
        trainable, non_trainable, optimizer, metrics = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        differentiate = jax.value_and_grad(
            self.compute_loss_and_updates, has_aux=True
        )

        def one_pass(values: Any) -> Any:
            return differentiate(
                values,
                non_trainable,
                metrics,
                x,
                y,
                sample_weight,
                training=True,
                optimizer_variables=optimizer,
            )

        with self.first_pass():
            (scaled, (loss, *_)), gradients = one_pass(trainable)
        gradients = unscaled(gradients, loss, scaled)
        with self.second_pass(gradients):
            (_, found), gradients = one_pass(
                self.second_point(trainable, gradients)
            )
        loss, y_pred, non_trainable, metrics = found
        trainable, optimizer = self.optimizer.stateless_apply(
            optimizer, gradients, trainable
        )
        logs, metrics = internals.update_metrics(
            self, metrics, loss, x, y, y_pred, sample_weight
        )
        return logs, (trainable, non_trainable, optimizer, metrics)
