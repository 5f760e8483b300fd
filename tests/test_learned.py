"""What LearnedMK has learned stays, whatever is frozen, saved or taught."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_mk
from keras_mk import baselines
from keras_mk import layers
from keras_mk.training import LearnedMK
from tests.backends import to_numpy

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 5)).astype("float32")
Y = RANDOM.normal(size=(8, 2)).astype("float32")
GOLDEN = Path(__file__).parent / "golden" / "learned.keras"
OPTIONS = (
    ("a", 4, {"seed": 1}),
    ("b", 3, {"seed": 2, "expansion": 2}),
    ("c", 2, {"seed": 3}),
)


def network():
    dense = [layers.MKDense(n, name=name, **o) for name, n, o in OPTIONS]
    return keras.Sequential([keras.Input((5,)), *dense], name="inner")


def set_by_hand(model):
    random = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(random.normal(size=variable.shape))


def learned(inner=None):
    model = LearnedMK(inner or network(), name="learned")
    set_by_hand(model)
    return model


def by_hand(model, x=X):
    """What the model predicts, from its variables."""
    for logits, layer in zip(model.logits, model.model.layers):
        p = np.exp(to_numpy(logits))
        copies = np.array([to_numpy(v) for v in layer.kernels])
        x = x @ (p / p.sum(0) * copies).sum(0) + to_numpy(layer.bias)
    return x


def predicted(model):
    return to_numpy(model.predict(X, verbose=0))


def compiled(model):
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def freeze_all(model):
    model.trainable = False


def freeze_inside(model):
    model.model.trainable = False


def freeze_one(model):
    model.model.layers[1].trainable = False


def freeze_a_copy(model):
    model.model.layers[0].kernels[1].trainable = False


def freeze_the_copies(model):
    for copy in model.model.layers[2].kernels:
        copy.trainable = False


FREEZERS = (
    freeze_all,
    freeze_inside,
    freeze_one,
    freeze_a_copy,
    freeze_the_copies,
)


@pytest.mark.parametrize("freeze", FREEZERS)
def test_freezing_changes_no_prediction(freeze):
    model = learned()
    expected = by_hand(model)
    freeze(model)
    np.testing.assert_allclose(predicted(model), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        to_numpy(model(X, training=True)), expected, rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(
        predicted(model.plain_model()), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("freeze", FREEZERS)
def test_saved_frozen_it_loads(freeze, tmp_path):
    model = learned()
    expected = by_hand(model)
    freeze(model)
    model.save(tmp_path / "learned.keras")
    loaded = keras.saving.load_model(tmp_path / "learned.keras")
    np.testing.assert_allclose(
        predicted(loaded), expected, rtol=1e-4, atol=1e-4
    )
    for mine, other in zip(model.logits, loaded.logits, strict=True):
        np.testing.assert_array_equal(to_numpy(mine), to_numpy(other))
    if freeze in (freeze_all, freeze_inside, freeze_one):
        assert len(loaded.trainable_weights) == len(model.trainable_weights)


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_frozen_kernel_stands_still(when, index):
    inner = network()
    if when == "before":
        inner.layers[index].trainable = False
    model = learned(inner)
    inner.layers[index].trainable = False
    assert [v.name for v in model.logits] == [f"logits_{i}" for i in range(3)]
    before = [to_numpy(v.value) for v in model.logits]
    copies = [to_numpy(v) for v in inner.layers[index].kernels]
    compiled(model).fit(X, Y, epochs=2, verbose=0)
    for i, (old, new) in enumerate(zip(before, model.logits)):
        moved = np.abs(to_numpy(new) - old).max() > 0
        assert moved == (i != index)
    for old, new in zip(copies, inner.layers[index].kernels):
        np.testing.assert_array_equal(to_numpy(new), old)
    np.testing.assert_allclose(
        predicted(model), by_hand(model), rtol=1e-4, atol=1e-4
    )


def test_weights_are_trainable_or_not():
    model = learned()
    freeze_one(model)
    own = [id(v) for v in model.logits]
    for trainable, rest, every in (
        (model.trainable_weights, model.non_trainable_weights, model.weights),
        (
            model.trainable_variables,
            model.non_trainable_variables,
            model.variables,
        ),
    ):
        assert len(trainable) + len(rest) == len(every)
        assert [own.index(id(v)) for v in trainable[:2]] == [0, 2]
        assert own[1] in [id(v) for v in rest]
    model.trainable = False
    assert not model.trainable_weights
    model.trainable = True
    assert not model.non_trainable_weights


def test_logits_of_copies_that_are_all_frozen_stand_still():
    model = learned()
    freeze_the_copies(model)
    before = predicted(model), to_numpy(model.logits[2].value)
    compiled(model).fit(X, Y, verbose=0)
    np.testing.assert_array_equal(to_numpy(model.logits[2]), before[1])
    assert np.abs(predicted(model) - before[0]).max() > 0


def test_one_frozen_copy_stands_still_and_the_mixture_moves():
    model = learned()
    freeze_a_copy(model)
    copies = [to_numpy(v.value) for v in model.model.layers[0].kernels]
    logits = to_numpy(model.logits[0].value)
    compiled(model).fit(X, Y, verbose=0)
    moved = [
        np.abs(to_numpy(new) - old).max() > 0
        for old, new in zip(copies, model.model.layers[0].kernels)
    ]
    assert moved == [True, False, True]
    assert np.abs(to_numpy(model.logits[0]) - logits).max() > 0


def test_a_learned_model_teaches_what_it_learned():
    model = learned()
    student = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    distiller = baselines.distiller(model, student)
    np.testing.assert_allclose(
        predicted(distiller.teacher), by_hand(model), rtol=1e-4, atol=1e-4
    )
    assert model.trainable_weights
    assert not distiller.teacher.trainable_weights


def test_frozen_and_trained_on_resumes_as_it_would_have_gone_on(tmp_path):
    model = learned()
    freeze_one(model)
    compiled(model).fit(X, Y, batch_size=8, verbose=0)
    model.save(tmp_path / "learned.keras")
    model.fit(X, Y, batch_size=8, verbose=0)
    loaded = keras.saving.load_model(tmp_path / "learned.keras")
    loaded.fit(X, Y, batch_size=8, verbose=0)
    np.testing.assert_allclose(
        predicted(loaded), predicted(model), rtol=1e-5, atol=1e-5
    )


def test_a_file_of_the_first_version_loads():
    loaded = keras.saving.load_model(GOLDEN, compile=False)
    expected = np.random.default_rng(0)
    for i, (logits, layer) in enumerate(
        zip(loaded.logits, loaded.model.layers)
    ):
        assert logits.name == f"logits_{i}"
        values = expected.normal(size=logits.shape)
        np.testing.assert_allclose(to_numpy(logits), values, rtol=1e-6)
        assert len(layer.kernels) == logits.shape[0]
    np.testing.assert_allclose(
        predicted(loaded), by_hand(loaded), rtol=1e-4, atol=1e-4
    )
    compiled(loaded).fit(X, Y, verbose=0)


def test_what_is_learned_so_far_can_be_taken_in_training():
    """On JAX, `fit` holds the values of a model until it is asked for them."""
    model = compiled(learned())
    found = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: found.append(model.plain_model())
    )
    model.fit(X, Y, batch_size=4, callbacks=[look], verbose=0)
    before, after = (predicted(plain) for plain in found)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, by_hand(model), rtol=1e-4, atol=1e-4)


def test_it_is_trained_in_mixed_precision_as_it_ships():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = learned()
    finally:
        keras.config.set_dtype_policy("float32")
    compiled(model).fit(X, Y, verbose=0)
    np.testing.assert_array_equal(
        predicted(model).astype("float32"),
        predicted(model.plain_model()).astype("float32"),
    )


@pytest.mark.skipif(
    keras.config.backend() == "jax", reason="JAX has no float64 by default"
)
def test_copies_of_another_dtype_are_mixed():
    plain = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(2, dtype="float64")]
    )
    model = LearnedMK(keras_mk.expand(plain, copies="independent"))
    compiled(model).fit(X, Y, verbose=0)
    assert model.logits[0].dtype == "float64"
