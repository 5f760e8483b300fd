"""What the copies of the kernels start as."""

import importlib

import keras
import numpy as np
import pytest
from keras import layers

import keras_mk
from tests import conversion_cases as cases
from tests.backends import to_numpy


def fixed(shape, dtype=None):
    """An initializer that gives the same numbers at each call."""
    values = np.random.default_rng(0).normal(size=shape)
    return keras.ops.cast(values, dtype or "float32")


def network(first="glorot_uniform", second="glorot_uniform"):
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(6, kernel_initializer=first, name="hidden"),
            layers.Dense(2, kernel_initializer=second, name="head"),
        ]
    )


@pytest.mark.parametrize(
    "scale", [float("inf"), float("nan"), -1.0, True, "0.1"]
)
def test_a_scale_that_is_no_positive_number(scale):
    with pytest.raises(ValueError, match=r"`scale`.*Received: scale="):
        keras_mk.expand(network(), copies="perturb", scale=scale)


@pytest.mark.parametrize("copies", ["replicate", "independent"])
def test_a_scale_that_would_do_nothing(copies):
    with pytest.raises(ValueError, match=r'`copies="perturb"`.*scale=0.1'):
        keras_mk.expand(network(), copies=copies, scale=0.1)


def test_arguments_are_checked_before_the_model_is_copied(monkeypatch):
    module = importlib.import_module("keras_mk.expand")
    monkeypatch.setattr(module, "copy_model", None)
    for wrong in ({"copies": "same"}, {"scale": 1.0}, {"expansion": 0}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}`"):
            keras_mk.expand(network(), **wrong)


def test_the_scale_is_a_tenth_unless_given():
    plain = network()
    ours, theirs = (
        keras_mk.expand(plain, copies="perturb", seed=1, **options)
        for options in ({}, {"scale": 0.1})
    )
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))


def test_noise_that_does_not_fit_the_kernels_dtype():
    plain = network()
    with pytest.raises(ValueError, match=r"'hidden'.*not finite.*scale=1e\+39"):
        keras_mk.expand(plain, copies="perturb", scale=1e39)
    kernel = to_numpy(plain.layers[1].kernel).copy()
    kernel[0, 0] = np.inf
    plain.layers[1].kernel.assign(kernel)
    with pytest.raises(ValueError, match=r"kernel of layer 'head'.*not finite"):
        keras_mk.expand(plain, copies="perturb")


@pytest.mark.parametrize(
    ("copies", "initializer", "why"),
    [
        ("perturb", "zeros", "standard deviation"),
        ("perturb", "ones", "standard deviation"),
        ("independent", "zeros", "initializer"),
        ("independent", fixed, "initializer"),
    ],
)
def test_copies_that_start_equal_are_told_once(copies, initializer, why):
    plain = network(initializer, initializer)
    with (
        pytest.warns(UserWarning, match=f"'hidden', 'head'.*{why}") as told,
        keras.saving.custom_object_scope({"fixed": fixed}),
    ):
        keras_mk.expand(plain, copies=copies)
    told = [w for w in told if w.category is UserWarning]
    assert len(told) == 1
    assert told[0].filename == __file__


def test_equal_copies_train_apart():
    plain = network("zeros")
    with pytest.warns(UserWarning, match=r"\['hidden'\]"):
        model = keras_mk.expand(plain, copies="perturb", seed=1)
    model.compile("sgd", "mse")
    model.fit(cases.random(8, 8), cases.random(8, 2), verbose=0)
    first, second, _ = [to_numpy(w) for w in model.layers[0].kernels]
    assert np.abs(first - second).max() > 0


def test_copies_that_should_be_equal_are_not_told():
    plain = network("zeros", fixed)
    with keras.saving.custom_object_scope({"fixed": fixed}):
        keras_mk.expand(plain)
        keras_mk.expand(plain, 1, copies="independent")
