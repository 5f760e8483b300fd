"""Sharpness-aware minimization, against numpy and against Keras's own step."""

import keras
import numpy as np
import pytest

from keras_mk import layers
from keras_mk.baselines import SAM
from tests.backends import to_numpy

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 5)).astype("float32")
Y = RANDOM.normal(size=(8, 2)).astype("float32")


def test_steps_by_hand():
    plain = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(2, use_bias=False)]
    )
    w = to_numpy(plain.layers[0].kernel).astype("float64")
    model = SAM(plain, rho=0.5)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    for _ in range(3):
        model.fit(X, Y, batch_size=8, verbose=0)

    def gradient(w):
        return 2 * X.T @ (X @ w - Y) / Y.size

    for _ in range(3):
        g = gradient(w)
        w = w - 0.1 * gradient(w + 0.5 * g / np.linalg.norm(g))
    np.testing.assert_allclose(to_numpy(plain.layers[0].kernel), w, atol=1e-5)


def network():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.MKDense(6, seed=1),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5, seed=2),
            keras.layers.Dense(2),
        ]
    )


def trained(model, inner, dtype="float32"):
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
        "mse",
        metrics=["mae"],
    )
    history = model.fit(X, Y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    weights = [to_numpy(v.value) for v in inner.variables]
    return history.history, weights


def test_without_a_move_it_is_the_plain_step():
    plain, moved = network(), network()
    history, weights = trained(plain, plain)
    sam_history, sam_weights = trained(SAM(moved, rho=0), moved)
    for name in ("loss", "mae"):
        np.testing.assert_allclose(
            sam_history[name], history[name], rtol=1e-5, err_msg=name
        )
    # Statistics, seeds and dropout took as many steps as the plain model's.
    for variable, one, other in zip(plain.variables, weights, sam_weights):
        np.testing.assert_allclose(other, one, atol=1e-5, err_msg=variable.path)


def test_a_move_changes_the_step():
    plain, moved = network(), network()
    _, weights = trained(plain, plain)
    _, sam_weights = trained(SAM(moved, rho=0.5), moved)
    assert np.abs(weights[0] - sam_weights[0]).max() > 1e-3


def test_evaluates_and_predicts_as_the_model():
    inner = network()
    model = SAM(inner)
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(
        model.predict(X, verbose=0), inner.predict(X, verbose=0)
    )


def test_saved_and_loaded(tmp_path):
    model = SAM(network(), rho=0.2)
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "sam.keras")
    loaded = keras.saving.load_model(tmp_path / "sam.keras")
    assert loaded.rho == 0.2
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), model.predict(X, verbose=0)
    )
    loaded.fit(X, Y, verbose=0)


def test_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        inner = network()
    finally:
        keras.config.set_dtype_policy("float32")
    before = to_numpy(inner.layers[-1].kernel)
    model = SAM(inner)
    model.compile(
        keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=4.0
        ),
        "mse",
    )
    model.fit(X, Y, verbose=0)
    after = to_numpy(inner.layers[-1].kernel)
    assert 0 < np.abs(after - before).max() < 1


@pytest.mark.parametrize(
    "rho", [-1, float("nan"), float("inf"), "1", True, None]
)
def test_wrong_rho(rho):
    with pytest.raises(
        ValueError, match="`rho` must be a finite number, at least 0"
    ):
        SAM(network(), rho=rho)


def test_wrong_model():
    with pytest.raises(TypeError, match=r"`model` must be a `keras.Model`"):
        SAM(keras.layers.Dense(2))
