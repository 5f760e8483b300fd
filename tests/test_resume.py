"""Trainings that are stopped and go on as if they had not been."""

import json
import random

import keras
import numpy as np
import pytest

import keras_mk
from keras_mk import callbacks
from keras_mk import layers
from tests.backends import BACKEND
from tests.backends import to_numpy


class Stopped(Exception):
    pass


class Stop(keras.callbacks.Callback):
    """Stands for a kill, after the second step of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.stop_in = epoch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == self.stop_in and batch == 1:
            raise Stopped


class Unseeded(keras.layers.Layer):
    """Draws from Keras's global generator."""

    def call(self, x, training=False):
        if training and BACKEND != "jax":
            return x + keras.random.normal(keras.ops.shape(x))
        return x


def network(units=8):
    x = inputs = keras.Input((6,))
    x = layers.MKDense(units, activation="tanh")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.5)(x)
    x = keras.layers.GaussianNoise(0.3)(x)
    x = Unseeded()(x)
    model = keras.Model(inputs, layers.MKDense(1)(x))
    model.compile("adam", "mse")
    return model


def data():
    x = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
    return x, x[:, :1] * x[:, 1:2]


class Batches(keras.utils.PyDataset):
    """Keras shuffles them with Python's generator."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        x, y = data()
        return x[8 * index : 8 * index + 8], y[8 * index : 8 * index + 8]


def script(*more, make=network, epochs=4, burn=0, **options):
    """What a script does; `burn` stands for other draws in its process."""
    keras.utils.set_random_seed(3)
    for _ in range(burn):
        random.random()
        np.random.rand()
        keras.random.dropout(keras.ops.ones((3,)), 0.5)
        keras.random.normal((3,))
    model = make()
    if "x" not in options:
        options["x"], options["y"] = data()
        options.setdefault("batch_size", 8)
    model.fit(**options, epochs=epochs, callbacks=[*more], verbose=0)
    return model


def state(model):
    variables = (*model.variables, *model.optimizer.variables)
    skipped = {id(v) for v in model.metrics_variables}
    return [to_numpy(v) for v in variables if id(v) not in skipped]


def assert_same(a, b):
    for ours, theirs in zip(state(a), state(b), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def whole_and_resumed(callback, tmp_path, **options):
    """The models of a training, and of one stopped in its third epoch."""
    whole = script(callback(tmp_path / "whole"), **options)
    folder = tmp_path / "parts"
    with pytest.raises(Stopped):
        script(Stop(2), callback(folder), **options)
    resumed = script(callback(folder), burn=3, **options)
    assert len(resumed.history.history["loss"]) == 2
    return whole, resumed


@pytest.mark.parametrize("data", ["arrays", "in batches", "PyDataset"])
def test_a_resumed_training_equals_the_uninterrupted_one(data, tmp_path):
    options = {
        "arrays": {"shuffle": True, "validation_split": 0.3},
        "in batches": {"shuffle": "batch"},
        "PyDataset": {"shuffle": True, "x": Batches()},
    }[data]
    whole, resumed = whole_and_resumed(callbacks.Resume, tmp_path, **options)
    assert_same(whole, resumed)
    losses = whole.history.history, resumed.history.history
    for name in losses[0]:
        assert losses[0][name][2:] == losses[1][name]


def test_with_backup_and_restore_it_does_not(tmp_path):
    whole, resumed = whole_and_resumed(
        keras.callbacks.BackupAndRestore, tmp_path, shuffle=False
    )
    kernels = [model.layers[1].kernel for model in (whole, resumed)]
    assert np.any(to_numpy(kernels[0]) != to_numpy(kernels[1]))


def test_a_wrapper_is_resumed(tmp_path):
    def wrapped():
        inner = network()
        model = keras_mk.training.AdversarialMK(inner, epsilon=1.0)
        model.compile("adam", "mse")
        return model

    assert_same(*whole_and_resumed(callbacks.Resume, tmp_path, make=wrapped))


def small(units=2, optimizer="adam", layer=layers.MKDense):
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dropout(0.5), layer(units)]
    )
    model.compile(optimizer, "mse")
    return model


def fit(model, *more, epochs=1, **options):
    x, _ = data()
    y = np.ones((len(x), model.output_shape[-1]), "float32")
    options = {"batch_size": 8, "verbose": 0, "callbacks": more, **options}
    return model.fit(x, y, epochs=epochs, **options).epoch


def test_an_epoch_that_was_left_early_is_trained_again(tmp_path):
    class Leave(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    folder = tmp_path / "training"
    fit(small(), callbacks.Resume(folder))
    fit(small(), callbacks.Resume(folder), Leave(), epochs=9)
    assert callbacks.Resume(folder).epochs_done == 1

    class Enough(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    fit(small(), Enough(), callbacks.Resume(folder), epochs=9)
    assert callbacks.Resume(folder).epochs_done == 2


def test_goes_on_where_it_was_and_no_further(tmp_path):
    resume, model = callbacks.Resume(tmp_path), small()
    assert fit(model, resume, epochs=2) == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-2"]
    assert fit(model, resume, epochs=3) == [2]
    assert fit(model, resume, epochs=3) == []
    other = small()
    assert resume.restore(other) == resume.epochs_done == 3
    assert_same(model, other)
    # What it does not take part in begins at the beginning.
    assert fit(model) == [0]


def test_what_is_drawn_before_is_nothing_to_the_same_seed(tmp_path):
    models = []
    for name, draws in (("a", 0), ("b", 5)):
        keras.utils.set_random_seed(1)
        model = small()
        [random.random() for _ in range(draws)]
        fit(model, callbacks.Resume(tmp_path / name, seed=3), shuffle=False)
        models.append(model)
    assert_same(*models)
    what = json.loads(
        (tmp_path / "a" / "epoch-1" / "training.json").read_text()
    )
    assert what["seed"] == 3


@pytest.mark.parametrize(
    ("other", "seed", "message"),
    [
        (lambda: small(3), None, r"'\(6, 2\) float32' as weights\[0\]"),
        (
            lambda: small(layer=keras.layers.Dense),
            None,
            "'MKDense' as layers",
        ),
        (lambda: small(optimizer="sgd"), None, "optimizer 'Adam' instead"),
        (small, 4, "seed 3 instead of 4"),
    ],
)
def test_a_folder_of_another_training_is_refused(
    other, seed, message, tmp_path
):
    fit(small(), callbacks.Resume(tmp_path, seed=3))
    model = other()
    before = [to_numpy(v) for v in model.weights]
    with pytest.raises(ValueError, match=message):
        fit(model, callbacks.Resume(tmp_path, seed))
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value)


def test_frozen_layers_and_backends_tell_trainings_apart(tmp_path):
    fit(small(), callbacks.Resume(tmp_path))
    frozen = small()
    frozen.layers[-1].trainable = False
    with pytest.raises(ValueError, match=r"instead of '.* not trained'"):
        callbacks.Resume(tmp_path).restore(frozen)
    path = tmp_path / "epoch-1" / "training.json"
    what = json.loads(path.read_text())
    path.write_text(json.dumps({**what, "backend": "numpy"}))
    with pytest.raises(ValueError, match="backend 'numpy' instead of"):
        callbacks.Resume(tmp_path).restore(small())


def test_what_cannot_be_resumed_is_said_before_training(tmp_path):
    with pytest.raises(ValueError, match="`folder` must be a path on this"):
        callbacks.Resume("gs://bucket/training")
    with pytest.raises(ValueError, match="`seed` must be"):
        callbacks.Resume(tmp_path, seed=-1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="must be built"):
        callbacks.Resume(tmp_path).restore(model)
    with pytest.raises(ValueError, match="must be compiled"):
        callbacks.Resume(tmp_path).restore(keras_mk.collapse(small()))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"must be a folder.*file'"):
        fit(small(), callbacks.Resume(tmp_path / "file"))


def test_a_full_disk_leaves_the_epoch_before(tmp_path, monkeypatch):
    fit(small(), callbacks.Resume(tmp_path))

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        fit(small(), callbacks.Resume(tmp_path), epochs=2)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-1"]
    assert fit(small(), callbacks.Resume(tmp_path), epochs=2) == [1]


@pytest.mark.skipif(
    BACKEND != "tensorflow", reason="only there `fit` shuffles by another seed"
)
@pytest.mark.parametrize("later", [None, 2])
def test_warns_where_arrays_are_shuffled_in_another_order(later, tmp_path):
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    fit(small(), callbacks.Resume(tmp_path))
    tf.random.set_seed(later)
    with pytest.warns(UserWarning, match=f"was 1 when .* is {later} now"):
        fit(small(), callbacks.Resume(tmp_path), epochs=2)
