"""Adversarial and learned mixing weights, against numpy on a tiny net."""

import json
import os
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_mk
from keras_mk import layers
from keras_mk.mixing import adversarial
from keras_mk.mixing import reference
from keras_mk.training import AdversarialMK
from keras_mk.training import LearnedMK
from tests.backends import tensor
from tests.backends import to_numpy

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 5)).astype("float32")
Y = RANDOM.normal(size=(8, 2)).astype("float32")
INFINITE, NAN = float("inf"), float("nan")
GOLDEN = Path(__file__).parent / "golden" / "adversarial.json"


def linear(expansion=3):
    keras.utils.set_random_seed(3)
    layer = layers.MKDense(2, expansion=expansion, use_bias=False, seed=7)
    return keras.Sequential([keras.Input((5,)), layer])


def copies_of(model):
    return np.array([to_numpy(k) for k in model.layers[0].kernels], "float64")


def gradient(w, x=X):
    """Of the mean squared error of `x @ w`, in `w`."""
    return 2 * x.T @ (x @ w - Y) / Y.size


def numpy_p(copies, epsilon, per, random, counter, x=X):
    expansion = len(copies)
    p = 1 / expansion + epsilon * gradient(copies.mean(0), x) * copies
    if per == "unit":
        slopes = (gradient(copies.mean(0), x) * copies).sum(1, keepdims=True)
        p = np.broadcast_to(1 / expansion + epsilon * slopes, copies.shape)
    p = np.maximum(p, 0)
    p = p / p.sum(0)
    if random:
        logs = np.where(p > 0, p * np.log(np.where(p > 0, p, 1) * expansion), 0)
        u = logs.sum(0) / np.log(expansion)
        state = np.array([7, counter])
        drawn = reference.mixing_weights(state, expansion, copies[0].shape)
        p = u * p + (1 - u) * np.array(drawn)
    return p


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("per", ["element", "unit"])
def test_steps_by_hand(per, random):
    inner = linear()
    copies = copies_of(inner)
    model = AdversarialMK(inner, epsilon=2.0, random=random, per=per)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    for _ in range(3):
        model.fit(X, Y, batch_size=8, verbose=0)
    for step in range(3):
        p = numpy_p(copies, 2.0, per, random, step)
        # Some entry is cut off, so that this is seen to be right.
        assert random or per == "unit" or (p == 0).any()
        mixed = (copies * p).sum(0)
        copies = copies - 0.1 * gradient(mixed) * p
    np.testing.assert_allclose(copies_of(inner), copies, atol=1e-5)


def test_normalize():
    p = [np.array([2.0, -1.0, -1.0]), np.array([1.0, 1.0, -2.0])]
    got = [to_numpy(q) for q in adversarial.normalize(p)]
    np.testing.assert_allclose(got, [[2 / 3, 0, 0.5], [1 / 3, 1, 0.5]])


def test_divergence():
    uniform = [np.full((2,), 1 / 3)] * 3
    one = [np.ones((2,)), np.zeros((2,)), np.zeros((2,))]
    for p, expected in ((uniform, 0), (one, 1)):
        p = [tensor(q.astype("float32")) for q in p]
        found = to_numpy(adversarial.relative_divergence(p))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def network():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.MKConv2D(3, 3, seed=1),
            keras.layers.BatchNormalization(),
            layers.MKSeparableConv2D(4, 3, seed=5),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5, seed=2),
            layers.MKDense(2, seed=3),
        ]
    )


def images(count=8):
    random = np.random.default_rng(1)
    x = random.normal(size=(count, 6, 6, 2)).astype("float32")
    return x, random.normal(size=(count, 2)).astype("float32")


def set_weights_by_hand(model):
    """Weights that do not depend on a backend's random numbers."""
    random = np.random.default_rng(2)
    for weight in model.trainable_variables:
        weight.assign(0.3 * random.normal(size=weight.shape))


def losses_of_five_steps():
    inner = network()
    inner.layers[4].rate = 0.0
    set_weights_by_hand(inner)
    model = AdversarialMK(inner, epsilon=1.0)
    model.compile(keras.optimizers.SGD(0.05), "mse")
    x, y = images()
    return [
        model.fit(x, y, batch_size=8, verbose=0).history["loss"][0]
        for _ in range(5)
    ]


