"""Whole models expanded and collapsed."""

import json

import keras
import numpy as np
import pytest

import keras_mk
from keras_mk.layers import MajorityKernel
from tests.backends import to_numpy
from tests.conversion_cases import PARAMETERS

every_model = pytest.mark.parametrize("case", PARAMETERS)


def outputs(model, data):
    if data.targets is None:  # a KerasHub task, which takes text
        found = model.predict(data.inputs, verbose=0)
    else:
        found = model(data.inputs, training=False)
    return [
        np.asarray(to_numpy(x), "float64") for x in keras.tree.flatten(found)
    ]


def assert_close(ours, theirs, tolerance):
    for a, b in zip(ours, theirs, strict=True):
        scale = max(1.0, np.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def normal(config):
    return json.loads(json.dumps(config, default=str))


def mk_layers(model):
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, MajorityKernel)
    ]


def trainable_flags(model):
    """Of the layers with weights: a preprocessor is shared, not copied."""
    layers = [layer for layer in model._flatten_layers() if layer.weights]
    return [layer.trainable for layer in layers]


def described(weights):
    return [(w.name, tuple(w.shape), w.dtype, w.trainable) for w in weights]


def fit(model, data):
    if data.targets is None:
        model.compile(optimizer=keras.optimizers.SGD(1e-3))
        model.fit(data.inputs, batch_size=2, shuffle=False, verbose=0)
    else:
        model.compile(keras.optimizers.SGD(1e-3), "mse")
        model.fit(data.inputs, data.targets, batch_size=2, verbose=0)


@every_model
# A compiled KerasHub task that loads weights without an optimizer's.
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_there_and_back(case, tmp_path):
    data = case.make()
    plain = data.model
    before = [to_numpy(w) for w in plain.weights]
    config = normal(plain.get_config())
    trainable = trainable_flags(plain)
    expected = outputs(plain, data)

    model = keras_mk.expand(plain, expansion=2, seed=1)
    assert not model.compiled
    assert len(mk_layers(model)) == data.converted
    assert trainable_flags(model) == trainable
    assert_close(outputs(model, data), expected, data.tolerance)

    # Trained by a step, it has moved, and its copies apart.
    fit(model, data)
    trained = outputs(model, data)
    moved = [
        layer
        for layer in mk_layers(model)
        if layer.trainable
        and any(
            np.abs(to_numpy(first) - to_numpy(second)).max() > 0
            for first, second in [
                getattr(layer, f"{name}s") for name in layer.kernel_names
            ]
        )
    ]
    able = sum(layer.trainable for layer in mk_layers(model))
    assert len(moved) >= data.moving * able

    # Saved and loaded, as a whole and as weights.
    path = tmp_path / "model.keras"
    model.save(path)
    with keras.saving.custom_object_scope(case.custom_objects):
        loaded = keras.saving.load_model(path, compile=False)
    if data.targets is None:
        # KerasHub does not save the lengths that its preprocessor cuts to.
        loaded.preprocessor = plain.preprocessor
    assert type(loaded).__name__ == type(plain).__name__
    assert_close(outputs(loaded, data), trained, 0)
    weights = tmp_path / "model.weights.h5"
    model.save_weights(weights)
    other = keras_mk.expand(plain, expansion=2, seed=2)
    other.load_weights(weights)
    assert_close(outputs(other, data), trained, 0)
    for ours, theirs in zip(mk_layers(loaded), mk_layers(model), strict=True):
        np.testing.assert_array_equal(
            to_numpy(ours.mixing_seed_generator.state),
            to_numpy(theirs.mixing_seed_generator.state),
        )

    # Collapsed, it is the plain architecture.
    collapsed = keras_mk.collapse(model)
    assert not collapsed.compiled
    assert type(collapsed) is type(plain)
    assert not mk_layers(collapsed)
    assert normal(collapsed.get_config()) == config
    assert described(collapsed.weights) == described(plain.weights)
    tolerance = 1e-5 if plain.compute_dtype == "float32" else 1e-2
    assert_close(outputs(collapsed, data), trained, tolerance)
    plain_weights = tmp_path / "plain.weights.h5"
    collapsed.save_weights(plain_weights)

    # What was given is as it was.
    assert normal(plain.get_config()) == config
    assert trainable_flags(plain) == trainable
    for weight, old in zip(plain.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), old)
    assert_close(outputs(plain, data), expected, 0)

    # Its own loader takes the collapsed weights.
    plain.load_weights(plain_weights)
    assert_close(outputs(plain, data), trained, tolerance)
