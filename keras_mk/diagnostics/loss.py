"""What the loss is under random mixtures, and on data not seen."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk import mixing
from keras_mk.collapse import collapse
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.mixing import hashing
from keras_mk.training.around import innermost
from keras_mk.validation import check_count
from keras_mk.walk import walk


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

    Of a model around another, such as `AdversarialMK`, it is that of the copies
    inside. So under `LearnedMK`, which mixes nothing at random, it compares
    with their average, and not with what was learned.

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
    check_count("draws", draws, at_least=2)
    loss = loss if loss is not None else getattr(model, "loss", None)
    if loss is None:
        raise ValueError(
            "`loss` must be given, since the model is not compiled with one."
        )
    internals.synchronize(model)
    model = innermost(model)
    plain = collapse(model)
    plain.compile(loss=loss)

    def evaluate() -> float:
        result = plain.evaluate(x, y, batch_size=batch_size, verbose=0)
        return float(np.ravel(result)[0])

    mean_loss = evaluate()
    losses = []
    for draw in range(draws):
        mix_into(plain, model, seed, draw)
        losses.append(evaluate())
    mixed = float(np.mean(losses))
    error = float(np.std(losses, ddof=1) / np.sqrt(draws))
    return Sharpness(abs(mixed - mean_loss), error, mixed, mean_loss)


def mix_into(
    plain: keras.Model, model: keras.Model, seed: int, draw: int
) -> None:
    """Sets the kernels of the plain model to mixtures of the other's copies."""
    layers = {each.key: each.layer for each in walk(plain)}
    for each in walk(model):
        if isinstance(each.layer, MajorityKernel):
            for name in each.layer.kernel_names:
                own = hashing.derive_seed(seed, f"{each.key}/{name}")
                state = ops.convert_to_tensor(
                    [own, draw], each.layer.mixing_seed_generator.state.dtype
                )
                copies = [v.value for v in getattr(each.layer, f"{name}s")]
                mixed = mixing.sampled_mixture(copies, state)
                kernel = getattr(layers[each.key], name)
                kernel.assign(ops.convert_to_numpy(ops.stop_gradient(mixed)))


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
