"""What users change in a model that is made already."""

import keras

from tests.backends import to_numpy
from tests.soaking.places import is_container
from tests.soaking.places import places
from tests.soaking.state import groups
from tests.soaking.state import own_class


class NotHere(Exception):
    """The model has nothing that this change could change."""


def change(model, item, x):
    """Makes one change; which layer it meets is the same in plain twins."""
    _CHANGES[item["change"]](model, item, x)


def _at(eligible, item):
    eligible = list(eligible)
    if not eligible:
        raise NotHere(item["change"])
    return eligible[item["at"] % len(eligible)]


def _layers(model):
    return [layer for _, layer in places(model)]


def _layer_trainable(model, item, x):
    layer = _at((la for la in _layers(model) if la.weights), item)
    layer.trainable = item["value"] == 2


def _groups(model):
    """All groups of variables that training could change, each once."""
    layers = _layers(model)
    able = {id(v) for layer in layers for v in layer._trainable_variables}
    found = {
        id(variables[0]): variables
        for layer in layers
        for variables in groups(layer).values()
        if id(variables[0]) in able
    }
    return list(found.values())


def _variable_trainable(model, item, x):
    for variable in _at(_groups(model), item):
        variable.trainable = item["value"] == 2


def _having(model, attribute, bases=(keras.layers.Layer,)):
    return [
        layer
        for layer in _layers(model)
        if issubclass(own_class(layer), bases) and hasattr(layer, attribute)
    ]


_WITH_KERNEL = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
)


def _activation(model, item, x):
    layer = _at(_having(model, "activation", _WITH_KERNEL), item)
    name = ["sigmoid", "softsign", "elu"][item["value"]]
    layer.activation = keras.activations.get(name)


def _rate(model, item, x):
    # Keras makes no seed generator for a rate of 0.
    drops = _having(model, "rate", (keras.layers.Dropout,))
    layer = _at([layer for layer in drops if layer.rate > 0], item)
    layer.rate = [0.0, 0.25, 0.75][item["value"]]


def _epsilon(model, item, x):
    norms = (keras.layers.LayerNormalization, keras.layers.BatchNormalization)
    layer = _at(_having(model, "epsilon", norms), item)
    layer.epsilon = [0.01, 0.1, 1.0][item["value"]]


def _regularizer_attribute(model, item, x):
    layer = _at(_having(model, "kernel_regularizer", _WITH_KERNEL), item)
    layer.kernel_regularizer = _regularizer(item)


def _regularizer(item):
    return [None, keras.regularizers.L2(0.5), keras.regularizers.L1(0.25)][
        item["value"]
    ]


def _regularizer_of_variable(model, item, x):
    for variable in _at(_groups(model), item):
        variable.regularizer = _regularizer(item)


def _constraint(item):
    return [
        None,
        keras.constraints.MaxNorm(1.0),
        keras.constraints.UnitNorm(),
    ][item["value"]]


def _constraint_attribute(model, item, x):
    layer = _at(_having(model, "kernel_constraint", _WITH_KERNEL), item)
    layer.kernel_constraint = _constraint(item)


def _constraint_of_variable(model, item, x):
    for variable in _at(_groups(model), item):
        variable.constraint = _constraint(item)


def _name(model, item, x):
    """Of the model, or of a layer that no graph refers to by name."""
    free = [
        layer
        for path, layer in places(model)
        if not path.rpartition("/")[2].isdigit() and not is_container(layer)
    ]
    layer = _at([model, *free], item)
    layer.name = f"renamed_{item['value']}"


def _dtype_policy(model, item, x):
    layer = _at(_having(model, "activation", _WITH_KERNEL), item)
    layer.dtype_policy = ["float32", "mixed_bfloat16", "mixed_bfloat16"][
        item["value"]
    ]


def _threshold(model, item, x):
    layer = _at(_having(model, "threshold"), item)
    layer.threshold = [5.0, 0.25, 0.0][item["value"]]


def _labels(model, item, x):
    layer = _at(_having(model, "labels"), item)
    layer.labels = [["bird"], [], ["a", "b"]][item["value"]]


def _forward(model, item, x):
    """Moves the seeds, and the statistics of BatchNorm."""
    model(x, training=True)


def _assign(model, item, x):
    for variable in _at(_groups(model), item):
        variable.assign(to_numpy(variable) * 1.5)


def _lora(model, item, x):
    kinds = (keras.layers.Dense, keras.layers.EinsumDense)
    _at(_having(model, "enable_lora", kinds), item).enable_lora(1)


def _add(model, item, x):
    if not isinstance(model, keras.Sequential):
        raise NotHere("add")
    name = f"added_{item['at']}"
    model.add(keras.layers.Dense(2, name=name, kernel_initializer="ones"))


_CHANGES = {
    "layer.trainable": _layer_trainable,
    "variable.trainable": _variable_trainable,
    "activation": _activation,
    "rate": _rate,
    "epsilon": _epsilon,
    "regularizer_attribute": _regularizer_attribute,
    "regularizer_of_variable": _regularizer_of_variable,
    "constraint_attribute": _constraint_attribute,
    "constraint_of_variable": _constraint_of_variable,
    "name": _name,
    "dtype_policy": _dtype_policy,
    "threshold": _threshold,
    "labels": _labels,
    "forward": _forward,
    "assign": _assign,
    "lora": _lora,
    "add": _add,
}
