"""What a layer costs, before and with majority kernels."""

import math
from dataclasses import dataclass
from typing import Any

from keras_mk import _keras_internals as internals
from keras_mk import convert
from keras_mk import registry


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
        frozen: Of these, how many it would update, were they not frozen.

    Weights that are tied to those of a layer before it do not count.
    """

    path: str
    kind: str
    expansion: int | None
    reason: str
    plain: int
    training: int
    trainable: int
    frozen: int


class Counter:
    """Makes the rows of one model, in the order of its layers."""

    def __init__(self, model: Any) -> None:
        self.trained = set(map(id, model.trainable_variables))
        self.counted: set[int] = set()

    def plain(
        self, path: str, layer: Any, expansion: int | None, reason: str
    ) -> Row | None:
        """The row of a layer, or `None` if there is nothing to say of it."""
        sizes = self._sizes(layer)
        if internals.sublayers(layer) and not internals.own_variables(layer):
            return None
        plain = sum(sizes.values())
        if expansion is not None:
            mk_class = registry.mk_class_of(layer)
            assert mk_class is not None
            for name in mk_class.kernel_names:
                sizes[id(convert.plain_kernel(layer, name))] *= expansion
        return self._row(path, layer, expansion, reason, plain, sizes)

    def majority(self, path: str, layer: Any) -> Row:
        """The row of a layer that has majority kernels."""
        sizes = self._sizes(layer)
        plain = sum(sizes.values())
        for name in layer.kernel_names if layer.built else ():
            plain -= sum(_size(v) for v in getattr(layer, f"{name}s")[1:])
        return self._row(path, layer, layer.expansion, "", plain, sizes)

    def _sizes(self, layer: Any) -> dict[int, int]:
        """The sizes of its variables that no layer before it has."""
        variables = internals.own_variables(layer)
        sizes = {
            id(v): _size(v) for v in variables if id(v) not in self.counted
        }
        self.counted |= sizes.keys()
        return sizes

    def _row(
        self,
        path: str,
        layer: Any,
        expansion: int | None,
        reason: str,
        plain: int,
        sizes: dict[int, int],
    ) -> Row:
        able = set(map(id, internals.variables_to_train(layer)))
        return Row(
            path,
            type(layer).__name__,
            expansion,
            reason,
            plain=plain,
            training=sum(sizes.values()),
            trainable=sum(n for v, n in sizes.items() if v in self.trained),
            frozen=sum(n for v, n in sizes.items() if v in able - self.trained),
        )


def _size(variable: Any) -> int:
    return math.prod(variable.shape)
