"""Model soups: the average of the weights of several models."""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_mk.copy_model import copy_model
from keras_mk.validation import check_models

Weights = list[Any]


def uniform_soup(models: Sequence[keras.Model]) -> keras.Model:
    """A model whose weights are the average of those of the models.

    Reference: [Wortsman et al., 2022](https://arxiv.org/abs/2203.05482). It
    makes sense for models that were fine-tuned from the same one.

    Args:
        models: One or more built models of one architecture. They are not
            changed.

    Example:

    >>> import keras
    >>> from keras_mk import baselines
    >>> def network():
    ...     return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    >>> baselines.uniform_soup([network(), network()]).count_params()
    16
    """
    models = check_models("models", models)
    return _with_weights(models[0], _average(_ingredients(models)))


def greedy_soup(
    models: Sequence[keras.Model], score: Callable[[keras.Model], float]
) -> keras.Model:
    """The average of those models that do not make it worse.

    The models are tried from the best to the worst; each that leaves the
    soup's score as high as it was, or raises it, stays in.

    Args:
        models: One or more built models of one architecture. They are not
            changed.
        score: From a model, how good it is, for example its accuracy on data
            that is held out; higher is better.

    Example:

    >>> import keras
    >>> from keras_mk import baselines
    >>> def network():
    ...     return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    >>> soup = baselines.greedy_soup(
    ...     [network(), network()],
    ...     score=lambda model: float(model.get_weights()[0].sum()),
    ... )
    """
    models = check_models("models", models)
    if not callable(score):
        raise TypeError(
            "`score` must be a function from a model to a number. "
            f"Received: score={score!r}"
        )
    ingredients = _ingredients(models)
    scores = [_scored(score, model) for model in models]
    order = sorted(range(len(models)), key=lambda i: -scores[i])
    chosen, best = [ingredients[order[0]]], scores[order[0]]
    soup = _with_weights(models[0], _average(chosen))
    for index in order[1:]:
        tried = [*chosen, ingredients[index]]
        soup.set_weights(_average(tried))
        found = _scored(score, soup)
        if found >= best:
            chosen, best = tried, found
    soup.set_weights(_average(chosen))
    return soup


def _scored(score: Callable[[keras.Model], float], model: keras.Model) -> float:
    found = score(model)
    try:
        number = float(found)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise ValueError(
            "`score` must return a number, higher for better models. "
            f"Received: {found!r} for model '{model.name}'"
        )
    return number


def _ingredients(models: Sequence[keras.Model]) -> list[Weights]:
    for model in models:
        if not model.built:
            raise ValueError(
                "`models` must be built: call each once, or give it an input "
                f"shape. Received: model '{model.name}'"
            )
    found = [model.get_weights() for model in models]
    shapes = {str([w.shape for w in weights]) for weights in found}
    if len(shapes) != 1:
        raise ValueError(
            "`models` must be one or more models with weights of the same "
            f"shapes. Received: {len(found)} models with {len(shapes)} "
            "different sets of shapes"
        )
    return found


def _average(ingredients: list[Weights]) -> Weights:
    return [
        np.mean(same, axis=0, dtype="float64").astype(same[0].dtype)
        for same in zip(*ingredients)
    ]


def _with_weights(model: keras.Model, weights: Weights) -> keras.Model:
    copy = copy_model(model)
    copy.set_weights(weights)
    return copy
