"""Models around models: what they may be put around, and what ships."""

import warnings

import keras
import numpy as np
import pytest

import keras_mk
from keras_mk import baselines
from keras_mk import diagnostics
from keras_mk import layers
from keras_mk.baselines import SAM
from keras_mk.callbacks import CollapsedCheckpoint
from keras_mk.training import AdversarialMK
from keras_mk.training import LearnedMK
from tests.backends import to_numpy

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 5)).astype("float32")
Y = RANDOM.normal(size=(8, 2)).astype("float32")


def adversarial(model):
    return AdversarialMK(model, epsilon=1.0)


WRAPPERS = pytest.mark.parametrize("wrap", [adversarial, SAM, LearnedMK])
TWO_PASSES = pytest.mark.parametrize("wrap", [adversarial, SAM])


def plain_network():
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, activation="tanh", name="first"),
            keras.layers.Dense(2, name="last"),
        ],
        name="network",
    )


def network():
    keras.utils.set_random_seed(3)
    return keras_mk.expand(plain_network(), seed=3, copies="independent")


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    def __init__(self, copies=True, **kwargs):
        super().__init__(**kwargs)
        self.copies = copies
        layer = layers.MKDense if copies else keras.layers.Dense
        self.a = layer(4)
        self.b = layer(2)

    def build(self, input_shape):
        self.a.build(input_shape)
        self.b.build((None, 4))

    def call(self, inputs, training=None):
        return self.b(self.a(inputs))

    def get_config(self):
        return {**super().get_config(), "copies": self.copies}


def subclassed():
    keras.utils.set_random_seed(3)
    model = Subclassed()
    model(X)
    return model


def compiled(model, **options):
    model.compile(keras.optimizers.Adam(0.01), "mse", **options)
    return model


def predicted(model):
    return to_numpy(model.predict(X, verbose=0)).astype("float32")


def values(variables):
    return [to_numpy(v.value) for v in variables]


def moved(variables, before):
    return [
        bool(np.abs(to_numpy(v) - old).max() > 0)
        for v, old in zip(variables, before, strict=True)
    ]


