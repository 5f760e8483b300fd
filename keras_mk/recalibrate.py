"""BatchNorm statistics for the averaged kernels."""

import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk.copy_model import copy_model
from keras_mk.walk import walk


def recalibrate_batch_norm(
    model: keras.Model,
    data: Any,
    steps: int | None = None,
    *,
    batch_size: int | None = None,
    verbose: Any = "auto",
) -> keras.Model:
    """Gathers the moving statistics of a model's BatchNorm layers again.

    In training they are gathered under kernels that are mixed at random. The
    averaged kernels give activations of smaller variance, so a collapsed model
    may gain by statistics of its own. They are the means, over the batches, of
    each batch's mean and variance. Everything but the BatchNorm layers is in
    inference mode: nothing is dropped out, no kernel is mixed.

    Args:
        model: A collapsed model, or any other. It is not changed.
        data: Inputs as `fit` takes them: a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a torch `DataLoader`, a generator, arrays,
            or a dict of them. Targets in it are ignored. A few thousand
            examples of the training set, augmented as in training, are
            enough; as for evaluation, they give other statistics than the
            kernels are used to.
        steps: How many batches to take. Defaults to all of them.
        batch_size: For arrays only. Defaults to 32.
        verbose: 0 for no progress bar.

    Returns:
        A copy of the model, with new statistics. Layers that are not trainable
        keep theirs, as in training.

    Raises:
        ValueError: If there is no BatchNorm layer to calibrate or no data, or
            the statistics are not finite.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> import numpy as np
    >>> plain = keras.Sequential(
    ...     [keras.Input((3,)), keras.layers.BatchNormalization()]
    ... )
    >>> x = np.random.default_rng(0).normal(5, 1, (64, 3))
    >>> model = keras_mk.recalibrate_batch_norm(plain, x, verbose=0)
    >>> bool(abs(model.predict(x, verbose=0).mean()) < 1e-2)
    True
    """
    if steps is not None and steps < 1:
        raise ValueError(f"`steps` must be at least 1. Received: steps={steps}")
    internals.synchronize(model)
    worker = copy_model(model)
    layers = batch_norms(worker)
    if not layers:
        raise ValueError(
            "There is nothing to calibrate: `model` must have a trainable "
            f"BatchNormalization layer. Received: model '{model.name}'"
        )
    normalize_by_batch(worker, list(layers.values()))
    count, batches = internals.batches_of(data, batch_size)
    if steps is not None:
        count = min(steps, count or steps)
        batches = itertools.islice(batches, steps)
    bar = keras.utils.Progbar(
        count, verbose=1 if verbose == "auto" else verbose
    )
    statistics = _gather(worker, layers, batches, bar)
    result = copy_model(model)
    for key, layer in batch_norms(result).items():
        mean, variance = statistics[key]
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(variance)
        if layer.renorm:
            layer.moving_stddev.assign(np.sqrt(variance + layer.epsilon))
    return result


def batch_norms(model: keras.Model) -> dict[str, Any]:
    return {
        each.key: each.layer
        for each in walk(model)
        if isinstance(each.layer, keras.layers.BatchNormalization)
        and each.layer.trainable
    }


def _statistics(layer: Any) -> list[Any]:
    """The variables that inference normalises by."""
    return [layer.moving_mean, layer.moving_variance]


def normalize_by_batch(model: Any, layers: list[Any]) -> None:
    """Lets each call of a model leave that batch's statistics in the layers.

    A layer that is used several times in a call leaves their average.
    """
    uses = {id(layer): 0 for layer in layers}

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            uses.update(dict.fromkeys(uses, 0))
            return call(*args, **kwargs)

        return counted

    def training(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def trained(inputs: Any, training: Any = None, mask: Any = None) -> Any:
            layer.momentum = uses[id(layer)] / (uses[id(layer)] + 1)
            uses[id(layer)] += 1
            return call(inputs, training=True, mask=mask)

        return trained

    model.call = counting(model.call)
    for layer in layers:
        layer.call = training(layer, layer.call)
        # Batch renormalization would normalise by older statistics.
        layer.renorm = False
        for variable in _statistics(layer):
            # What is not finite would stay so, times a momentum of zero.
            variable.assign(np.zeros(variable.shape))


def _gather(
    model: Any,
    layers: dict[str, Any],
    batches: Iterable[Any],
    bar: Any,
) -> dict[str, list[Any]]:
    """Each statistic's mean over the batches, weighted by their size."""
    sums: dict[str, list[Any]] = {
        key: [0.0 for _ in _statistics(layer)] for key, layer in layers.items()
    }
    examples = 0
    for batch in batches:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        size = len(keras.tree.flatten(x)[0])
        model.predict_on_batch(x)
        for key, layer in layers.items():
            for i, variable in enumerate(_statistics(layer)):
                value = ops.convert_to_numpy(variable).astype("float64")
                sums[key][i] += size * value
        examples += size
        bar.add(1)
    if not examples:
        raise ValueError("`data` must have at least one batch. It has none.")
    means = {key: [s / examples for s in each] for key, each in sums.items()}
    for key, each in means.items():
        if not all(np.isfinite(mean).all() for mean in each):
            raise ValueError(
                f"The statistics of layer '{layers[key].name}' are not finite "
                "on this data. Nothing was changed."
            )
    return means
