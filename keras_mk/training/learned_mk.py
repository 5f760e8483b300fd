"""Majority kernels with mixing weights that are learned."""

from typing import Any

import keras
from keras import ops

from keras_mk import mixing
from keras_mk.collapse import collapse
from keras_mk.copy_model import copy_model
from keras_mk.layers import rules
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.training.adversarial_mk import require_majority_kernels
from keras_mk.training.around import AroundModel
from keras_mk.walk import walk


@keras.saving.register_keras_serializable(package="keras_mk")
class LearnedMK(AroundModel):
    """Learns how to mix the copies: the paper's `min over w and p`.

    It is there to be compared with: the paper reports that it overfits.
    Nothing is drawn; each element of each kernel has mixing weights of its
    own, the softmax of weights that start at zero and are trained with the
    copies, and the mixture that they make is used in training and afterwards.

    Args:
        model: A built model with majority kernels. Its copies are trained in
            place; what has been learned is this model, or its
            `plain_model()`, and not their average.
        **kwargs: As `keras.Model`.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> import numpy as np
    >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model = keras_mk.training.LearnedMK(
    ...     keras_mk.expand(plain, copies="independent")
    ... )
    >>> model.compile("sgd", "mse")
    >>> history = model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    >>> model.plain_model().count_params()
    4
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        require_majority_kernels(model)
        if not model.built:
            raise ValueError(
                "`model` must be built: call it once, or give it an input "
                f"shape. Received: model '{model.name}'"
            )
        self.logits = [
            self.add_weight(
                name=f"logits_{index}",
                shape=(layer.expansion, *getattr(layer, f"{name}s")[0].shape),
                initializer="zeros",
            )
            for index, (layer, name) in enumerate(_kernels(model))
        ]
        self.built = True

    def _mixing_weights(self) -> dict[tuple[int, str], Any]:
        return {
            (id(layer), name): ops.unstack(ops.softmax(logits, axis=0))
            for (layer, name), logits in zip(_kernels(self.model), self.logits)
        }

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        p = self._mixing_weights()

        def rule(layer: Any, name: str, copies: list[Any], state: Any) -> Any:
            return mixing.mixture(copies, p[id(layer), name])

        with rules.mixed_by(rule):
            return self.model(inputs, training=training)

    def plain_model(self) -> keras.Model:
        """The plain model whose kernels are the learned mixtures."""
        p = self._mixing_weights()
        copy = copy_model(self.model)
        for (mine, name), (other, _) in zip(
            _kernels(self.model), _kernels(copy)
        ):
            values = [v.value for v in getattr(mine, f"{name}s")]
            mixed = mixing.mixture(values, p[id(mine), name])
            mixed = ops.convert_to_numpy(mixed)
            for variable in getattr(other, f"{name}s"):
                variable.assign(mixed)
        return collapse(copy)


def _kernels(model: keras.Model) -> list[tuple[Any, str]]:
    """Every trainable layer with copies, with the name of each kernel."""
    return [
        (found.layer, name)
        for found in walk(model)
        if isinstance(found.layer, MajorityKernel)
        and found.layer.trainable
        and found.layer.expansion > 1
        for name in found.layer.kernel_names
    ]
