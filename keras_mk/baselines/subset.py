"""Training a wide network of which a subset of neurons is used."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk.baselines import submodular
from keras_mk.layers.initializing import initializer_of_copy
from keras_mk.validation import check_count
from keras_mk.validation import check_expansion


@keras.saving.register_keras_serializable(package="keras_mk")
class SubsetDense(keras.layers.Layer):
    """A dense layer with more neurons than it uses.

    It has `expansion * units` neurons and uses the `units` that `selection`
    names; a `SubsetSelection` callback chooses them anew at every step.

    Args:
        units: How many neurons are used.
        expansion: How many times as many there are. Defaults to 3.
        activation: As `keras.layers.Dense`.
        kernel_initializer: As `keras.layers.Dense`.
        **kwargs: As `keras.layers.Layer`.

    Example:

    >>> import numpy as np
    >>> from keras_mk.baselines import SubsetDense
    >>> layer = SubsetDense(4, expansion=3)
    >>> tuple(layer(np.ones((2, 5))).shape)
    (2, 4)
    >>> tuple(layer.kernel.shape)
    (5, 12)
    """

    def __init__(
        self,
        units: int,
        expansion: int = 3,
        activation: Any = None,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        check_count("units", units)
        check_expansion(expansion)
        super().__init__(**kwargs)
        self.units = units
        self.expansion = expansion
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape: Any) -> None:
        neurons = self.expansion * self.units
        # Each group of `units` starts as a layer of that size would.
        groups = [
            initializer_of_copy(self.kernel_initializer, k)
            for k in range(self.expansion)
        ]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], neurons),
            initializer=lambda shape, dtype: ops.concatenate(
                [g((shape[0], self.units), dtype) for g in groups], axis=1
            ),
        )
        self.bias = self.add_weight(
            name="bias", shape=(neurons,), initializer="zeros"
        )
        self.selection = self.add_weight(
            name="selection",
            shape=(self.units,),
            dtype="int32",
            initializer=lambda shape, dtype: ops.arange(shape[0], dtype=dtype),
            trainable=False,
        )

    def call(self, inputs: Any) -> Any:
        kernel = ops.take(self.kernel, self.selection, axis=1)
        bias = ops.take(self.bias, self.selection, axis=0)
        return self.activation(ops.matmul(inputs, kernel) + bias)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape[:-1], self.units)

    def select(self, **options: Any) -> None:
        """Chooses the neurons to use; see `submodular.select`."""
        rows = ops.convert_to_numpy(self.kernel).T
        chosen = submodular.select(rows, self.units, **options)
        before = ops.convert_to_numpy(self.selection)
        self.selection.assign(keep_places(before, chosen))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "units": self.units,
            "expansion": self.expansion,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
        }


def keep_places(before: Any, chosen: Any) -> Any:
    """The chosen neurons, those that were in use at the places they had.

    The next layer has a weight per place, so a neuron that stays must not
    move.

    >>> keep_places([5, 7, 2], [2, 9, 5]).tolist()
    [5, 9, 2]
    """
    new = [neuron for neuron in chosen if neuron not in set(before)]
    kept = set(chosen)
    return np.array([n if n in kept else new.pop(0) for n in before], "int32")


class SubsetSelection(keras.callbacks.Callback):
    """Selects the neurons of every `SubsetDense` before each step.

    And once more at the end of training, as the paper does.

    Args:
        every: Steps from one selection to the next. Defaults to 1.
        **options: As `keras_mk.baselines.submodular.select`: `neighbours`,
            `alpha`, `beta`.
    """

    def __init__(self, every: int = 1, **options: Any) -> None:
        super().__init__()
        check_count("every", every)
        submodular.check_options(**options)
        self.every = every
        self.options = options
        self._step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not _subset_layers(self.model):
            raise ValueError(
                "`SubsetSelection` needs a model with `SubsetDense` layers. "
                f"Received: model '{self.model.name}'"
            )

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._step % self.every == 0:
            self._select()
        self._step += 1

    def on_train_end(self, logs: Any = None) -> None:
        self._select()

    def _select(self) -> None:
        internals.synchronize(self.model)
        for layer in _subset_layers(self.model):
            layer.select(**self.options)


def _subset_layers(model: Any) -> list[Any]:
    layers = internals.flatten_layers(model)
    return [layer for layer in layers if isinstance(layer, SubsetDense)]