def test_losses_agree_on_all_backends():
    losses = losses_of_five_steps()
    if os.environ.get("KERAS_MK_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(losses) + "\n")
    golden = json.loads(GOLDEN.read_text())
    np.testing.assert_allclose(losses, golden, rtol=1e-5)


def test_seeds_move_once():
    """Seeds take one step for two passes."""
    x, y = images(12)
    inner = network()
    model = AdversarialMK(inner, epsilon=1.0)
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(x, y, batch_size=4, verbose=0)
    layer = inner.layers[0]
    assert int(to_numpy(layer.mixing_seed_generator.state)[1]) == 3


def test_statistics_move_once():
    x, y = images(4)
    inner = network()
    # With p uniform both passes use the averaged kernel, known beforehand.
    seen = to_numpy(inner.layers[0](x)).mean((0, 1, 2))
    model = AdversarialMK(inner, epsilon=0, random=False)
    model.compile("sgd", "mse")
    model.fit(x, y, batch_size=4, verbose=0)
    batch_norm = inner.layers[1]
    np.testing.assert_allclose(
        to_numpy(batch_norm.moving_mean),
        (1 - batch_norm.momentum) * seen,
        rtol=1e-4,
        atol=1e-7,
    )


def test_mixed_precision_scales_nothing_else():
    def fitted(scale):
        keras.config.set_dtype_policy("mixed_float16")
        try:
            inner = linear()
        finally:
            keras.config.set_dtype_policy("float32")
        model = AdversarialMK(inner, epsilon=2.0)
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=scale
        )
        model.compile(optimizer, "mse")
        model.fit(X, Y, batch_size=8, verbose=0)
        return copies_of(inner)

    np.testing.assert_allclose(fitted(1.0), fitted(16.0), atol=1e-3)


def test_accumulated_and_clipped_gradients():
    def fitted(**options):
        inner = linear()
        model = AdversarialMK(inner, epsilon=2.0, random=False)
        model.compile(keras.optimizers.SGD(0.1, **options), "mse")
        before = copies_of(inner)
        model.fit(X, Y, batch_size=8, verbose=0)
        return np.abs(copies_of(inner) - before)

    assert fitted(gradient_accumulation_steps=2).max() == 0
    clipped = fitted(clipnorm=1e-3)
    norms = np.sqrt((clipped**2).sum((1, 2)))
    np.testing.assert_allclose(norms, 1e-4, rtol=1e-3)


def test_saved_and_loaded(tmp_path):
    model = AdversarialMK(linear(), epsilon=0.5, random=False, per="unit")
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "adversarial.keras")
    loaded = keras.saving.load_model(tmp_path / "adversarial.keras")
    assert (loaded.epsilon, loaded.random, loaded.per) == (0.5, False, "unit")
    np.testing.assert_array_equal(
        loaded.predict(X, verbose=0), model.predict(X, verbose=0)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"epsilon": wrong}, "`epsilon` must be a finite number, at least")
            for wrong in (-1, INFINITE, -INFINITE, NAN, "1", True, None, [1])
        ),
        ({"epsilon": 1, "random": "no"}, "`random` must be `True` or `False`"),
        ({"epsilon": 1, "per": "row"}, "`per` must be one of"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        AdversarialMK(linear(), **options)


def test_a_number_of_numpy_is_one(tmp_path):
    model = AdversarialMK(linear(), epsilon=np.float32(0.5))
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").epsilon == 0.5


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("frozen", [[1], [0, 2], [0, 1, 2]])
def test_steps_by_hand_with_frozen_copies(frozen, random):
    """The gradients of the other copies say where to move p."""
    inner = linear()
    copies = copies_of(inner)
    for index in frozen:
        inner.layers[0].kernels[index].trainable = False
    # A bias besides, so that there is something to train.
    bias = keras.layers.EinsumDense("bi,ij->bj", 2, bias_axes="j")
    shifted = keras.Sequential([inner, bias])
    shifted.build((None, 5))
    bias.kernel.assign(np.eye(2))
    bias.kernel.trainable = False
    model = AdversarialMK(shifted, epsilon=2.0, random=random)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(X, Y, batch_size=8, verbose=0).history
    known = len(frozen) < 3
    p = numpy_p(copies, 2.0 if known else 0.0, "element", random, 0)
    mixed = (copies * p).sum(0)
    expected = ((X @ mixed - Y) ** 2).mean()
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)
    step = 0.1 * gradient(mixed) * p
    step[frozen] = 0
    np.testing.assert_allclose(copies_of(inner), copies - step, atol=1e-5)


