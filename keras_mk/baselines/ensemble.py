"""Ensembles: several models that vote."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk.validation import check_flag
from keras_mk.validation import check_models


@keras.saving.register_keras_serializable(package="keras_mk")
class Ensemble(keras.Model):
    """The average of what several models predict, as one model.

    It can be evaluated, saved and exported as any other model, and be the
    teacher in a distillation.

    Args:
        members: Models of the same inputs and outputs. They are held, not
            copied.
        from_logits: Whether the members predict logits. The ensemble then
            averages probabilities and predicts their logarithm, which are
            logits too. Defaults to `False`: outputs are averaged as they are.
        **kwargs: As `keras.Model`.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_mk.baselines import Ensemble
    >>> members = [
    ...     keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    ...     for _ in range(3)
    ... ]
    >>> tuple(Ensemble(members).predict(np.ones((2, 3)), verbose=0).shape)
    (2, 1)
    """

    def __init__(
        self,
        members: Sequence[keras.Model],
        from_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        members = check_models("members", members)
        check_flag("from_logits", from_logits)
        shapes = {
            str(m.output_shape) for m in members if internals.is_container(m)
        }
        if len(shapes) > 1:
            raise ValueError(
                "`members` must have outputs of one shape. "
                f"Received: {sorted(shapes)}"
            )
        super().__init__(**{"autocast": False, **kwargs})
        self.members = members
        self.from_logits = bool(from_logits)
        if internals.is_container(members[0]) and members[0].built:
            self.build(members[0].input_shape)

    def build(self, input_shape: Any) -> None:
        for member in self.members:
            if not member.built:
                member.build(input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        outputs = [member(inputs, training=training) for member in self.members]
        if self.from_logits:
            logs = [ops.log_softmax(output) for output in outputs]
            total = ops.logsumexp(ops.stack(logs), axis=0)
            return total - ops.log(float(len(logs)))
        return ops.mean(ops.stack(outputs), axis=0)

    def save(self, *args: Any, **kwargs: Any) -> None:
        # Before a file is there.
        _check_separate(self.members)
        super().save(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        _check_separate(self.members)
        members = [keras.saving.serialize_keras_object(m) for m in self.members]
        return {
            **super().get_config(),
            "members": members,
            "from_logits": self.from_logits,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "Ensemble":
        members = [
            keras.saving.deserialize_keras_object(m, custom_objects)
            for m in config["members"]
        ]
        return cls(**{**config, "members": members})


def _check_separate(members: Sequence[keras.Model]) -> None:
    """Raises if members share weights, which Keras would save with one."""
    owners: dict[int, keras.Model] = {}
    for member in members:
        for weight in member.weights:
            owner = owners.setdefault(id(weight), member)
            if owner is not member:
                raise ValueError(
                    "An ensemble of members that share layers cannot be saved "
                    "or copied: Keras could not load it. Give each member "
                    "layers of its own. "
                    f"Received: members '{owner.name}' and '{member.name}', "
                    f"which share '{weight.path}'"
                )
