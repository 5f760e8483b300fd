"""Every layer of a model, with a path to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras

from keras_mk import _keras_internals as internals


@dataclass(frozen=True)
class Found:
    """A layer in a model.

    Attributes:
        path: Where it is, for people: names of layers in Sequential and
            Functional models, names of attributes elsewhere.
        key: Where it is, the same on each backend and in each copy of the
            model: positions instead of names, which may be made up.
        layer: The layer.
        parents: The layers it is in, from the model on.
    """

    path: str
    key: str
    layer: Any
    parents: tuple[Any, ...]


def walk(model: Any) -> list[Found]:
    """All layers below a model, each once, parents before children."""
    found: list[Found] = []
    _walk(model, "", "", (), {id(model)}, found)
    return found


def _walk(
    layer: Any,
    path: str,
    key: str,
    parents: tuple[Any, ...],
    seen: set[int],
    found: list[Found],
) -> None:
    parents = (*parents, layer)
    for name, position, child in _children(layer):
        if id(child) in seen:
            continue
        seen.add(id(child))
        child_path = f"{path}/{name}" if path else name
        child_key = f"{key}/{position}" if key else position
        found.append(Found(child_path, child_key, child, parents))
        _walk(child, child_path, child_key, parents, seen, found)


def _children(layer: Any) -> Iterator[tuple[str, str, Any]]:
    tracked = {id(child) for child in internals.sublayers(layer)}
    if internals.is_container(layer):
        for i, child in enumerate(layer.layers):
            yield child.name, f"layers.{i}", child
            tracked.discard(id(child))
    if not tracked:
        return
    for attribute, value in internals.saved_children(layer):
        for name, child in _layers_in(value, attribute):
            if id(child) in tracked:
                yield name.lstrip("_"), name, child


def _layers_in(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, keras.layers.Layer):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _layers_in(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _layers_in(item, f"{name}.{i}")
