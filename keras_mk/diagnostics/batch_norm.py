"""How far apart the BatchNorm statistics of two models are."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk.training.around import innermost
from keras_mk.walk import walk


@dataclass(frozen=True)
class BatchNormShift:
    """How far two models' statistics of a BatchNorm layer are apart.

    Attributes:
        path: The layer.
        mean: Root mean square, over the channels, of the distance of the
            means, in standard deviations of the second model.
        variance: The first model's variance as a multiple of the second's;
            the geometric mean over the channels.
    """

    path: str
    mean: float
    variance: float


def batch_norm_shift(
    model: keras.Model, recalibrated: keras.Model
) -> list[BatchNormShift]:
    """Compares the BatchNorm statistics of two models, layer by layer.

    Args:
        model: A model, for example a collapsed one.
        recalibrated: What `keras_mk.recalibrate_batch_norm` made of it.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> import numpy as np
    >>> plain = keras.Sequential(
    ...     [keras.Input((3,)), keras.layers.BatchNormalization()]
    ... )
    >>> x = np.random.default_rng(0).normal(5, 1, (64, 3))
    >>> again = keras_mk.recalibrate_batch_norm(plain, x, verbose=0)
    >>> [shift] = keras_mk.diagnostics.batch_norm_shift(plain, again)
    >>> round(shift.mean)
    5
    """
    others = {each.key: each.layer for each in walk(innermost(recalibrated))}
    return [
        _batch_norm_shift(each.path, each.layer, others[each.key])
        for each in walk(innermost(model))
        if isinstance(each.layer, keras.layers.BatchNormalization)
    ]


def _batch_norm_shift(path: str, first: Any, second: Any) -> BatchNormShift:
    mean, variance = _moments(first)
    other_mean, other_variance = _moments(second)
    distance = (mean - other_mean) / np.sqrt(other_variance)
    ratio = np.exp(np.mean(np.log(variance / other_variance)))
    return BatchNormShift(
        path, float(np.sqrt(np.mean(distance**2))), float(ratio)
    )


def _moments(layer: Any) -> tuple[Any, Any]:
    """Mean and variance as BatchNorm uses them, which adds an epsilon."""
    mean, variance = (
        ops.convert_to_numpy(variable).astype("float64")
        for variable in (layer.moving_mean, layer.moving_variance)
    )
    return mean, variance + layer.epsilon
