"""How a model with majority kernels is doing: figures and their plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk import mixing
from keras_mk.collapse import collapse
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.mixing import hashing
from keras_mk.walk import walk


@dataclass(frozen=True)
class Diversity:
    """How far apart the copies of a kernel are.

    Attributes:
        path: The layer, with the kernel's name.
        spread: Root of the mean square distance of a copy from the average,
            as a multiple of the average's norm. Zero for equal copies.
        cosine: Mean cosine similarity of two copies; 1 for equal ones, about
            0 for independent ones.
    """

    path: str
    spread: float
    cosine: float


def diversity(model: keras.Model) -> list[Diversity]:
    """The diversity of the copies of each kernel with more than one.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> keras_mk.diagnostics.diversity(keras_mk.expand(plain))[0].cosine
    1.0
    """
    internals.synchronize(model)
    found = []
    for each in walk(model):
        if isinstance(each.layer, MajorityKernel) and each.layer.expansion > 1:
            for name in each.layer.kernel_names:
                copies = [
                    ops.convert_to_numpy(v).astype("float64").ravel()
                    for v in getattr(each.layer, f"{name}s")
                ]
                found.append(_diversity(f"{each.path}/{name}", copies))
    return found


def _diversity(path: str, copies: Sequence[Any]) -> Diversity:
    average = np.mean(copies, axis=0)
    squares = [np.sum((copy - average) ** 2) for copy in copies]
    spread = np.sqrt(np.mean(squares)) / max(np.linalg.norm(average), 1e-12)
    cosines = [
        a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12)
        for a, b in combinations(copies, 2)
    ]
    return Diversity(
        path, round(float(spread), 6), round(float(np.mean(cosines)), 6)
    )


@dataclass(frozen=True)
class Sharpness:
    """Stochastic sharpness: the Delta of the paper's PAC-Bayes lemma.

    Attributes:
        delta: `|E_p L(w_p) - L(w_mean)|`.
        standard_error: Of the expectation, over the mixtures drawn.
        mixed_loss: The estimate of `E_p L(w_p)`.
        mean_loss: `L(w_mean)`, the loss of the averaged kernels.
    """

    delta: float
    standard_error: float
    mixed_loss: float
    mean_loss: float


def sharpness(
    model: keras.Model,
    x: Any,
    y: Any = None,
    loss: Any = None,
    draws: int = 10,
    batch_size: int | None = None,
    seed: int = 0,
) -> Sharpness:
    """How much the loss grows when the copies are mixed at random.

    The model is in inference mode; each draw mixes every kernel once, for the
    whole data set. The model is not changed, and its seeds stay where they
    were.

    Args:
        model: A model with majority kernels.
        x: Data as for `evaluate`. It is gone through `draws + 1` times.
        y: Targets, where `x` does not hold them.
        loss: Loss to use. Defaults to the one the model is compiled with.
        draws: How many mixtures to average over, at least 2.
        batch_size: As for `evaluate`.
        seed: Seed of the mixtures.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> import numpy as np
    >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> model = keras_mk.expand(plain, copies="independent")
    >>> x, y = np.ones((4, 3)), np.ones((4, 2))
    >>> keras_mk.diagnostics.sharpness(model, x, y, loss="mse").delta > 0
    True
    """
    if draws < 2:
        raise ValueError(f"`draws` must be at least 2. Received: draws={draws}")
    loss = loss if loss is not None else getattr(model, "loss", None)
    if loss is None:
        raise ValueError(
            "`loss` must be given, since the model is not compiled with one."
        )
    internals.synchronize(model)
    plain = collapse(model)
    plain.compile(loss=loss)

    def evaluate() -> float:
        result = plain.evaluate(x, y, batch_size=batch_size, verbose=0)
        return float(np.ravel(result)[0])

    mean_loss = evaluate()
    losses = []
    for draw in range(draws):
        _mix_into(plain, model, seed, draw)
        losses.append(evaluate())
    mixed = float(np.mean(losses))
    error = float(np.std(losses, ddof=1) / np.sqrt(draws))
    return Sharpness(abs(mixed - mean_loss), error, mixed, mean_loss)


def _mix_into(
    plain: keras.Model, model: keras.Model, seed: int, draw: int
) -> None:
    """Sets the kernels of the plain model to mixtures of the other's copies."""
    layers = {each.key: each.layer for each in walk(plain)}
    for each in walk(model):
        if isinstance(each.layer, MajorityKernel):
            for name in each.layer.kernel_names:
                own = hashing.derive_seed(seed, f"{each.key}/{name}")
                state = ops.convert_to_tensor(
                    [own, draw], each.layer.seed_generator.state.dtype
                )
                copies = [v.value for v in getattr(each.layer, f"{name}s")]
                mixed = mixing.sampled_mixture(copies, state)
                kernel = getattr(layers[each.key], name)
                kernel.assign(ops.convert_to_numpy(ops.stop_gradient(mixed)))


class Diagnostics(keras.callbacks.Callback):
    """Adds the figures of this module to the logs of each epoch.

    They then appear in the history, and in the progress bar, TensorBoard and
    CSV files of callbacks that come after this one: `mk_spread` and
    `mk_cosine`, the averages over the kernels; `mk_gap`, the loss on the
    validation data less that in training; and, where data is given,
    `mk_sharpness` and `mk_sharpness_error`.

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
        if every < 1:
            raise ValueError(
                f"`every` must be at least 1. Received: every={every}"
            )
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


def gap(
    model: keras.Model, train: tuple[Any, Any], test: tuple[Any, Any]
) -> dict[str, float]:
    """What a compiled model's test figures are above those in training.

    Both are taken in inference mode, with the averaged kernels.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> model.compile("sgd", "mse")
    >>> data = np.ones((4, 3)), np.ones((4, 2))
    >>> keras_mk.diagnostics.gap(model, data, data)
    {'loss': 0.0}
    """
    train_figures, test_figures = (
        model.evaluate(x, y, verbose=0, return_dict=True)
        for x, y in (train, test)
    )
    return {
        name: float(test_figures[name] - train_figures[name])
        for name in train_figures
    }


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
