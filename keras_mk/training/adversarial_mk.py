"""Adversarial majority kernels."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from keras_mk import mixing
from keras_mk.layers import rules
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.mixing import adversarial
from keras_mk.training.around import AroundModel
from keras_mk.training.two_pass import TwoPassModel
from keras_mk.validation import check_flag
from keras_mk.validation import check_number
from keras_mk.walk import walk


@keras.saving.register_keras_serializable(package="keras_mk")
class AdversarialMK(TwoPassModel):
    """Trains majority kernels whose mixtures raise the loss.

    Each step takes the gradient of the mixing weights p at `p = 1 / e`, moves
    p along it by `epsilon`, normalises it, and trains the copies on the
    mixture that this p makes (the paper's "Adversarial Only"). With
    `random=True`, its Adv-MK, that p is blended with random mixing weights
    first, by `u = KL(p, 1 / e) / log e`, so that copies which have become
    equal draw apart again. So a step costs two.

    The paper leaves two things open. Whether an element has mixing weights of
    its own or shares those of its output unit: `per`. And what normalising
    does to a negative entry: here it becomes zero.

    Outside of training, and in frozen layers, the model is what it was. A copy
    that is frozen by itself has its place in the mixture, and p is moved by
    what the gradients of the others say; a kernel whose copies are all frozen
    is mixed as if its gradient were zero. A layer that is called with
    `training=False` inside of the model uses its average, and warns.
    `keras_mk.collapse(model.model)` is the plain model.

    Args:
        model: A model with majority kernels, from `keras_mk.expand` or of
            `keras_mk.layers`, trained by Keras's own `train_step`. It is
            trained in place.
        epsilon: How far to move p: a finite number, at least 0.
        random: Whether to blend with random mixing weights. Defaults to
            `True`.
        per: `"element"` (the default) or `"unit"`.
        **kwargs: As `keras.Model`.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> import numpy as np
    >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model = keras_mk.training.AdversarialMK(
    ...     keras_mk.expand(plain, copies="independent"), epsilon=0.1
    ... )
    >>> model.compile("sgd", "mse")
    >>> history = model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    >>> shipped = keras_mk.collapse(model.model)
    """

    def __init__(
        self,
        model: keras.Model,
        epsilon: float,
        random: bool = True,
        per: str = "element",
        **kwargs: Any,
    ) -> None:
        check_number("epsilon", epsilon, at_least=0)
        check_flag("random", random)
        if per not in adversarial.PER:
            raise ValueError(
                f"`per` must be one of {adversarial.PER}. Received: per={per!r}"
            )
        super().__init__(model, **kwargs)
        require_majority_kernels(model)
        self.epsilon = float(epsilon)
        self.random = bool(random)
        self.per = per

    def first_pass(self) -> AbstractContextManager[Any]:
        return rules.mixed_by(rules.uniform_mixture)

    @contextmanager
    def second_pass(self, gradients: list[Any]) -> Iterator[None]:
        variables = self.trainable_variables
        of = {id(v): g for v, g in zip(variables, gradients)}

        def rule(layer: Any, name: str, copies: list[Any], state: Any) -> Any:
            if state is None:
                return None
            shares = [of.get(id(v)) for v in getattr(layer, f"{name}s")]
            gradient = _of_mixture(shares)
            if gradient is None:
                # As with a gradient of zero.
                if self.random:
                    return mixing.sampled_mixture(copies, state)
                return mixing.mean(copies)
            p = self._weights(copies, gradient, state)
            return mixing.mixture(copies, p)

        with rules.mixed_by(rule):
            yield

    def _weights(self, copies: list[Any], gradient: Any, state: Any) -> Any:
        """The mixing weights; nothing is differentiated through them."""
        still = [ops.stop_gradient(copy) for copy in copies]
        # In a TensorFlow graph the shape of a gradient may not be known.
        shape = tuple(copies[0].shape)
        gradient = ops.reshape(gradient, shape)
        p = adversarial.adversarial_weights(
            still, gradient, self.epsilon, self.per
        )
        if self.random:
            drawn = mixing.mixing_weights(
                state, len(copies), shape, gradient.dtype
            )
            p = adversarial.blend(p, list(drawn))
        return [ops.stop_gradient(q) for q in p]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "epsilon": self.epsilon,
            "random": self.random,
            "per": self.per,
        }


def _of_mixture(shares: list[Any]) -> Any:
    """The gradient of the mixture, of which each copy has an e-th.

    That is so at `p = 1 / e`; so any of the copies is enough to know it.

    Args:
        shares: Gradients of the copies, `None` where a copy is frozen.
    """
    known = [share for share in shares if share is not None]
    if not known:
        return None
    return sum(known[1:], known[0]) * (len(shares) / len(known))


def require_majority_kernels(model: keras.Model) -> None:
    layers = [model, *(found.layer for found in walk(model))]
    if not any(
        isinstance(layer, MajorityKernel) and layer.expansion > 1
        for layer in layers
    ):
        raise ValueError(
            "`model` must have majority kernels, of more than one copy. Make "
            "it with `keras_mk.expand(model)` first. "
            f"Received: model '{model.name}'"
        )
    for layer in layers:
        if isinstance(layer, AroundModel) and layer.chooses_mixtures:
            raise ValueError(
                "`model` must mix its copies at random, and "
                f"'{layer.name}' chooses the mixtures itself. Give the model "
                "that it is around. "
                f"Received: model '{model.name}' with a "
                f"`{type(layer).__name__}`"
            )
