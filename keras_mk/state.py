"""All that a model carries beside its config, given to a copy of it."""

import types
from collections.abc import Iterator
from functools import cache
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk import trainability
from keras_mk.walk import walk

_RULES = (
    keras.constraints.Constraint,
    keras.initializers.Initializer,
    keras.regularizers.Regularizer,
)
_SCALARS = (bool, int, float, complex, str, bytes, types.NoneType, np.generic)


class Unlike(ValueError):
    """A copy made of a model's config has not all that the model has."""


def layers_by_key(model: Any) -> dict[str, Any]:
    """The model, under "", and every layer in it."""
    return {"": model, **{found.key: found.layer for found in walk(model)}}


def give_state(source: Any, target: Any) -> None:
    """Makes a model that was made from the config of another equal to it.

    Values, names, paths, the flags of what is frozen, seeds, dtype policies,
    and attributes that were set after construction. Not what `compile` was
    told.

    Raises:
        Unlike: If the model does not have the layers and the variables of the
            other.
    """
    mine, theirs = _own_layers(source), _own_layers(target)
    if list(mine) != list(theirs):
        raise Unlike(
            f"Model '{source.name}' cannot be copied: a model that Keras makes "
            "from its config does not have the same layers. They have to be "
            "made by a constructor or `build`, from what is in the config. "
            f"The difference: {sorted(set(mine) ^ set(theirs)) or 'the order'}"
        )
    pairs = list(zip(mine.values(), theirs.values()))
    for ours, copy in pairs:
        _give_lora(ours, copy)
    # First, as layers may keep more than their variables, and vocabularies.
    internals.transfer_state(source, target)
    for key, (ours, copy) in zip(mine, pairs):
        _give_attributes(ours, copy)
        _give_variables(key, ours, copy)
        internals.give_names(ours, copy)
        internals.give_dtype_policy(ours, copy)
    trainability.set_flags(theirs, trainability.flags_of(mine))
    internals.refresh_tracking(target)


def _own_layers(model: Any) -> dict[str, Any]:
    """Without those of a KerasHub task's preprocessor, which copies share."""
    preprocessor = internals.preprocessor_of(model)
    shared = set()
    if isinstance(preprocessor, keras.layers.Layer):
        shared = set(map(id, internals.flatten_layers(preprocessor)))
    return {
        key: layer
        for key, layer in layers_by_key(model).items()
        if id(layer) not in shared
    }


def _give_lora(source: Any, target: Any) -> None:
    if getattr(source, "lora_enabled", False) and not target.lora_enabled:
        target.enable_lora(source.lora_rank, lora_alpha=source.lora_alpha)


def _give_variables(key: str, source: Any, target: Any) -> None:
    ours, theirs = (internals.own_variables(x) for x in (source, target))
    if [v.shape for v in ours] != [v.shape for v in theirs]:
        raise Unlike(
            f"Layer '{source.name}' at '{key}' cannot be copied: what Keras "
            "makes from its config has the variables "
            f"{[(v.name, v.shape) for v in theirs]} instead of "
            f"{[(v.name, v.shape) for v in ours]}"
        )
    for variable, copy in zip(ours, theirs):
        copy.assign(np.array(ops.convert_to_numpy(variable)))
        for name in ("regularizer", "constraint"):
            rule = getattr(variable, name, None)
            if not _same(rule, getattr(copy, name, None)):
                setattr(copy, name, rule)
    for generator, copy in zip(
        internals.seed_generators(source), internals.seed_generators(target)
    ):
        copy.state.assign(np.array(ops.convert_to_numpy(generator.state)))


def _give_attributes(source: Any, target: Any) -> None:
    for name, value in _data(source):
        if not _same(value, vars(target).get(name, _same)):
            setattr(target, name, _copied(value))


def _data(layer: Any) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(layer).items()):
        if name not in _machinery() and _is_data(value):
            yield name, value


@cache
def _machinery() -> frozenset[str]:
    """Attributes that are Keras's business, or the backend's."""
    inputs = keras.Input((1,), name="input")
    models = [
        keras.Model(inputs, inputs, name="model"),
        keras.Sequential(name="model"),
    ]
    return frozenset(name for model in models for name in vars(model)) - {
        "activity_regularizer",
        "autocast",
        "supports_jit",
        "_supports_masking",
        "_remat_mode",
    }


def _is_data(value: Any) -> bool:
    if isinstance(value, types.FunctionType):
        # A closure may hold a part of the other model.
        return value.__closure__ is None
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_data, value))
    if isinstance(value, dict):
        return all(map(_is_data, (*value, *value.values())))
    return isinstance(value, (*_SCALARS, *_RULES, np.ndarray))


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, _RULES):
        return type(a) is type(b) and a.get_config() == b.get_config()
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    # Keras's own lists and dicts are equal to the plain ones.
    return bool(a == b)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(_copied, value))
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(map(_copied, value))
    return value.copy() if isinstance(value, np.ndarray) else value
