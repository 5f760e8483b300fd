"""Going on after a stop."""

import os
import random
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_mk import _keras_internals as internals
from keras_mk import training_state
from keras_mk.local_path import check_local
from keras_mk.replacing import put_new
from keras_mk.staging import staging
from keras_mk.validation import check_seed

_EPOCH = re.compile(r"epoch-(\d+)")
_ORDER, _STEPS = 0, 1


class Resume(keras.callbacks.Callback):
    """Makes a training that is stopped go on as if it had not been.

    After each epoch it writes what `keras.callbacks.BackupAndRestore` does,
    weights, optimizer and epoch, and what Keras does not save: the state of
    every seed generator in the model, such as Dropout's. The same `fit`, in
    another process or in this one, then goes on after the last whole epoch,
    and ends with the same weights, bit for bit, as without the stop. Of the
    epoch in which it was stopped nothing is kept.

    So that shuffling, and Dropout on torch, do not depend on what came before,
    each epoch begins by setting the generators of Python, numpy, torch and
    Keras (not TensorFlow's, see below), from `seed` and the epoch.

    What it does not resume:

    - On TensorFlow, the order in which `fit` shuffles arrays, unless each
      process calls `keras.utils.set_random_seed` with the same seed first
      (the order is then the same in each epoch), which it warns of; and what
      `tf.random` draws.
    - Where the data are, if an epoch is not one pass over them: with
      `steps_per_epoch`, or an iterator. Begin them at `epochs_done`.
    - What other callbacks count, such as `EarlyStopping`, and the history.
    - Random numbers drawn in other threads and processes.

    Put it last in the list of callbacks, so that it writes what they change.
    The folder belongs to one training, on one backend. An epoch is written
    beside its place, and moved there when it is complete; then the one before
    is removed. The last stays: `fit` with more epochs goes on from it, with as
    many does nothing. A model is told by the classes of its layers and the
    shapes of its weights, the optimizer likewise; what else `fit` and `compile`
    are given is not compared.

    Args:
        folder: Where the state is kept: a local folder for it alone, which
            need not exist yet.
        seed: An integer for the generators, or `None` (the default) to draw
            one, which the folder keeps.

    Raises:
        ValueError: When training begins, before anything is changed, if the
            folder has a training of another model, another seed or another
            backend, or the model is not built.

    Example:

    >>> import keras, keras_mk, numpy as np, os, tempfile
    >>> x, y = np.ones((8, 4)), np.ones((8, 1))
    >>> def train(folder, epochs):
    ...     keras.utils.set_random_seed(1)
    ...     model = keras.Sequential(
    ...         [
    ...             keras.Input((4,)),
    ...             keras.layers.Dropout(0.5),
    ...             keras_mk.layers.MKDense(1),
    ...         ]
    ...     )
    ...     model.compile("adam", "mse")
    ...     resume = keras_mk.callbacks.Resume(folder)
    ...     history = model.fit(
    ...         x, y, epochs=epochs, callbacks=[resume], verbose=0
    ...     )
    ...     return history.epoch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train(folder, epochs=2), train(folder, epochs=4)
    ([0, 1], [2, 3])
    """

    def __init__(
        self, folder: str | os.PathLike[str], seed: int | None = None
    ) -> None:
        super().__init__()
        check_local(folder, "folder")
        check_seed(seed)
        self.folder = Path(folder)
        self.seed = seed
        self._seeds: dict[str, Any] = {}
        self._epoch = 0
        self._steps = 0

    @property
    def epochs_done(self) -> int:
        """The number of epochs after which training would go on now."""
        return max(self._written(), default=0)

    def restore(self, model: keras.Model) -> int:
        """Puts a compiled model where the training is; `fit` does so itself.

        Args:
            model: The model. Nothing is changed if there is nothing yet.

        Returns:
            `epochs_done`.
        """
        training_state.check_ready(model)
        done = self.epochs_done
        if done:
            folder = self._of(done)
            training_state.check_same(model, folder, self.seed)
            training_state.read(model, folder)
        return done

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        done = self.restore(model)
        _make_folder(self.folder)
        seed, of_tensorflow = self.seed, internals.tensorflow_seed()
        if done:
            before = training_state.seeds_in(self._of(done))
            seed = before["seed"]
            _warn_of_order(of_tensorflow, before["tensorflow seed"])
            internals.start_fit_at(model, done)
        elif seed is None:
            seed = random.randrange(2**31)
        self._seeds = {"seed": seed, "tensorflow seed": of_tensorflow}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        # For `fit` has read it, and the next one starts by itself.
        internals.start_fit_at(self.model, None)
        self._epoch, self._steps = epoch, 0
        internals.set_random_state(self._seed_of(_ORDER))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            # To begin a pass over the data, torch draws from the generator
            # that Dropout draws from; not every epoch begins one.
            internals.set_torch_random_state(self._seed_of(_STEPS))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._is_cut_short():
            return
        target = self._of(epoch + 1)
        with staging(target) as files:
            written = files / target.name
            training_state.write(self.model, written, self._seeds)
            put_new(written, target)
        for other in self._written():
            if other != epoch + 1:
                shutil.rmtree(self._of(other), ignore_errors=True)

    def on_train_end(self, logs: Any = None) -> None:
        internals.start_fit_at(self.model, None)

    def _seed_of(self, part: int) -> int:
        sequence = np.random.SeedSequence(
            (self._seeds["seed"], self._epoch, part)
        )
        return int(sequence.generate_state(1)[0]) >> 1

    def _is_cut_short(self) -> bool:
        """Whether the epoch was left by `stop_training`, before its end."""
        steps = self.params["steps"]
        return self.model.stop_training and (
            steps is None or self._steps < steps
        )

    def _of(self, epochs: int) -> Path:
        return self.folder / f"epoch-{epochs}"

    def _written(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        names = (_EPOCH.fullmatch(path.name) for path in self.folder.iterdir())
        return [int(name[1]) for name in names if name]


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(
            "`folder` must be a folder that can be written to, or not exist "
            f"yet. Received: folder='{folder}'"
        )


def _warn_of_order(seed: int | None, before: int | None) -> None:
    """Warns if TensorFlow would shuffle in another order than it did."""
    if keras.config.backend() != "tensorflow":
        return
    if seed is None or seed != before:
        warnings.warn(
            "On TensorFlow, `fit` shuffles arrays by TensorFlow's global seed, "
            f"which was {before} when this training began and is {seed} now: "
            "if `fit` is given arrays to shuffle, their order is another than "
            "without the stop. Call `keras.utils.set_random_seed` with the "
            "same seed before each `fit`, or shuffle by a "
            "`keras.utils.PyDataset`.",
            stacklevel=2,
        )