@WRAPPERS
@pytest.mark.parametrize("make", [network, subclassed])
def test_saved_and_resumed_as_it_would_have_gone_on(wrap, make, tmp_path):
    model = compiled(wrap(make()))
    model.fit(X, Y, batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    model.fit(X, Y, batch_size=8, verbose=0)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded.fit(X, Y, batch_size=8, verbose=0)
    np.testing.assert_allclose(
        predicted(loaded), predicted(model), rtol=1e-6, atol=1e-6
    )


@WRAPPERS
def test_saved_frozen_it_is_frozen(wrap, tmp_path):
    model = wrap(network())
    model.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not loaded.trainable_weights
    np.testing.assert_array_equal(predicted(loaded), predicted(model))


@WRAPPERS
def test_a_frozen_model_is_not_trained(wrap):
    inner = network()
    inner.trainable = False
    model = compiled(wrap(inner), metrics=["mae"])
    before = values(model.weights)
    with warnings.catch_warnings():
        # Keras says so, but not on JAX.
        warnings.filterwarnings("ignore", "The model does not have any train")
        history = model.fit(X, Y, batch_size=8, verbose=0).history
    expected = np.mean((predicted(model) - Y) ** 2)
    np.testing.assert_allclose(history["loss"], expected, rtol=1e-5)
    assert set(history) == {"loss", "mae"}
    assert not any(moved(model.weights, before))


@WRAPPERS
def test_what_is_frozen_between_fits_stands_still(wrap):
    inner = network()
    model = compiled(wrap(inner))
    model.fit(X, Y, verbose=0)
    inner.layers[0].trainable = False
    compiled(model)
    before = [values(layer.weights) for layer in inner.layers]
    model.fit(X, Y, verbose=0)
    model.fit(X, Y, verbose=0)
    for i, (layer, old) in enumerate(zip(inner.layers, before)):
        assert set(moved(layer.weights, old)) == {i == 1}


@WRAPPERS
def test_inputs_are_as_they_are_given(wrap):
    """A dtype policy of the moment rounds nothing before the model."""
    inner = network()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = wrap(inner)
        ensemble = baselines.Ensemble([inner])
    finally:
        keras.config.set_dtype_policy("float32")
    for each in (model, ensemble):
        np.testing.assert_allclose(predicted(each), predicted(inner), atol=1e-6)


def test_a_step_of_its_own_would_never_run():
    class Own(keras.Model):
        def compute_loss(self, *args, **kwargs):
            return 0.0

    inner = network()
    own = Own(inner.inputs, inner.outputs)
    student = baselines.distiller(plain_network(), inner)
    for model, method in (
        (SAM(inner), "train_step"),
        (adversarial(inner), "train_step"),
        (student, "compute_loss"),
        (own, "compute_loss"),
    ):
        for wrap in (adversarial, SAM, LearnedMK):
            with pytest.raises(ValueError, match=f"`{method}`: that of class"):
                wrap(model)
        with pytest.raises(ValueError, match=f"`student`.*`{method}`"):
            baselines.distiller(plain_network(), model)


def test_mixtures_are_chosen_once():
    inner = LearnedMK(network())
    for wrap in (adversarial, LearnedMK):
        with pytest.raises(ValueError, match="chooses the mixtures itself"):
            wrap(inner)
    model = compiled(SAM(inner))
    before = values(inner.logits)
    model.fit(X, Y, verbose=0)
    assert all(moved(inner.logits, before))


@pytest.mark.parametrize("wrap", [adversarial, LearnedMK])
def test_single_copies_cannot_be_mixed(wrap):
    with pytest.raises(ValueError, match="of more than one copy"):
        wrap(keras_mk.expand(plain_network(), 1))


@TWO_PASSES
def test_losses_of_layers_count_once(wrap):
    def fitted(wrap):
        keras.utils.set_random_seed(3)
        penalty = keras.regularizers.L2(0.1)
        inner = keras.Sequential(
            [
                keras.Input((5,)),
                layers.MKDense(2, activity_regularizer=penalty, seed=1),
            ]
        )
        # Copies that are equal, and then no mixture differs.
        first, *others = inner.layers[0].kernels
        for copy in others:
            copy.assign(to_numpy(first))
        model = wrap(inner)
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model.fit(X, Y, batch_size=8, verbose=0).history["loss"]

    np.testing.assert_allclose(
        fitted(wrap if wrap is adversarial else lambda m: SAM(m, rho=0)),
        fitted(lambda model: model),
        rtol=1e-5,
    )


def train_figures(model, inner):
    look = diagnostics.Diagnostics(X, Y)
    history = model.fit(
        X, Y, validation_data=(X, Y), callbacks=[look], verbose=0
    ).history
    expected = diagnostics.sharpness(inner, X, Y, loss="mse", draws=5)
    (spread,) = history["mk_spread"]
    found = [d.spread for d in diagnostics.diversity(inner)]
    assert spread == pytest.approx(np.mean(found))
    return history, expected


@WRAPPERS
def test_diagnostics_are_those_of_the_copies(wrap):
    inner = network()
    history, expected = train_figures(compiled(wrap(inner)), inner)
    assert history["mk_sharpness"] == [pytest.approx(expected.delta, rel=1e-4)]
    assert len(history["mk_gap"]) == 1


@WRAPPERS
def test_agreement_is_that_of_the_copies(wrap):
    inner = network()
    expected = diagnostics.agreement(inner, X)
    assert diagnostics.agreement(wrap(inner), X) == expected


SHIPPED = pytest.mark.xfail(
    strict=True,
    raises=(AssertionError, ValueError),
    reason="What ships of a model around another is the wrapper, not yet the "
    "plain model inside",
)


def shipped_as(plain, model):
    """Asserts that it is the plain architecture, with what was trained."""
    assert type(plain) is keras.Sequential
    assert [type(x) for x in plain.layers] == [keras.layers.Dense] * 2
    assert plain.name == "network"
    assert [layer.name for layer in plain.layers] == ["first", "last"]
    assert [v.name for v in plain.weights] == ["kernel", "bias"] * 2
    np.testing.assert_allclose(predicted(plain), predicted(model), atol=1e-5)


def uncalled(wrap):
    """With mixtures, if they are learned, that are not the average."""
    model = wrap(network())
    if wrap is LearnedMK:
        for logits in model.logits:
            logits.assign(
                2 * np.random.default_rng(1).normal(size=logits.shape)
            )
    return model


def test_a_learned_mixture_is_not_the_average():
    model = uncalled(LearnedMK)
    average = keras_mk.collapse(model.model)
    assert np.abs(predicted(model) - predicted(average)).max() > 0.1


@SHIPPED
@WRAPPERS
def test_collapsed_it_is_the_plain_model(wrap):
    model = uncalled(wrap)
    before = values(model.variables)
    plain = keras_mk.collapse(model, verify=X)
    shipped_as(plain, model)
    assert not any(moved(model.variables, before))


@SHIPPED
@WRAPPERS
@pytest.mark.parametrize("weights_only", [False, True])
def test_a_checkpoint_of_it_is_the_plain_models(wrap, weights_only, tmp_path):
    suffix = ".weights.h5" if weights_only else ".keras"
    path = tmp_path / f"plain{suffix}"
    model = compiled(wrap(network()))
    checkpoint = CollapsedCheckpoint(path, save_weights_only=weights_only)
    model.fit(X, Y, callbacks=[checkpoint], verbose=0)
    if weights_only:
        plain = plain_network()
        plain.load_weights(path)
    else:
        plain = keras.saving.load_model(path)
    shipped_as(plain, model)


@SHIPPED
@WRAPPERS
def test_an_export_of_it_is_the_plain_models(wrap, tmp_path):
    """Without an `input_signature`, which the model inside knows."""
    model = uncalled(wrap)
    path = tmp_path / "plain.keras"
    keras_mk.export_collapsed(model, path, format="keras", verify=False)
    shipped_as(keras.saving.load_model(path), model)


@SHIPPED
@WRAPPERS
def test_a_model_of_ones_own_class_ships_from_inside(wrap):
    keras.utils.set_random_seed(3)
    plain = Subclassed(copies=False)
    plain(X)
    model = wrap(keras_mk.expand(plain, copies="independent"))
    shipped = keras_mk.collapse(model)
    assert type(shipped) is Subclassed
    assert type(shipped.a) is keras.layers.Dense
    np.testing.assert_allclose(predicted(shipped), predicted(model), atol=1e-5)