class Partly(keras.Model):
    """Its first layer is never told that it is in training."""

    def __init__(self):
        super().__init__()
        self.first = layers.MKDense(4, use_bias=False, seed=1)
        self.last = layers.MKDense(2, use_bias=False, seed=7)

    def call(self, inputs, training=None):
        hidden = self.first(inputs, training=False)
        return self.last(hidden, training=training)


@pytest.mark.parametrize("random", [False, True])
def test_a_layer_kept_out_of_training_uses_its_average(random):
    inner = Partly()
    inner(X)
    model = AdversarialMK(inner, epsilon=2.0, random=random)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    first, last = (
        np.array([to_numpy(v) for v in layer.kernels], "float64")
        for layer in (inner.first, inner.last)
    )
    with pytest.warns(UserWarning, match="being trained on the average"):
        history = model.fit(X, Y, batch_size=8, verbose=0).history
    hidden = X @ first.mean(0)
    mixed = (last * numpy_p(last, 2.0, "element", random, 0, hidden)).sum(0)
    expected = ((hidden @ mixed - Y) ** 2).mean()
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)
    draws = [
        int(to_numpy(layer.mixing_seed_generator.state)[1])
        for layer in (inner.first, inner.last)
    ]
    assert draws == [0, 1]


def test_plain_model_is_refused():
    plain = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="must have majority kernels"):
        AdversarialMK(plain, epsilon=1)
    with pytest.raises(ValueError, match="must have majority kernels"):
        LearnedMK(plain)


def test_the_lemma():
    """With p uniform the average moves lr / e times the plain step."""
    inner = linear()
    model = AdversarialMK(inner, epsilon=0, random=False)
    plain = keras_mk.collapse(inner)
    before = to_numpy(plain.layers[0].kernel)
    for each in (model, plain):
        each.compile(keras.optimizers.SGD(0.3), "mse")
        each.fit(X, Y, batch_size=8, verbose=0)
    step = to_numpy(plain.layers[0].kernel) - before
    averaged = copies_of(inner).mean(0) - before
    np.testing.assert_allclose(averaged, step / 3, atol=1e-6)


def test_learned_by_hand():
    inner = linear()
    copies = copies_of(inner)
    logits = np.zeros_like(copies)
    model = LearnedMK(inner)
    model.compile(keras.optimizers.SGD(0.5), "mse")
    for _ in range(3):
        model.fit(X, Y, batch_size=8, verbose=0)
    for _ in range(3):
        p = np.exp(logits) / np.exp(logits).sum(0)
        mixed = (copies * p).sum(0)
        g = gradient(mixed)
        new = copies - 0.5 * g * p
        logits = logits - 0.5 * g * p * (copies - mixed)
        copies = new
    np.testing.assert_allclose(copies_of(inner), copies, atol=1e-5)
    np.testing.assert_allclose(to_numpy(model.logits[0]), logits, atol=1e-5)


def test_learned_ships_as_a_plain_model(tmp_path):
    model = LearnedMK(linear())
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(X, Y, epochs=3, verbose=0)
    shipped = model.plain_model()
    assert shipped.count_params() == 10
    np.testing.assert_allclose(
        shipped.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-5
    )
    model.save(tmp_path / "learned.keras")
    loaded = keras.saving.load_model(tmp_path / "learned.keras")
    np.testing.assert_allclose(
        loaded.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6
    )


@pytest.mark.parametrize("kind", ["element", "unit", "sam"])
def test_sequences_of_tokens(kind):
    """Shapes that a TensorFlow graph does not know, and sparse gradients."""
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(20, 8)(tokens)
    x = keras.layers.Dense(8, activation="relu")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(tokens, keras.layers.Dense(2)(x))
    if kind == "sam":
        wrapped = keras_mk.baselines.SAM(model)
    else:
        model = keras_mk.expand(model, copies="independent")
        wrapped = keras_mk.training.AdversarialMK(model, 1.0, per=kind)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    wrapped.compile(keras.optimizers.Adam(0.05), loss)
    numbers = np.random.default_rng(0).integers(0, 20, (32, 7))
    history = wrapped.fit(numbers, numbers[:, 0] % 2, epochs=9, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
