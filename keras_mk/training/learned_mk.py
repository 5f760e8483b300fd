"""Majority kernels with mixing weights that are learned."""

from typing import Any

import keras
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk import mixing
from keras_mk.collapse import collapse
from keras_mk.copy_model import copy_model
from keras_mk.layers import rules
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.training.adversarial_mk import require_majority_kernels
from keras_mk.training.around import AroundModel
from keras_mk.walk import walk

# A layer and the name of a kernel of it.
_Kernel = tuple[Any, str]


@keras.saving.register_keras_serializable(package="keras_mk")
class LearnedMK(AroundModel):
    """Learns how to mix the copies: the paper's `min over w and p`.

    It is there to be compared with: the paper reports that it overfits.
    Nothing is drawn; each element of each kernel has mixing weights of its
    own, the softmax of weights that start at zero and are trained with the
    copies, and the mixture that they make is used in training and afterwards,
    in frozen layers too. A frozen kernel stands still: its mixing weights are
    not trained either.

    Args:
        model: A built model with majority kernels, trained by Keras's own
            `train_step`. Its copies are trained in place; what has been
            learned is this model, or its `plain_model()`, and not their
            average.
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

    chooses_mixtures = True
    _kernels: list[_Kernel]

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        require_majority_kernels(model)
        if not model.built:
            raise ValueError(
                "`model` must be built: call it once, or give it an input "
                f"shape. Received: model '{model.name}'"
            )
        # Not by attribute: Keras would track the layers a second time.
        self.__dict__["_kernels"] = _kernels_of(model)
        self.logits = [
            self.add_weight(
                name=f"logits_{index}",
                shape=(len(copies), *copies[0].shape),
                initializer="zeros",
                # What ships is mixed in the dtype of the copies too.
                dtype=copies[0].dtype,
                autocast=False,
            )
            for index, copies in enumerate(map(_copies, self._kernels))
        ]
        self.built = True

    def _mixing_weights(self) -> dict[_Kernel, Any]:
        return {
            kernel: ops.unstack(ops.softmax(logits, axis=0))
            for kernel, logits in zip(self._kernels, self.logits)
        }

    def _trained(self, variables: list[Any], trained: bool) -> list[Any]:
        """Those variables that are trained, or those that are not.

        The logits of a frozen kernel are not, so that it stands still.
        """
        frozen = {
            id(logits)
            for kernel, logits in zip(self._kernels, self.logits)
            if _is_frozen(kernel)
        }
        return [
            v
            for v in variables
            if (self.trainable and v.trainable and id(v) not in frozen)
            is trained
        ]

    @property
    def trainable_variables(self) -> list[Any]:
        return self._trained(self.variables, True)

    @property
    def non_trainable_variables(self) -> list[Any]:
        return self._trained(self.variables, False)

    @property
    def trainable_weights(self) -> list[Any]:
        return self._trained(self.weights, True)

    @property
    def non_trainable_weights(self) -> list[Any]:
        return self._trained(self.weights, False)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        p = self._mixing_weights()

        def rule(layer: Any, name: str, copies: list[Any], state: Any) -> Any:
            return mixing.mixture(copies, p[layer, name])

        with rules.mixed_by(rule):
            return self.model(inputs, training=training)

    def plain_model(self) -> keras.Model:
        """The plain model whose kernels are the learned mixtures."""
        internals.synchronize(self)
        p = self._mixing_weights()
        copy = copy_model(self.model)
        for mine, other in zip(self._kernels, _kernels_of(copy), strict=True):
            values = [copy.value for copy in _copies(mine)]
            mixed = ops.convert_to_numpy(mixing.mixture(values, p[mine]))
            for variable in _copies(other):
                variable.assign(mixed)
        return collapse(copy)


def _kernels_of(model: keras.Model) -> list[_Kernel]:
    """Each kernel with several copies, whether it is frozen or not."""
    return [
        (found.layer, name)
        for found in walk(model)
        if isinstance(found.layer, MajorityKernel) and found.layer.expansion > 1
        for name in found.layer.kernel_names
    ]


def _copies(kernel: _Kernel) -> tuple[Any, ...]:
    layer, name = kernel
    copies: tuple[Any, ...] = getattr(layer, f"{name}s")
    return copies


def _is_frozen(kernel: _Kernel) -> bool:
    layer, _ = kernel
    return not layer.trainable or not any(
        copy.trainable for copy in _copies(kernel)
    )
