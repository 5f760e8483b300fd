"""Callbacks for training with majority kernels."""

from typing import Any

import keras
from keras import ops

from keras_mk.layers.majority_kernel import MajorityKernel


class SamplingCheck(keras.callbacks.Callback):
    """Raises if an epoch of `fit` has mixed no kernel.

    Majority-kernel layers mix their copies when they are called with
    `training=True`. A model whose `call` does not pass `training` on trains
    the average of the copies instead, which is the plain model with a smaller
    learning rate. The layers warn about that when it happens; this callback
    makes it an error at the end of the first epoch.

    Example:

    >>> import keras, numpy as np
    >>> from keras_mk import callbacks, layers
    >>> model = keras.Sequential([keras.Input((4,)), layers.MKDense(1)])
    >>> model.compile("adam", "mse")
    >>> history = model.fit(
    ...     np.ones((8, 4)),
    ...     np.ones((8, 1)),
    ...     callbacks=[callbacks.SamplingCheck()],
    ...     verbose=0,
    ... )
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._drawn = self._count_draws()
        if not self._layers():
            raise ValueError(
                "`SamplingCheck` was given a model with no majority-kernel "
                "layer that is trainable and has more than one copy. "
                f"Received: model '{self.model.name}'"
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        drawn = self._count_draws()
        if drawn == self._drawn:
            names = ", ".join(layer.name for layer in self._layers())
            raise RuntimeError(
                "In this epoch no majority-kernel layer has mixed its copies: "
                "`training=True` did not reach them. A model's `call()` must "
                "take a `training` argument and pass it on to its layers. "
                f"Layers: {names}"
            )
        self._drawn = drawn

    def _layers(self) -> list[Any]:
        return [
            layer
            for layer in self.model._flatten_layers()
            if isinstance(layer, MajorityKernel)
            and layer.trainable
            and layer.expansion > 1
        ]

    def _count_draws(self) -> int:
        states = [layer.seed_generator.state for layer in self._layers()]
        return sum(int(ops.convert_to_numpy(state)[1]) for state in states)
