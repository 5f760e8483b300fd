"""Layers that a majority-kernel layer is measured against."""

from typing import Any

import keras
from keras import ops

from keras_mk import mixing
from keras_mk.layers import MKDense


@keras.saving.register_keras_serializable(package="keras_mk")
class MeanMKDense(MKDense):
    """The floor: it trains the copies through their average and draws nothing.

    What a layer with `expansion` times the parameters costs before sampling.
    """

    def _choose_kernels(self, training: bool | None) -> dict[str, Any]:
        return {"kernel": mixing.mean(self._copy_values("kernel"))}


@keras.saving.register_keras_serializable(package="keras_mk")
class LogUniformMKDense(MKDense):
    """Majority kernels with exponentials made from `keras.random.uniform`."""

    def _exponentials(self, shape: tuple[int, ...]) -> Any:
        uniform = keras.random.uniform(
            shape, minval=1e-7, seed=self.seed_generator
        )
        return -ops.log(uniform)

    def _choose_kernels(self, training: bool | None) -> dict[str, Any]:
        if not training:
            return super()._choose_kernels(training)
        copies = ops.stack(self._copy_values("kernel"))
        exponentials = self._exponentials(tuple(copies.shape))
        p = exponentials / ops.sum(exponentials, axis=0)
        return {"kernel": ops.sum(copies * p, axis=0)}


@keras.saving.register_keras_serializable(package="keras_mk")
class GammaMKDense(LogUniformMKDense):
    """The same with `keras.random.gamma(alpha=1)`, an exponential by name."""

    def _exponentials(self, shape: tuple[int, ...]) -> Any:
        return keras.random.gamma(shape, alpha=1.0, seed=self.seed_generator)
