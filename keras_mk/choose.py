"""Which layers of a model are converted, and why the others are not."""

import difflib
import re
from collections.abc import Callable
from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk import registry
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.validation import check_expansion
from keras_mk.validation import check_model
from keras_mk.walk import Found
from keras_mk.walk import walk

Owners = dict[int, list[Found]]


def choose(
    model: keras.Model, expansion: int, include: Any, exclude: Any
) -> tuple[list[Found], list[str]]:
    """The layers of a model and why each is left alone ('' if converted)."""
    check_expansion(expansion)
    check_model(model)
    if not model.built:
        raise ValueError(
            f"Model '{model.name}' is not built, so that it has no kernels to "
            "copy. Call it on a batch, or `model.build(input_shape)`, first."
        )
    found = walk(model)
    if any(isinstance(f.layer, MajorityKernel) for f in found):
        raise ValueError(
            f"Model '{model.name}' has majority-kernel layers already. To "
            "change their number of copies, collapse it first: "
            "`keras_mk.expand(keras_mk.collapse(model), expansion)`."
        )
    owners = owners_of(found)
    reasons = [why_not(f, owners) for f in found]
    able = {
        id(f.layer)
        for f, reason in zip(found, reasons, strict=True)
        if not reason
    }
    included = _spoken_for(include, found, able, "include")
    excluded = _spoken_for(exclude, found, able, "exclude")
    for i, f in enumerate(found):
        if reasons[i]:
            continue
        if include is not None and id(f.layer) not in included:
            reasons[i] = "not included"
        elif id(f.layer) in excluded:
            reasons[i] = "excluded"
    return found, reasons


def why_not(f: Found, owners: Owners) -> str:
    """Why a layer cannot be converted, or an empty string."""
    layer = f.layer
    if _is_recurrent(layer) or any(_is_recurrent(p) for p in f.parents):
        return "RNN cell: it would draw anew at each time step"
    if registry.mk_class_of(layer) is None:
        if internals.sublayers(layer):
            return "holds other layers"
        if isinstance(layer, keras.layers.Embedding):
            return "embedding: a table, not a kernel"
        if hasattr(layer, "kernel"):
            return "custom layer: see keras_mk.register"
        return "no kernel"
    if not layer.built:
        return "not built"
    if getattr(layer, "lora_enabled", False):
        return "LoRA is enabled: merge it first"
    if getattr(layer, "quantization_mode", None) is not None:
        return "quantized"
    for variable in internals.own_variables(layer):
        for other in owners[id(variable)]:
            if other.layer is not f.layer:
                return f"its weights are tied to {other.path}"
    return ""


def _is_recurrent(layer: Any) -> bool:
    return isinstance(layer, keras.layers.RNN) or hasattr(layer, "state_size")


def owners_of(found: list[Found]) -> Owners:
    """The layers that have a variable, by the variable's identity."""
    owners: Owners = {}
    for f in found:
        for variable in internals.own_variables(f.layer):
            owners.setdefault(id(variable), []).append(f)
    return owners


def _spoken_for(
    spec: Any, found: list[Found], able: set[int], argument: str
) -> set[int]:
    """The identities of the layers that `include` or `exclude` means.

    What fits a layer that holds others, and none of these, means all of them:
    a class of attention layers means their projections.

    Args:
        spec: A class, a pattern, a function, or a list of them.
        found: The layers of the model.
        able: The identities of those that can be converted.
        argument: The name of the argument.
    """
    if spec is None:
        return set()
    specs = spec if isinstance(spec, (list, tuple)) else [spec]
    spoken: set[int] = set()
    for each in specs:
        test = _test_of(each, argument)
        fitting = [f.layer for f in found if test(f)]
        if not fitting:
            paths = [f.path for f in found]
            near = (
                difflib.get_close_matches(str(each), paths, 5, 0.3) or paths[:5]
            )
            raise ValueError(
                f"`{argument}` matches no layer of the model. The nearest "
                f"paths are {near}. Received: {argument}={each!r}"
            )
        fits = set(map(id, fitting))
        spoken |= fits
        for layer in fitting:
            held = set(map(id, internals.flatten_layers(layer))) - {id(layer)}
            inside = held & able
            if not inside & fits:
                spoken |= inside
    return spoken


def _test_of(spec: Any, argument: str) -> Callable[[Found], bool]:
    if isinstance(spec, type):
        if issubclass(spec, keras.layers.Layer):
            return lambda f: isinstance(f.layer, spec)
        raise _not_a_spec(spec, argument)
    if isinstance(spec, str):
        try:
            pattern = re.compile(spec)
        except re.error as error:
            raise ValueError(
                f"`{argument}` is not a regular expression ({error}). "
                f"Received: {argument}={spec!r}"
            ) from error
        return lambda f: pattern.search(f.path) is not None
    if callable(spec) and not isinstance(spec, keras.layers.Layer):
        return lambda f: bool(spec(f.layer))
    raise _not_a_spec(spec, argument)


def _not_a_spec(spec: Any, argument: str) -> ValueError:
    return ValueError(
        f"`{argument}` must be a layer class, a regular expression, a function "
        f"of a layer, or a list of them. Received: {argument}={spec!r}"
    )
