"""What `expand` would do to a model, and what it has done."""

from dataclasses import dataclass
from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk.choose import choose
from keras_mk.choose import owners_of
from keras_mk.choose import why_not
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.plan_rows import Counter
from keras_mk.plan_rows import Row
from keras_mk.plan_table import memory
from keras_mk.plan_table import names
from keras_mk.plan_table import table
from keras_mk.validation import check_model
from keras_mk.walk import walk

BYTES = 4


@dataclass(frozen=True, repr=False)
class Plan:
    """Every layer of a model, converted or not and why. Prints as a table.

    In a table of more than 40 layers, those that are alike share a line: of
    one class, with the same copies, with paths that differ only in numbers;
    and all without weights. `rows` always has them all. `unsaved` has, where
    it is of `summary`, the paths of layers with random state that Keras does
    not save.
    """

    rows: tuple[Row, ...]
    unsaved: tuple[str, ...] = ()

    @property
    def converted(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.expansion is not None)

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters before, in training, and deployed."""
        plain = sum(row.plain for row in self.rows)
        training = sum(row.training for row in self.rows)
        return {"before": plain, "training": training, "deployed": plain}

    @property
    def optimizer_bytes(self) -> dict[str, int]:
        """Memory of an optimizer's slots in training, at float32."""
        trainable = BYTES * sum(row.trainable for row in self.rows)
        return {"SGD": 0, "SGD with momentum": trainable, "Adam": 2 * trainable}

    def __repr__(self) -> str:
        return f"<Plan: {self._totals()}>"

    def __str__(self) -> str:
        slots = ", ".join(
            f"{name} {memory(size)}"
            for name, size in self.optimizer_bytes.items()
        )
        return (
            f"{table(self.rows)}{self._totals()}\n"
            f"optimizer slots in training: {slots}" + self._remark()
        )

    def _remark(self) -> str:
        if not self.unsaved:
            return ""
        return (
            "\nrandom state that Keras does not save, and "
            f"`keras_mk.callbacks.Resume` does: {names(self.unsaved)}"
        )

    def _totals(self) -> str:
        parameters = self.parameters
        frozen = sum(row.frozen for row in self.rows)
        return (
            f"{len(self.converted)} of {len(self.rows)} layers converted; "
            f"parameters {parameters['before']:,} before, "
            f"{parameters['training']:,} in training"
            + (f" ({frozen:,} of them frozen)" if frozen else "")
            + f", {parameters['deployed']:,} deployed"
        )


def plan(
    model: keras.Model,
    expansion: int = 3,
    *,
    include: Any = None,
    exclude: Any = None,
) -> Plan:
    """Shows what `keras_mk.expand` would do, and does nothing.

    Args:
        model: A built model.
        expansion: Number of copies of each kernel.
        include: Convert only these layers: a layer class, a regular
            expression that is searched for in the layer's path, a function
            `layer -> bool`, or a list of them. Defaults to all. What fits a
            layer that holds others, and none of these that can be converted,
            speaks for all of them.
        exclude: Do not convert these, likewise.

    Returns:
        A `Plan`, which prints as a table: of what `expand` does with the same
        arguments.

    Raises:
        ValueError: If the model is not built, has majority kernels already,
            or a pattern matches none of its layers.

    Example:

    >>> import keras, keras_mk
    >>> model = keras.Sequential(
    ...     [keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)]
    ... )
    >>> keras_mk.plan(model, expansion=3).parameters
    {'before': 46, 'training': 126, 'deployed': 46}
    """
    found, reasons = choose(model, expansion, include, exclude)
    count = Counter(model)
    rows = [
        count.plain(f.path, f.layer, None if reason else expansion, reason)
        for f, reason in zip(found, reasons, strict=True)
    ]
    return Plan(tuple(row for row in rows if row is not None))


def summary(model: keras.Model) -> Plan:
    """Prints the layers of a model with majority kernels as `plan` shows them.

    Returns:
        The `Plan` that is printed.

    Raises:
        ValueError: If `model` is not a Keras model.

    Example:

    >>> import keras, keras_mk
    >>> model = keras.Sequential(
    ...     [keras.Input((8,)), keras_mk.layers.MKDense(4, expansion=2)]
    ... )
    >>> found = keras_mk.summary(model)  # doctest: +ELLIPSIS
    ┏━━...
    >>> found.parameters
    {'before': 36, 'training': 68, 'deployed': 36}
    """
    found = summarize(model)
    print(found)
    return found


def summarize(model: keras.Model) -> Plan:
    """What `summary` prints."""
    check_model(model)
    found = walk(model)
    owners = owners_of(found)
    count = Counter(model)
    rows = [
        count.majority(f.path, f.layer)
        if isinstance(f.layer, MajorityKernel)
        else count.plain(f.path, f.layer, None, why_not(f, owners) or "plain")
        for f in found
    ]
    return Plan(
        tuple(row for row in rows if row is not None),
        tuple(f.path for f in found if _has_unsaved_state(f.layer)),
    )


def _has_unsaved_state(layer: Any) -> bool:
    saved = getattr(layer, "mixing_seed_generator", None)
    return any(g is not saved for g in internals.seed_generators(layer))
