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
class ObviousMKDense(MKDense):
    """Majority kernels as one would write them first, with `keras.random`."""

    def _choose_kernels(self, training: bool | None) -> dict[str, Any]:
        if not training:
            return super()._choose_kernels(training)
        copies = ops.stack(self._copy_values("kernel"))
        uniform = keras.random.uniform(
            copies.shape, minval=1e-7, seed=self.seed_generator
        )
        exponential = -ops.log(uniform)
        p = exponential / ops.sum(exponential, axis=0)
        return {"kernel": ops.sum(copies * p, axis=0)}
