"""All that a training is made of between two epochs, in a folder."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals

_WEIGHTS, _SEEDS, _WHAT = "model.weights.h5", "seeds.npz", "training.json"


def check_ready(model: keras.Model) -> None:
    """Raises if a model has no variables yet, or no optimizer."""
    if not model.built:
        raise ValueError(
            "The model must be built before `fit`, so that what was written "
            "can be put into it. Call it on a batch of data first. Received: "
            f"model '{model.name}'"
        )
    if getattr(model, "optimizer", None) is None:
        raise ValueError(
            "The model must be compiled, so that its optimizer is restored as "
            f"well. Received: model '{model.name}'"
        )


def write(model: keras.Model, folder: Path, seeds: dict[str, Any]) -> None:
    """Writes a new folder, with seeds as `seeds_in` gives them."""
    folder.mkdir()
    model.save_weights(folder / _WEIGHTS)
    np.savez(folder / _SEEDS, *map(_value, _seed_states(model)))
    what = {**seeds, **_description(model)}
    (folder / _WHAT).write_text(json.dumps(what, indent=1) + "\n")


def seeds_in(folder: Path) -> dict[str, Any]:
    """The `seed` of a training, and TensorFlow's, which it began with."""
    what = _what(folder)
    return {name: what[name] for name in ("seed", "tensorflow seed")}


def check_same(model: keras.Model, folder: Path, seed: int | None) -> None:
    """Raises if a folder has a training of another model or seed."""
    _build_optimizer(model)
    there, here = _what(folder), _description(model)
    if seed is not None:
        here = {"seed": seed, **here}
    for key, value in here.items():
        if there[key] != value:
            raise ValueError(
                f"'{folder.parent}' has another training, with "
                f"{_difference(key, there[key], value)}. Use a new folder, or "
                f"what it was begun with. Received: model '{model.name}'"
            )


def read(model: keras.Model, folder: Path) -> None:
    """Puts a model where it was when the folder was written."""
    _build_optimizer(model)
    model.load_weights(folder / _WEIGHTS)
    with np.load(folder / _SEEDS) as file:
        for state, name in zip(_seed_states(model), file.files, strict=True):
            state.assign(file[name])


def _build_optimizer(model: keras.Model) -> None:
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _seed_states(model: keras.Model) -> list[Any]:
    return [
        generator.state
        for layer in internals.flatten_layers(model)
        for generator in internals.seed_generators(layer)
    ]


def _value(variable: Any) -> Any:
    """Also of a variable of which each device has its own."""
    return ops.convert_to_numpy(ops.convert_to_tensor(variable))


def _what(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / _WHAT).read_text())
    return found


def _description(model: keras.Model) -> dict[str, Any]:
    """What tells one training from another; names may be made up."""
    layers = internals.flatten_layers(model)
    optimizer = model.optimizer
    return {
        "backend": keras.config.backend(),
        "layers": [type(layer).__name__ for layer in layers],
        "weights": [_kind(v) for v in model.weights],
        "seed generators": len(_seed_states(model)),
        "optimizer": type(optimizer).__name__,
        "optimizer's variables": [_kind(v) for v in optimizer.variables],
    }


def _kind(variable: Any) -> str:
    frozen = "" if variable.trainable else " not trained"
    return f"{tuple(variable.shape)} {variable.dtype}{frozen}"


def _difference(key: str, there: Any, here: Any) -> str:
    if not isinstance(there, list):
        return f"{key} {there!r} instead of {here!r}"
    if len(there) != len(here):
        return f"{len(there)} {key} instead of {len(here)}"
    at = next(i for i, (a, b) in enumerate(zip(there, here)) if a != b)
    return f"{there[at]!r} as {key}[{at}] instead of {here[at]!r}"
