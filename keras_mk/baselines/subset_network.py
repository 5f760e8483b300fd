"""A plain network made wide for subset selection, and plain again."""

from typing import Any

import keras
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk.baselines.subset import SubsetDense
from keras_mk.validation import check_expansion


def subset_network(model: keras.Model, expansion: int = 3) -> keras.Model:
    """A plain MLP with more neurons in its hidden layers than it uses.

    Every `keras.layers.Dense` of a Sequential or Functional model but the
    last becomes a `SubsetDense`, which starts anew. Train it with a
    `SubsetSelection`. Models inside of the model stay as they are.

    Args:
        model: The plain model. It is not changed. The hidden layers may have
            an activation and a kernel initializer of their own, nothing else
            that is not Keras's default.
        expansion: How many times as many neurons there are. Defaults to 3.

    Example:

    >>> import keras
    >>> from keras_mk import baselines
    >>> plain = keras.Sequential([
    ...     keras.Input((3,)),
    ...     keras.layers.Dense(4, activation="relu"),
    ...     keras.layers.Dense(1),
    ... ])
    >>> wide = baselines.subset_network(plain, expansion=3)
    >>> baselines.selected_network(wide).count_params() == plain.count_params()
    True
    """
    check_expansion(expansion)
    _check_container(model)
    dense = [x for x in model.layers if type(x) is keras.layers.Dense]
    if len(dense) < 2:
        raise ValueError(
            "`model` must have a hidden `Dense` layer and another after it. "
            f"Received: model '{model.name}' with {len(dense)} `Dense` layers"
        )
    hidden = {id(layer) for layer in dense[:-1]}
    for layer in dense[:-1]:
        _check_options(layer)

    def clone(layer: Any) -> Any:
        if id(layer) not in hidden:
            return type(layer).from_config(layer.get_config())
        return SubsetDense(
            layer.units,
            expansion,
            layer.activation,
            layer.kernel_initializer.clone(),
            name=layer.name,
            dtype=layer.dtype_policy,
            trainable=layer.trainable,
        )

    return keras.models.clone_model(model, clone_function=clone)


def selected_network(model: keras.Model) -> keras.Model:
    """The plain model of the neurons that are in use: what ships."""
    _check_container(model)
    if not model.built:
        raise ValueError(
            "`model` must be built: call it once, or give it an input shape. "
            f"Received: model '{model.name}'"
        )

    def clone(layer: Any) -> Any:
        if not isinstance(layer, SubsetDense):
            return type(layer).from_config(layer.get_config())
        return keras.layers.Dense(
            layer.units,
            activation=layer.activation,
            name=layer.name,
            dtype=layer.dtype_policy,
            trainable=layer.trainable,
        )

    plain = keras.models.clone_model(model, clone_function=clone)
    for mine, other in zip(model.layers, plain.layers):
        if isinstance(mine, SubsetDense):
            used = ops.convert_to_numpy(mine.selection)
            kernel, bias = map(ops.convert_to_numpy, (mine.kernel, mine.bias))
            other.set_weights([kernel[:, used], bias[used]])
        else:
            other.set_weights(mine.get_weights())
    return plain


def _check_container(model: Any) -> None:
    if not internals.is_container(model):
        raise ValueError(
            "`model` must be a Sequential or Functional model. "
            f"Received: {model!r}"
        )


def _check_options(layer: keras.layers.Dense) -> None:
    """Raises if the layer has what a `SubsetDense` has not."""
    given = layer.get_config()
    kept = ("name", "units", "activation", "kernel_initializer")
    usual = keras.layers.Dense(layer.units).get_config()
    other = {
        key: value
        for key, value in given.items()
        if key not in (*kept, "dtype", "trainable") and value != usual.get(key)
    }
    if other:
        raise ValueError(
            "The hidden `Dense` layers of `model` may have an activation and a "
            "kernel initializer of their own, and no other option. "
            f"Received: layer '{layer.name}' with {other}"
        )
