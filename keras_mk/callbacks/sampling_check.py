"""A check that majority kernels are mixed."""

from typing import Any

import keras
from keras import ops

from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.walk import walk


class SamplingCheck(keras.callbacks.Callback):
    """Raises if an epoch of `fit` has not mixed the kernels of a layer.

    Majority-kernel layers mix their copies when they are called with
    `training=True`. A model whose `call` does not pass `training` on trains
    the average of the copies instead, which is the plain model with a smaller
    learning rate; the copies of a layer that is not called at all are not
    trained. The layers warn about the first when it happens; this callback
    makes both an error, which names the layers, at the end of the first epoch.

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
        self._drawn: dict[str, int] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        self._drawn = self._draws()
        if not self._drawn:
            raise ValueError(
                "`SamplingCheck` was given a model with no majority-kernel "
                "layer that is trainable and has more than one copy. "
                f"Received: model '{self.model.name}'"
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        before, self._drawn = self._drawn, self._draws()
        still = [
            path
            for path, draws in self._drawn.items()
            if draws == before.get(path, 0)
        ]
        if still:
            raise RuntimeError(
                "In this epoch these majority-kernel layers have not mixed "
                "their copies: `training=True` did not reach them, or they "
                "were not called. A model's `call()` must take a `training` "
                "argument and pass it on to its layers; a layer that is not "
                "to be trained is frozen, or excluded from `expand`. Layers: "
                f"{', '.join(still)}"
            )

    def _draws(self) -> dict[str, int]:
        """How often each layer has drawn, by its path."""
        states = {
            f.path: ops.convert_to_numpy(f.layer.mixing_seed_generator.state)
            for f in walk(self.model)
            if isinstance(f.layer, MajorityKernel)
            and f.layer.trainable
            and f.layer.expansion > 1
        }
        return {path: int(state[1]) for path, state in states.items()}
