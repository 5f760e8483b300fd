"""The inputs of a model: their shapes, types and names."""

from typing import Any

import keras
import numpy as np

from keras_mk import _keras_internals as internals

# A dynamic axis other than the batch, in inputs made for a comparison.
LENGTH = 7
IMAGE_LENGTH = 64


def encoded_signature(model: keras.Model, given: Any = None) -> list[Any]:
    """What a model is called with: JSON with one item per argument.

    Each input is a dict of `shape`, `dtype` and `name`; the batch size is
    dynamic. Inputs that are given in a dict have its keys as names.

    Args:
        model: A built model.
        given: The user's `input_signature`, if any: a structure of anything
            with a shape and a dtype.
    """
    signature = internals.input_signature(model) if given is None else given
    if not isinstance(signature, (list, tuple)):
        signature = [signature]
    taken: set[str] = set()
    return [_encode(item, None, taken) for item in signature]


def _encode(item: Any, key: str | None, taken: set[str]) -> Any:
    if isinstance(item, dict):
        return {k: _encode(v, str(k), taken) for k, v in item.items()}
    if isinstance(item, (list, tuple)):
        return [_encode(v, None, taken) for v in item]
    if not hasattr(item, "shape") or not hasattr(item, "dtype"):
        raise ValueError(
            "`input_signature` must be made of `keras.InputSpec`s, or of other "
            "things with a `shape` and a `dtype`, in the structure in which "
            f"the model takes them. Received: {item!r}"
        )
    if item.shape is None or item.dtype is None or len(item.shape) == 0:
        raise ValueError(
            "Each input in `input_signature` needs a shape, with the batch as "
            f"its first axis, and a dtype. Received: {item!r}"
        )
    name = key or getattr(item, "name", None) or "inputs"
    number = 0
    while (unique := f"{name}_{number}" if number else name) in taken:
        number += 1
    taken.add(unique)
    return {
        "shape": [None, *(_size(size) for size in item.shape[1:])],
        "dtype": keras.backend.standardize_dtype(item.dtype),
        "name": unique,
    }


def _size(size: Any) -> int | None:
    return None if size is None else int(size)


def leaves(signature: Any) -> list[dict[str, Any]]:
    """The inputs in a signature, in order."""
    if isinstance(signature, list):
        return [leaf for item in signature for leaf in leaves(item)]
    if set(signature) == {"shape", "dtype", "name"}:
        return [signature]
    return [leaf for item in signature.values() for leaf in leaves(item)]


def random_inputs(signature: Any, batch: int) -> dict[str, Any]:
    """Arrays by name that fit a signature.

    Integers are 0 and 1, which every vocabulary and every mask has.
    """
    random = np.random.default_rng(batch)
    arrays = {}
    for leaf in leaves(signature):
        length = IMAGE_LENGTH if len(leaf["shape"]) > 3 else LENGTH
        rest = [length if s is None else s for s in leaf["shape"][1:]]
        if leaf["dtype"] == "string":
            raise ValueError(
                "Inputs of type string cannot be made up for a comparison. "
                "Pass `verify=batch` with a batch of inputs, or "
                f"`verify=False`. Received: {leaf}"
            )
        if leaf["dtype"] == "bool" or "int" in leaf["dtype"]:
            array: Any = random.integers(2, size=(batch, *rest))
        else:
            array = random.normal(size=(batch, *rest))
        arrays[leaf["name"]] = array.astype(leaf["dtype"])
    return arrays


def named_inputs(signature: Any, batch: Any) -> dict[str, Any]:
    """Arrays by name, from a batch as the model is called with."""
    specs = leaves(signature)
    values = _values(signature, batch)
    if len(values) != len(specs):
        raise ValueError(
            f"`verify` must be a batch of the model's {len(specs)} inputs, in "
            "the structure in which it takes them. Received: "
            f"{len(values)} arrays"
        )
    return {
        spec["name"]: keras.ops.convert_to_numpy(value).astype(spec["dtype"])
        for spec, value in zip(specs, values)
    }


def _values(signature: Any, batch: Any) -> list[Any]:
    """The leaves of a batch in the order of the signature's."""
    if isinstance(batch, dict):
        structure = signature[0] if isinstance(signature, list) else signature
        if not isinstance(structure, dict) or set(structure) != set(batch):
            raise ValueError(
                "`verify` must have the inputs of the model. Received: "
                f"{sorted(batch)}"
            )
        return [batch[key] for key in structure]
    if isinstance(batch, (list, tuple)):
        return list(keras.tree.flatten(batch))
    return [batch]
