"""Networks made from their descriptions."""

import itertools

import keras
import numpy as np
from keras import layers

from tests.backends import to_numpy
from tests.soaking import classes
from tests.soaking.places import places
from tests.soaking.state import groups

LENGTH, WIDTH = 4, 6
BATCH = 4


def inputs(seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")


def targets(seed=1):
    return np.random.default_rng(seed).normal(size=(BATCH, 2)).astype("float32")


def build(spec):
    """The network, built, with weights that its description determines."""
    # For what the weights are made from, and seeds that are not given.
    keras.utils.set_random_seed(0)
    before = keras.config.dtype_policy()
    if spec.get("dtype"):
        keras.config.set_dtype_policy(spec["dtype"])
    try:
        model = _MODELS[spec["kind"]](spec["parts"])
        if not model.built:
            model.build((None, LENGTH, WIDTH))
    finally:
        keras.config.set_dtype_policy(before)
    fill(model)
    return model


def fill(model, seed=0):
    """Weights that differ from each other and from what layers start with."""
    random = np.random.default_rng(seed)
    seen = set()
    for _, layer in places(model):
        for variables in groups(layer).values():
            for variable in variables:
                if id(variable) in seen:
                    continue
                seen.add(id(variable))
                old = np.asarray(to_numpy(variable))
                if old.dtype.kind not in "fV":
                    continue
                new = old.astype("float32") + 0.1 * random.normal(
                    size=old.shape
                )
                if "variance" in variable.name:
                    new = np.abs(new) + 0.5
                variable.assign(new.astype("float32"))


def _functional(parts, cls=keras.Model, **kwargs):
    given = keras.Input((LENGTH, WIDTH))
    x = given
    for part in parts:
        x = layer_of(part)(x)
    x = layers.GlobalAveragePooling1D()(x)
    return cls(given, layers.Dense(2, name="head")(x), **kwargs)


def _functional_with_step(parts):
    model = _functional(parts, classes.FunctionalWithStep)
    model.tell(1.5, ["cat", "dog"])
    return model


def _sequential(parts, cls=keras.Sequential):
    return cls(
        [
            keras.Input((LENGTH, WIDTH)),
            *map(layer_of, parts),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )


def _sequential_with_step(parts):
    model = _sequential(parts, classes.SequentialWithStep)
    model.tell(0.5, ["cat"])
    return model


_MODELS = {
    "functional": _functional,
    "functional_with_step": _functional_with_step,
    "sequential": _sequential,
    "sequential_with_step": _sequential_with_step,
    "net": lambda parts: classes.Net(parts, threshold=0.5),
    "net_with_step": lambda parts: classes.NetWithStep(parts, threshold=2.0),
    "backbone": lambda parts: classes.Backbone(parts, threshold=0.5),
}


def layer_of(part):
    """One layer, from (4, 6) to (4, 6)."""
    return _PARTS[part["part"]](part)


_names = itertools.count()


def _common(part):
    options = {"trainable": part.get("trainable", True)}
    if part.get("dtype"):
        options["dtype"] = part["dtype"]
    if part.get("named"):
        options["name"] = f"chosen_{next(_names)}"
    return options


def _kernel(part, kernel="kernel"):
    options = _common(part)
    options["activation"] = part.get("activation")
    options[f"{kernel}_regularizer"] = part.get("regularizer")
    options[f"{kernel}_constraint"] = part.get("constraint")
    return options


def _around(part, layer, shape):
    return keras.Sequential(
        [layers.Reshape(shape), layer, layers.Reshape((LENGTH, WIDTH))]
    )


def _einsum(part):
    bias = {"bias_axes": "c"} if part.get("bias", True) else {}
    return layers.EinsumDense(
        "abd,dc->abc", (None, WIDTH), **bias, **_kernel(part)
    )


def _separable(part):
    options = _common(part)
    options["activation"] = part.get("activation")
    options["depthwise_regularizer"] = part.get("regularizer")
    options["pointwise_constraint"] = part.get("constraint")
    return layers.SeparableConv1D(WIDTH, 3, padding="same", **options)


def _on_itself(layer):
    given = keras.Input((LENGTH, WIDTH))
    return keras.Model(given, layer(given, given))


def _branches(part):
    given = keras.Input((LENGTH, WIDTH))
    one, two = (layer_of(p)(given) for p in part["parts"])
    return keras.Model(given, layers.Add()([one, two]))


def _shared(part):
    given = keras.Input((LENGTH, WIDTH))
    layer = layer_of(part["parts"][0])
    return keras.Model(given, layer(layer(given)))


def _nested(part):
    given = x = keras.Input((LENGTH, WIDTH))
    for p in part["parts"]:
        x = layer_of(p)(x)
    return keras.Model(given, x)


def _inner_sequential(part):
    return keras.Sequential(
        [keras.Input((LENGTH, WIDTH)), *map(layer_of, part["parts"])]
    )


def _dense(part, **more):
    bias = part.get("bias", True)
    return layers.Dense(WIDTH, use_bias=bias, **_kernel(part), **more)


_PARTS = {
    "dense": _dense,
    "einsum": _einsum,
    "conv1d": lambda part: layers.Conv1D(
        WIDTH, 3, padding="same", **_kernel(part)
    ),
    "conv2d": lambda part: _around(
        part,
        layers.Conv2D(WIDTH, 2, padding="same", **_kernel(part)),
        (2, 2, WIDTH),
    ),
    "conv2d_transpose": lambda part: _around(
        part,
        layers.Conv2DTranspose(WIDTH, 2, padding="same", **_kernel(part)),
        (2, 2, WIDTH),
    ),
    "depthwise1d": lambda part: layers.DepthwiseConv1D(
        3, padding="same", **_kernel(part, "depthwise")
    ),
    "depthwise2d": lambda part: _around(
        part,
        layers.DepthwiseConv2D(2, padding="same", **_kernel(part, "depthwise")),
        (2, 2, WIDTH),
    ),
    "separable1d": _separable,
    "batchnorm": lambda part: layers.BatchNormalization(**_common(part)),
    "layernorm": lambda part: layers.LayerNormalization(**_common(part)),
    "dropout": lambda part: layers.Dropout(
        part.get("rate", 0.0), seed=part.get("seed"), **_common(part)
    ),
    "attention": lambda part: _on_itself(
        layers.MultiHeadAttention(
            2,
            2,
            dropout=part.get("rate", 0.0),
            seed=part.get("seed"),
            kernel_regularizer=part.get("regularizer"),
            **_common(part),
        )
    ),
    "grouped_attention": lambda part: _on_itself(
        layers.GroupQueryAttention(
            2, 2, 1, seed=part.get("seed"), **_common(part)
        )
    ),
    "time_distributed": lambda part: layers.TimeDistributed(
        _dense(part), **_without(part, "name", "trainable")
    ),
    "bidirectional": lambda part: layers.Bidirectional(
        layers.LSTM(WIDTH // 2, return_sequences=True, **_common(part))
    ),
    "lstm": lambda part: layers.LSTM(
        WIDTH, return_sequences=True, **_common(part)
    ),
    "spectral": lambda part: layers.SpectralNormalization(_dense(part)),
    "hidden": lambda part: classes.Hidden(
        WIDTH, rate=part.get("rate", 0.0), **_common(part)
    ),
    "attending": lambda part: classes.Attending(WIDTH, **_common(part)),
    "unsaid": lambda part: classes.Unsaid(WIDTH, slope=0.75, **_common(part)),
    "branches": _branches,
    "shared": _shared,
    "functional": _nested,
    "sequential": _inner_sequential,
}


def _without(part, *names):
    return {k: v for k, v in _common(part).items() if k not in names}
