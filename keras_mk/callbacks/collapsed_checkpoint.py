"""A checkpoint of the plain model."""

import os
from pathlib import Path
from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk.collapse import collapse
from keras_mk.local_path import check_local
from keras_mk.local_path import follow
from keras_mk.staging import staging


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
