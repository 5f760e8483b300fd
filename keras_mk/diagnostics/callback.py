"""The figures, epoch by epoch."""

from typing import Any

import keras
import numpy as np

from keras_mk.diagnostics.copies import diversity
from keras_mk.diagnostics.loss import sharpness
from keras_mk.validation import check_count


class Diagnostics(keras.callbacks.Callback):
    """Adds the figures of this module to the logs of each epoch.

    They then appear in the history, and in the progress bar, TensorBoard and
    CSV files of callbacks that come after this one: `mk_spread` and
    `mk_cosine`, the averages over the kernels; `mk_gap`, the loss on the
    validation data less that in training; and, where data is given,
    `mk_sharpness` and `mk_sharpness_error`.

    Of a model around another, such as `AdversarialMK`, they are those of the
    copies inside; see `sharpness`.

    Args:
        x: Data for `sharpness`, or `None` to leave it out.
        y: Its targets.
        draws: As `sharpness`. Defaults to 5.
        every: Epochs from one look to the next. Defaults to 1.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> import numpy as np
    >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> model = keras_mk.expand(plain, copies="independent")
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((4, 3)), np.ones((4, 2))
    >>> look = keras_mk.diagnostics.Diagnostics(x, y)
    >>> history = model.fit(x, y, callbacks=[look], verbose=0)
    >>> sorted(history.history)
    ['loss', 'mk_cosine', 'mk_sharpness', 'mk_sharpness_error', 'mk_spread']
    """

    def __init__(
        self, x: Any = None, y: Any = None, draws: int = 5, every: int = 1
    ) -> None:
        super().__init__()
        check_count("draws", draws, at_least=2)
        check_count("every", every)
        self.x, self.y = x, y
        self.draws = draws
        self.every = every

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is None or epoch % self.every:
            return
        if "val_loss" in logs:
            logs["mk_gap"] = logs["val_loss"] - logs["loss"]
        found = diversity(self.model)
        if found:
            logs["mk_spread"] = float(np.mean([d.spread for d in found]))
            logs["mk_cosine"] = float(np.mean([d.cosine for d in found]))
        if self.x is not None:
            seen = sharpness(
                self.model, self.x, self.y, draws=self.draws, seed=epoch
            )
            logs["mk_sharpness"] = seen.delta
            logs["mk_sharpness_error"] = seen.standard_error


def plot(history: Any, path: Any) -> None:
    """Draws the figures of a `Diagnostics` callback over the epochs.

    Args:
        history: What `fit` returned, or its `history`.
        path: PNG file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    history = getattr(history, "history", history)
    names = [name for name in history if name.startswith("mk_")]
    names = [name for name in names if not name.endswith("_error")]
    if not names:
        raise ValueError(
            "`history` must be of a `fit` with the `Diagnostics` callback. "
            f"Received: history of {sorted(history)}"
        )
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(3.6 * len(names), 3), squeeze=False
    )
    for axis, name in zip(axes[0], names):
        errors = history.get(f"{name}_error")
        axis.errorbar(range(1, len(history[name]) + 1), history[name], errors)
        axis.set_title(name.removeprefix("mk_"))
        axis.set_xlabel("epoch")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
