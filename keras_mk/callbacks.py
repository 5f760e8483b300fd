"""Callbacks for training with majority kernels."""

import os
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk.collapse import collapse
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.local_path import check_local
from keras_mk.local_path import follow
from keras_mk.staging import staging
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


class CollapsedCheckpoint(keras.callbacks.ModelCheckpoint):
    """`keras.callbacks.ModelCheckpoint` that writes the plain model.

    What it saves, when `ModelCheckpoint` would, is `keras_mk.collapse(model)`:
    a file for deployment, without the copies and without the optimizer. To
    resume training, save the model itself.

    The file is written beside its place and then moved into it, so that a
    crash leaves the one before. It must be on this machine's file system.

    Args:
        *args: As `keras.callbacks.ModelCheckpoint`.
        **kwargs: As `keras.callbacks.ModelCheckpoint`.

    Example:

    >>> import keras, keras_mk, numpy as np, os, tempfile
    >>> model = keras.Sequential(
    ...     [keras.Input((4,)), keras_mk.layers.MKDense(1)]
    ... )
    >>> model.compile("adam", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "plain.keras")
    ...     checkpoint = keras_mk.callbacks.CollapsedCheckpoint(path)
    ...     history = model.fit(
    ...         np.ones((8, 4)),
    ...         np.ones((8, 1)),
    ...         callbacks=[checkpoint],
    ...         verbose=0,
    ...     )
    ...     keras.saving.load_model(path).count_params()
    5
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_local(self.filepath, "filepath")
        if not self.filepath.endswith((".keras", ".weights.h5")):
            raise ValueError(
                "`filepath` must end in '.keras', or in '.weights.h5' with "
                "`save_weights_only=True`: whole models are not written in "
                f"HDF5. Received: filepath='{self.filepath}'"
            )

    def set_model(self, model: keras.Model) -> None:
        super().set_model(_SavesCollapsed(model))


class _SavesCollapsed:
    """Stands for a model where what is saved is to be the plain one."""

    def __init__(self, model: keras.Model) -> None:
        self.trained = model

    def __getattr__(self, name: str) -> Any:
        # While it is copied or unpickled, it has nothing yet.
        if name == "trained":
            raise AttributeError(name)
        return getattr(self.trained, name)

    def save(self, filepath: Any, **kwargs: Any) -> None:
        self._write("save", filepath, ".keras")

    def save_weights(self, filepath: Any, **kwargs: Any) -> None:
        self._write("save_weights", filepath, ".weights.h5")

    def _write(self, method: str, filepath: Any, suffix: str) -> None:
        internals.synchronize(self.trained)
        plain = collapse(self.trained)
        target = follow(Path(filepath))
        with staging(target) as folder:
            written = folder / f"model{suffix}"
            getattr(plain, method)(written)
            os.replace(written, target)
