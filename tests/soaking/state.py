"""All the state of a model, listed by path, and what differs between two."""

import json
import re

import keras
import numpy as np

from keras_mk.layers import MajorityKernel
from tests.backends import to_numpy
from tests.soaking.places import places

# What belongs to majority kernels only, and has no plain counterpart.
MAJORITY = "mk."


def own_class(layer):
    """The class that a layer is, or would be without this package."""
    for cls in type(layer).__mro__:
        if not any(c.__module__.startswith("keras_mk") for c in cls.__mro__):
            return cls
    raise AssertionError(type(layer))


def groups(layer):
    """The layer's own variables by name; the copies of a kernel are one."""
    copies = {}
    if isinstance(layer, MajorityKernel) and layer.built:
        for name in layer.kernel_names:
            for variable in getattr(layer, f"{name}s"):
                copies[id(variable)] = name
    found = {}
    for variable in layer._trainable_variables + layer._non_trainable_variables:
        name = copies.get(id(variable))
        if name is None:
            # Keras numbers the variables that have no name.
            given = re.sub(r"^variable_[0-9]+$", "variable", variable.name)
            name, n = given, 2
            while name in found:
                name, n = f"{given}#{n}", n + 1
        found.setdefault(name, []).append(variable)
    return found


def state_of(model, copies=False):
    """Every state that a model carries, as `path:field` -> value.

    Of a model with majority kernels it is the state of the plain model that
    it stands for; with `copies`, also that of its copies.
    """
    state = {}
    owners = {}
    for path, layer in places(model):
        for field, value in _layer_state(layer, copies).items():
            state[f"{path}:{field}"] = value
        for name, variables in groups(layer).items():
            first = owners.setdefault(id(variables[0]), f"{path}:{name}")
            state[f"{path}:{name}.tied"] = first
    state[":weights"] = [
        name for path, layer in places(model) for name in _order(path, layer)
    ]
    return state


def _order(path, layer):
    return [f"{path}:{name}" for name in groups(layer)]


def _layer_state(layer, copies):
    cls = own_class(layer)
    state = {
        "class": f"{cls.__module__}.{cls.__name__}",
        "name": layer.name,
        "trainable": bool(layer.trainable),
        "dtype_policy": layer.dtype_policy.name,
    }
    for key, value in own_config(layer, cls).items():
        state[f"config.{key}"] = value
    for name, variables in groups(layer).items():
        values = [np.asarray(to_numpy(v)) for v in variables]
        state[f"{name}.shape"] = tuple(variables[0].shape)
        state[f"{name}.dtype"] = variables[0].dtype
        state[f"{name}.trainable"] = _one(
            [bool(v.trainable) for v in variables]
        )
        state[f"{name}.value"] = _mean(values)
        state[f"{name}.regularizer"] = _one([_penalty(v) for v in variables])
        state[f"{name}.constraint"] = _one(
            [_serialized(v.constraint) for v in variables]
        )
    majority = isinstance(layer, MajorityKernel)
    generators = list(getattr(layer, "_seed_generators", []))
    if majority:
        generators = [
            g for g in generators if g is not layer.mixing_seed_generator
        ]
    for i, generator in enumerate(generators):
        state[f"generator.{i}"] = np.asarray(to_numpy(generator.state))
    if copies and majority:
        state[f"{MAJORITY}expansion"] = layer.expansion
        state[f"{MAJORITY}seed"] = layer.seed
        state[f"{MAJORITY}generator"] = np.asarray(
            to_numpy(layer.mixing_seed_generator.state)
        )
        for name in layer.kernel_names:
            for k, variable in enumerate(getattr(layer, f"{name}s")):
                here = f"{MAJORITY}{name}_{k}"
                state[f"{here}.value"] = np.asarray(to_numpy(variable))
                state[f"{here}.name"] = variable.name
    return state


def own_config(layer, cls):
    """What the layer's own class says of it, without the layers inside."""
    if cls.get_config in (
        keras.layers.Layer.get_config,
        keras.Operation.get_config,
        keras.Model.get_config,
    ):
        # Keras keeps what the constructor was given, which never changes.
        return {}
    try:
        config = cls.get_config(layer)
    except Exception as error:
        # Some classes cannot tell it; as they cannot when plain.
        config = {"raises": type(error).__name__}
    told = {"name", "trainable", "dtype", "layers"}
    told |= {"input_layers", "output_layers", "expansion", "seed_generator"}
    if isinstance(layer, MajorityKernel) and "seed" not in vars(cls):
        told |= {"seed"}
    return {
        key: _normal(value)
        for key, value in config.items()
        if key not in told and not _holds_a_layer(value)
    }


def _holds_a_layer(value):
    if isinstance(value, keras.layers.Layer):
        return True
    if isinstance(value, dict):
        if "build_config" in value or value.get("class_name") == "Functional":
            return True
        return any(_holds_a_layer(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_a_layer(item) for item in value)
    return False


def _normal(value):
    text = json.dumps(value, default=str, sort_keys=True)
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _serialized(thing):
    if thing is None:
        return None
    return _normal(keras.saving.serialize_keras_object(thing))


def _penalty(variable):
    regularizer = variable.regularizer
    # A copy's share of the penalty stands for the penalty.
    if type(regularizer).__module__.startswith("keras_mk"):
        regularizer = regularizer.regularizer
    return _serialized(regularizer)


def _one(values):
    """The value that the copies share, or all of them."""
    return values[0] if all(v == values[0] for v in values) else values


def _mean(values):
    if len(values) == 1:
        return values[0]
    wide = [v.astype("float64") for v in values]
    return (sum(wide) / len(wide)).astype(values[0].dtype)


def differences(before, after, tolerance=0.0):
    """Of two states, `{key: (before, after)}` where they differ."""
    found = {}
    for key in {**before, **after}:
        ours, theirs = before.get(key, "(none)"), after.get(key, "(none)")
        if not _equal(ours, theirs, tolerance):
            found[key] = (ours, theirs)
    return found


def _equal(a, b, tolerance):
    if not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray):
        return a == b
    if np.shape(a) != np.shape(b) or isinstance(a, str) or isinstance(b, str):
        return False
    a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
    if tolerance == 0.0:
        return np.array_equal(a, b, equal_nan=True)
    scale = max(1.0, float(np.abs(b).max(initial=0)))
    return bool(np.all(np.abs(a - b) <= tolerance * scale))


def without_copies(state):
    return {
        key: value
        for key, value in state.items()
        if not field_of(key).startswith(MAJORITY)
    }


def field_of(key):
    return key.split(":", 1)[1]
