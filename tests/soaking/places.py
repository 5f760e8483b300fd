"""Every layer of a model with a path that no conversion changes.

It does not use `keras_mk.walk`, which is under test here.
"""

import keras

# Other views of the same layers, and things that are not part of a model.
_SKIPPED = frozenset(
    {
        "_layers",
        "_modules",
        "_functional",
        "_operations",
        "_metrics",
        "_loss_tracker",
        "_compile_metrics",
        "_compile_loss",
        "_parent_path",
        "_tracker",
        "optimizer",
        "preprocessor",
        "_preprocessor",
        "history",
    }
)


def places(model):
    """(path, layer) of the model and all below it, each layer once."""
    found = []
    _visit("", model, found, set())
    return found


def _visit(path, layer, found, seen):
    if id(layer) in seen:
        return
    seen.add(id(layer))
    found.append((path, layer))
    for name, child in _children(layer):
        _visit(f"{path}/{name}" if path else name, child, found, seen)


def is_container(layer):
    # `layers` of a Sequential or Functional model has an order of its own.
    return isinstance(layer, keras.Sequential) or (
        isinstance(layer, keras.Model) and hasattr(layer, "operations")
    )


def _children(layer):
    if is_container(layer):
        for i, child in enumerate(layer.layers):
            yield str(i), child
    attributes = dict(vars(layer))
    # torch keeps attributes that are modules elsewhere.
    attributes.update(attributes.get("_modules") or {})
    for name in sorted(attributes, key=lambda n: (n.startswith("_"), n)):
        hidden = name.startswith(("_self_", "__")) or name.endswith("_by_depth")
        if name not in _SKIPPED and not hidden:
            yield from _layers_in(name, attributes[name])


def _layers_in(name, value):
    if isinstance(value, keras.layers.Layer):
        if not isinstance(value, keras.metrics.Metric):
            yield name, value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _layers_in(f"{name}.{key}", value[key])
    elif type(value).__name__ in (
        "list",
        "tuple",
        "TrackedList",
        "ListWrapper",
    ):
        for i, item in enumerate(value):
            yield from _layers_in(f"{name}.{i}", item)
