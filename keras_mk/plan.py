"""What `expand` would do to a model, and what it has done."""

import math
from dataclasses import dataclass
from typing import Any

import keras
from rich.console import Console
from rich.table import Table

from keras_mk import _keras_internals as internals
from keras_mk import registry
from keras_mk.choose import choose
from keras_mk.choose import why_not
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.walk import walk

BYTES = 4


@dataclass(frozen=True)
class Row:
    """One layer of a model.

    Attributes:
        path: Where the layer is.
        kind: Its class.
        expansion: Number of copies of its kernels; `None` if not converted.
        reason: Why it is not converted, or an empty string.
        plain: Parameters of the plain layer.
        training: Parameters while training with majority kernels.
        trainable: Of these, how many the optimizer updates.
    """

    path: str
    kind: str
    expansion: int | None
    reason: str
    plain: int
    training: int
    trainable: int


@dataclass(frozen=True)
class Plan:
    """Every layer of a model, converted or not and why. Prints as a table."""

    rows: tuple[Row, ...]

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

    def __str__(self) -> str:
        table = Table()
        table.add_column("layer", overflow="fold")
        table.add_column("class")
        table.add_column("copies", justify="right")
        table.add_column("before", justify="right")
        table.add_column("training", justify="right")
        table.add_column("deployed", justify="right")
        table.add_column("why not converted")
        for row in self.rows:
            table.add_row(
                row.path,
                row.kind,
                str(row.expansion or "-"),
                f"{row.plain:,}",
                f"{row.training:,}",
                f"{row.plain:,}",
                row.reason,
            )
        console = Console(width=120, color_system=None)
        with console.capture() as capture:
            console.print(table)
        parameters = self.parameters
        memory = ", ".join(
            f"{name} {size / 2**20:,.1f} MiB"
            for name, size in self.optimizer_bytes.items()
        )
        return (
            f"{capture.get()}"
            f"{len(self.converted)} of {len(self.rows)} layers converted; "
            f"parameters {parameters['before']:,} before, "
            f"{parameters['training']:,} in training, "
            f"{parameters['deployed']:,} deployed\n"
            f"optimizer slots in training: {memory}"
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
            `layer -> bool`, or a list of them. Defaults to all.
        exclude: Do not convert these, likewise.

    Returns:
        A `Plan`, which prints as a table.

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
    rows = [
        _row(f.path, f.layer, None if reason else expansion, reason)
        for f, reason in zip(found, reasons, strict=True)
    ]
    return Plan(tuple(row for row in rows if row is not None))


def summary(model: keras.Model) -> Plan:
    """The layers of a model with majority kernels, as `plan` shows them.

    Example:

    >>> import keras, keras_mk
    >>> model = keras.Sequential(
    ...     [keras.Input((8,)), keras_mk.layers.MKDense(4, expansion=2)]
    ... )
    >>> keras_mk.summary(model).parameters
    {'before': 36, 'training': 68, 'deployed': 36}
    """
    rows: list[Row | None] = []
    for f in walk(model):
        if isinstance(f.layer, MajorityKernel):
            rows.append(_mk_row(f.path, f.layer))
        else:
            rows.append(_row(f.path, f.layer, None, why_not(f, {}) or "plain"))
    return Plan(tuple(row for row in rows if row is not None))


def _size(variable: Any) -> int:
    return math.prod(variable.shape)


def _row(
    path: str, layer: Any, expansion: int | None, reason: str
) -> Row | None:
    variables = internals.own_variables(layer)
    if internals.sublayers(layer) and not variables:
        return None
    plain = sum(map(_size, variables))
    trainable = sum(_size(v) for v in variables if v.trainable)
    training = plain
    if expansion is not None:
        mk_class = registry.mk_class_of(layer)
        assert mk_class is not None
        count = len(mk_class.kernel_names)
        kernels = variables[:count]
        training += (expansion - 1) * sum(map(_size, kernels))
        trainable += (expansion - 1) * sum(
            _size(v) for v in kernels if v.trainable
        )
    return Row(
        path,
        type(layer).__name__,
        expansion,
        reason,
        plain,
        training,
        trainable,
    )


def _mk_row(path: str, layer: Any) -> Row:
    variables = internals.own_variables(layer)
    training = sum(map(_size, variables))
    kernels = sum(_size(getattr(layer, f"{n}s")[0]) for n in layer.kernel_names)
    return Row(
        path,
        type(layer).__name__,
        layer.expansion,
        "",
        training - (layer.expansion - 1) * kernels,
        training,
        sum(_size(v) for v in variables if v.trainable),
    )
