"""Diversity, sharpness and gap, on cases worked by hand."""

import csv

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

import keras_mk
from keras_mk import diagnostics
from keras_mk import layers
from tests.backends import to_numpy

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16, 3)).astype("float32")
Y = RANDOM.normal(size=(16, 1)).astype("float32")


def linear(copies):
    layer = layers.MKDense(1, expansion=len(copies), use_bias=False)
    model = keras.Sequential([keras.Input((3,)), layer])
    for variable, value in zip(layer.kernels, copies):
        variable.assign(np.reshape(value, (3, 1)))
    return model


def test_diversity_by_hand():
    (found,) = diagnostics.diversity(linear([[1, 0, 0], [0, 1, 0]]))
    # The average is (1/2, 1/2, 0), and each copy is as far from it.
    assert found.spread == pytest.approx(1)
    assert found.cosine == 0
    assert found.path.endswith("/kernel")
    (equal,) = diagnostics.diversity(linear([[1, 2, 3]] * 3))
    assert (equal.spread, equal.cosine) == (0, 1)


def test_agreement_by_hand():
    layer = layers.MKDense(1, expansion=2, use_bias=False)
    model = keras.Sequential(
        [
            keras.Input((2000,)),
            layer,
            keras.layers.BatchNormalization(),
            # What it drops is no difference between mixtures.
            keras.layers.Dropout(0.5),
        ]
    )
    for variable, value in zip(layer.kernels, (2, 0)):
        variable.assign(np.full((2000, 1), value))
    x = RANDOM.normal(size=(1000, 2000)).astype("float32")
    before = [to_numpy(v) for v in model.variables]
    # A weight is 1 on average, with a variance of 2 ** 2 / 12.
    found = diagnostics.agreement(model, x, draws=3)
    assert found == pytest.approx(1 / (1 + 1 / 3), abs=0.03)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value)
    with pytest.raises(ValueError, match="Received: draws=1"):
        diagnostics.agreement(model, x, draws=1)
    with pytest.raises(ValueError, match="no majority-kernel layer"):
        diagnostics.agreement(keras_mk.collapse(model), x)
    (out,) = model.outputs
    several = keras.Model(model.inputs[0], {"a": out, "b": out})
    with pytest.raises(ValueError, match="whose output is a dict"):
        diagnostics.agreement(several, x)


def test_sharpness_by_hand():
    copies = np.array([[1.0, 0, -1], [0, 2, 1]])
    model = linear(copies)
    seeds = to_numpy(model.layers[0].mixing_seed_generator.state)
    found = diagnostics.sharpness(model, X, Y, loss="mse", draws=60)
    # The loss is quadratic and p uniform on [0, 1]: variance 1/12 each.
    spread = (copies[0] - copies[1]) ** 2 / 12
    expected = float((X**2).mean(0) @ spread)
    assert abs(found.delta - expected) < 4 * found.standard_error
    assert found.standard_error < expected / 3
    mean = np.mean((X @ copies.mean(0)[:, None] - Y) ** 2)
    assert found.mean_loss == pytest.approx(mean, rel=1e-5)
    np.testing.assert_array_equal(
        to_numpy(model.layers[0].mixing_seed_generator.state), seeds
    )


def test_sharpness_of_equal_copies_is_zero():
    found = diagnostics.sharpness(linear([[1, 2, 3]] * 3), X, Y, loss="mse")
    assert found.delta == 0


def test_sharpness_of_a_network_with_attention():
    inputs = keras.Input((4, 3))
    x = keras.layers.MultiHeadAttention(2, 2)(inputs, inputs)
    plain = keras.Model(inputs, keras.layers.Conv1D(1, 2)(x))
    model = keras_mk.expand(plain, copies="independent")
    model.compile("sgd", "mse")
    x, y = np.ones((4, 4, 3)), np.ones((4, 3, 1))
    assert diagnostics.sharpness(model, x, y).delta > 0


def test_wrong_arguments():
    model = linear([[1, 0, 0], [0, 1, 0]])
    with pytest.raises(
        ValueError, match="`draws` must be an integer, at least 2"
    ):
        diagnostics.sharpness(model, X, Y, loss="mse", draws=1)
    with pytest.raises(ValueError, match="`loss` must be given"):
        diagnostics.sharpness(model, X, Y)
    with pytest.raises(
        ValueError, match="`every` must be an integer, at least 1"
    ):
        diagnostics.Diagnostics(every=0)
    with pytest.raises(ValueError, match="`Diagnostics` callback"):
        diagnostics.plot({"loss": [1]}, "never.png")


def test_callback(tmp_path):
    model = linear([[1, 0, 0], [0, 1, 0]])
    model.compile("sgd", "mse")
    history = model.fit(
        X,
        Y,
        validation_data=(X, Y),
        epochs=2,
        callbacks=[
            diagnostics.Diagnostics(X, Y),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
            keras.callbacks.TensorBoard(tmp_path / "tensorboard"),
        ],
        verbose=0,
    )
    with open(tmp_path / "log.csv") as file:
        rows = list(csv.DictReader(file))
    events = EventAccumulator(str(tmp_path / "tensorboard" / "train"))
    board = events.Reload().Tags()["tensors"]
    for name in ("spread", "cosine", "gap", "sharpness", "sharpness_error"):
        assert len(history.history[f"mk_{name}"]) == 2
        assert f"mk_{name}" in rows[1]
        assert f"epoch_mk_{name}" in board
    diagnostics.plot(history, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    (found,) = diagnostics.diversity(model)
    assert history.history["mk_spread"][-1] == found.spread


def test_gap():
    model = linear([[1, 0, 0], [0, 1, 0]])
    model.compile("sgd", "mse")
    found = diagnostics.gap(model, (X[:8], Y[:8]), (X[8:], Y[8:]))
    w = np.array([[0.5], [0.5], [0]])
    losses = [
        np.mean((x @ w - y) ** 2) for x, y in ((X[:8], Y[:8]), (X[8:], Y[8:]))
    ]
    assert found["loss"] == pytest.approx(losses[1] - losses[0], rel=1e-4)
