"""Every layer of a model, with a path to it."""

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from itertools import count
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


@dataclass
class _Walk:
    """What has been found so far."""

    seen: set[int]
    found: list[Found] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


def walk(model: Any) -> list[Found]:
    """All layers below a model, each once, parents before children."""
    state = _Walk({id(model)})
    _walk(model, "", "", (), state)
    return state.found


def _walk(
    layer: Any, path: str, key: str, parents: tuple[Any, ...], state: _Walk
) -> None:
    parents = (*parents, layer)
    for name, position, child in _children(layer):
        if id(child) in state.seen:
            continue
        state.seen.add(id(child))
        child_path = _free(f"{path}/{name}" if path else name, state.paths)
        child_key = _free(f"{key}/{position}" if key else position, state.keys)
        state.found.append(Found(child_path, child_key, child, parents))
        _walk(child, child_path, child_key, parents, state)


def _free(name: str, taken: set[str]) -> str:
    """The name, or with a number if another layer has it.

    As those have that are in a dict at `"a.b"` and, in a dict in it, at `"b"`
    of `"a"`.
    """
    numbered = (f"{name}~{n}" for n in count(2))
    while name in taken:
        name = next(numbered)
    taken.add(name)
    return name


def _children(layer: Any) -> Iterator[tuple[str, str, Any]]:
    tracked = {id(child) for child in internals.sublayers(layer)}
    if internals.is_container(layer):
        for i, child in enumerate(layer.layers):
            yield child.name, f"layers.{i}", child
            tracked.discard(id(child))
    if tracked:
        yield from _attributes(layer, tracked)


def _attributes(
    layer: Any, tracked: set[int]
) -> Iterator[tuple[str, str, Any]]:
    """The children by the first attribute that has them.

    Where that is the `layers` that every model has, it stays their key, which
    is in saved files; but another attribute of theirs gives the name.
    """
    keys: dict[int, tuple[str, Any]] = {}
    names: dict[int, str] = {}
    for attribute, value in internals.saved_children(layer):
        for key, child in _layers_in(value, attribute):
            if id(child) in tracked:
                keys.setdefault(id(child), (key, child))
                if attribute != "layers":
                    names.setdefault(id(child), key)
    for identity, (key, child) in keys.items():
        yield names.get(identity, key).lstrip("_"), key, child


def _layers_in(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, keras.layers.Layer):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _layers_in(item, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _layers_in(item, f"{name}.{i}")
