"""How alike the outputs of two mixtures are."""

from itertools import combinations
from typing import Any

import keras
import numpy as np

from keras_mk import _keras_internals as internals
from keras_mk.collapse import collapse
from keras_mk.diagnostics.loss import mix_into
from keras_mk.recalibrate import batch_norms
from keras_mk.recalibrate import normalize_by_batch
from keras_mk.training.around import innermost
from keras_mk.validation import check_count


def agreement(
    model: keras.Model, x: Any, draws: int = 2, seed: int = 0
) -> float:
    """The correlation of a model's outputs under two draws of its mixtures.

    Near 1, a step trains nearly what the step before it trained. Near 0, which
    is where a deep network with independent copies starts, the next mixture
    has little of what this one learned, and it takes many steps until they
    agree. Copies that start closer together (`expand(..., copies="perturb")`)
    agree more.

    `BatchNormalization` uses the statistics of the batch, as in a step; nothing
    is dropped out. The model is not changed, and its seeds stay where they
    were.

    Args:
        model: A model with majority kernels and one output, or one around
            it, such as `AdversarialMK`.
        x: One batch of inputs.
        draws: How many draws to compare, at least 2.
        seed: Seed of the mixtures.

    Returns:
        The mean, over the pairs of draws, of the correlation of their outputs,
        less the mean of each output over the batch. Not a number if the
        outputs are the same for every example.

    Raises:
        ValueError: If there are fewer than two draws, no majority kernels or
            several outputs.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> import numpy as np
    >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> x = np.random.default_rng(0).normal(size=(32, 3))
    >>> keras_mk.diagnostics.agreement(keras_mk.expand(plain), x)
    1.0
    """
    check_count("draws", draws, at_least=2)
    internals.synchronize(model)
    model = innermost(model)
    plain = collapse(model)
    normalize_by_batch(plain, list(batch_norms(plain).values()))
    outputs = []
    for draw in range(draws):
        mix_into(plain, model, seed, draw)
        found = plain.predict_on_batch(x)
        if isinstance(found, (dict, list, tuple)):
            raise ValueError(
                "`model` must have one output. Received: model "
                f"'{model.name}', whose output is a {type(found).__name__}"
            )
        found = found.astype("float64")
        outputs.append((found - found.mean(axis=0)).ravel())
    pairs = [_correlation(a, b) for a, b in combinations(outputs, 2)]
    return round(float(np.mean(pairs)), 6)


def _correlation(a: Any, b: Any) -> float:
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms else float("nan")
