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
    included = _matcher(include, found, "include")
    excluded = _matcher(exclude, found, "exclude")
    owners = _owners(found)
    reasons = []
    for f in found:
        reason = why_not(f, owners)
        if not reason and include is not None and not included(f):
            reason = "not included"
        if not reason and exclude is not None and excluded(f):
            reason = "excluded"
        reasons.append(reason)
    return found, reasons


def why_not(f: Found, owners: dict[int, list[str]]) -> str:
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
        others = [
            path for path in owners.get(id(variable), ()) if path != f.path
        ]
        if others:
            return f"its weights are tied to {others[0]}"
    return ""


def _is_recurrent(layer: Any) -> bool:
    return isinstance(layer, keras.layers.RNN) or hasattr(layer, "state_size")


def _owners(found: list[Found]) -> dict[int, list[str]]:
    owners: dict[int, list[str]] = {}
    for f in found:
        for variable in internals.own_variables(f.layer):
            owners.setdefault(id(variable), []).append(f.path)
    return owners


def _matcher(
    spec: Any, found: list[Found], argument: str
) -> Callable[[Found], bool]:
    """A test of layers made of classes, patterns and functions."""
    specs = spec if isinstance(spec, (list, tuple)) else [spec]
    tests = [_test_of(s, argument) for s in specs if s is not None]
    for s, test in zip((s for s in specs if s is not None), tests, strict=True):
        if not any(test(f) for f in found):
            paths = [f.path for f in found]
            near = difflib.get_close_matches(str(s), paths, 5, 0.3) or paths[:5]
            raise ValueError(
                f"`{argument}` matches no layer of the model. The nearest "
                f"paths are {near}. Received: {argument}={s!r}"
            )
    return lambda f: any(test(f) for test in tests)


def _test_of(spec: Any, argument: str) -> Callable[[Found], bool]:
    if isinstance(spec, type) and issubclass(spec, keras.layers.Layer):
        return lambda f: isinstance(f.layer, spec)
    if isinstance(spec, str):
        try:
            pattern = re.compile(spec)
        except re.error as error:
            raise ValueError(
                f"`{argument}` is not a regular expression ({error}). "
                f"Received: {argument}={spec!r}"
            ) from error
        return lambda f: pattern.search(f.path) is not None
    if callable(spec):
        return lambda f: bool(spec(f.layer))
    raise ValueError(
        f"`{argument}` must be a layer class, a regular expression, a function "
        f"of a layer, or a list of them. Received: {argument}={spec!r}"
    )
