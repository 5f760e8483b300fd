"""An ensemble distilled into one model, by Keras's own distillation."""

from typing import Any

import keras
from keras import ops

from keras_mk.copy_model import copy_model
from keras_mk.training.around import check_trained_as_usual
from keras_mk.validation import check_number


@keras.saving.register_keras_serializable(package="keras_mk")
class DivergenceOfLogits(keras.losses.Loss):
    """`KL(softmax(y_true), softmax(y_pred))`, times `scale`.

    Keras's own default for distillation, `"kl_divergence"`, takes logits for
    probabilities.
    """

    def __init__(self, scale: float = 1.0, **kwargs: Any) -> None:
        check_number("scale", scale, at_least=0)
        super().__init__(**kwargs)
        self.scale = float(scale)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        teacher, student = ops.log_softmax(y_true), ops.log_softmax(y_pred)
        terms = ops.exp(teacher) * (teacher - student)
        return self.scale * ops.sum(terms, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


def distiller(
    teacher: keras.Model,
    student: keras.Model,
    temperature: float = 3.0,
    student_weight: float = 0.5,
) -> keras.distillation.Distiller:
    """A model that trains `student` on the logits of `teacher`.

    `compile` it and `fit` it as any other; the student is trained in place,
    and `distiller.student` afterwards. It may have majority kernels. Keras
    freezes the teacher that it is given, so it is given a copy.

    Args:
        teacher: A trained model that predicts logits, for example an
            `Ensemble(members, from_logits=True)`.
        student: A model that predicts as many logits, trained by Keras's own
            `train_step`.
        temperature: What the logits are divided by: a finite number above 0.
            Defaults to 3.
        student_weight: Share of the loss on the labels, from 0 to 1; the rest
            is on the teacher's logits. Defaults to 0.5.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_mk import baselines
    >>> def network():
    ...     return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    >>> student = network()
    >>> model = baselines.distiller(network(), student)
    >>> model.compile(
    ...     "sgd",
    ...     keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    ... )
    >>> history = model.fit(np.ones((4, 3)), np.zeros((4,)), verbose=0)
    """
    check_number("temperature", temperature, above=0)
    check_number("student_weight", student_weight, at_least=0, at_most=1)
    if not isinstance(teacher, keras.Model):
        raise TypeError(
            f"`teacher` must be a `keras.Model`. Received: teacher={teacher!r}"
        )
    check_trained_as_usual("student", student, "Distiller")
    temperature = float(temperature)
    return keras.distillation.Distiller(
        teacher=copy_model(teacher),
        student=student,
        distillation_losses=keras.distillation.LogitsDistillation(
            temperature=temperature,
            # Gradients of softened logits are smaller by its square.
            loss=DivergenceOfLogits(scale=temperature**2),
        ),
        student_loss_weight=float(student_weight),
    )
