"""Majority kernels in `fit`: equal on every backend, and resumed exactly."""

import json
import os
import shutil
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_mk import callbacks
from keras_mk import layers
from tests.backends import BACKEND
from tests.backends import gradient
from tests.backends import to_numpy
from tests.layer_cases import NETWORK_CASES
from tests.layer_cases import NETWORK_IDS
from tests.models import compiled
from tests.models import convnet
from tests.models import data
from tests.models import fixed_weights

GOLDEN = Path(__file__).parent / "golden"

every_network = pytest.mark.parametrize("case", NETWORK_CASES, ids=NETWORK_IDS)


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


def five_losses(case, optimizer):
    """Loss after each of five epochs of one step."""
    model = case.network(seed=11)
    fixed_weights(model)
    model.compile(optimizer, "mse")
    x = case.inputs()
    y = np.ones(model(x).shape, "float32")
    return [
        model.fit(x, y, batch_size=len(x), verbose=0).history["loss"][0]
        for _ in range(5)
    ]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@every_network
def test_losses_are_the_same_on_every_backend(case, optimizer):
    path = GOLDEN / "losses.json"
    losses = five_losses(case, optimizer)
    key = f"{case.name} {optimizer}"
    if os.environ.get("KERAS_MK_WRITE_GOLDEN"):
        golden = json.loads(path.read_text()) if path.exists() else {}
        golden[key] = losses
        path.write_text(json.dumps(golden, indent=2) + "\n")
    golden = json.loads(path.read_text())[key]
    np.testing.assert_allclose(losses, golden, rtol=1e-5)
    assert len(set(golden)) == 5


@pytest.mark.parametrize("extension", [".keras", ".weights.h5"])
@every_network
def test_copies_and_seeds_are_saved(case, extension, tmp_path):
    model = case.network(seed=1)
    x = case.inputs()
    model(x, training=True)
    path = tmp_path / f"model{extension}"
    if extension == ".keras":
        model.save(path)
        loaded = keras.saving.load_model(path)
    else:
        model.save_weights(path)
        loaded = case.network(seed=2)
        loaded.load_weights(path)
    for ours, theirs in zip(loaded.variables, model.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))
    np.testing.assert_array_equal(
        to_numpy(loaded(x, training=True)), to_numpy(model(x, training=True))
    )


def resumed_equals_uninterrupted(make, x, y, path, **options):
    """Trains, saves, and goes on with the model and with what was saved."""

    def fit(model):
        recorder = Losses()
        model.fit(
            x, y, batch_size=2, shuffle=False, verbose=0, callbacks=[recorder]
        )
        return recorder.losses

    model = make(seed=5)
    fixed_weights(model)
    model.compile(**options)
    fit(model)
    if path.suffix == ".keras":
        model.save(path)
        resumed = keras.saving.load_model(path)
    else:
        model.save_weights(path)
        resumed = make(seed=99)
        resumed.compile(**options)
        resumed.optimizer.build(resumed.trainable_variables)
        resumed.load_weights(path)
    assert fit(resumed) == fit(model)
    for ours, theirs in zip(resumed.variables, model.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


@every_network
def test_resumed_run_equals_the_uninterrupted_one(case, tmp_path):
    x = case.inputs()
    resumed_equals_uninterrupted(
        case.network,
        x,
        np.ones(case.network(seed=0)(x).shape, "float32"),
        tmp_path / "state.keras",
        optimizer="adam",
        loss="mse",
    )


@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("extension", [".keras", ".weights.h5"])
def test_resumed_network_equals_the_uninterrupted_one(
    tmp_path, extension, jit_compile
):
    if jit_compile and BACKEND == "torch":
        pytest.skip("torch.compile: see test_resumed_under_torch_compile")
    resumed_equals_uninterrupted(
        lambda seed: convnet(seed=seed),
        *data(size=8),
        tmp_path / f"state{extension}",
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )


def test_a_model_saved_on_another_backend():
    """The file was written on JAX, next to what it did then."""
    path = GOLDEN / "convnet.keras"
    expected_path = GOLDEN / "convnet.json"
    x, y = data()
    if os.environ.get("KERAS_MK_WRITE_GOLDEN"):
        model = compiled(convnet(), jit_compile=False)
        fixed_weights(model)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        model.save(path)
    model = keras.saving.load_model(path)
    prediction = model.predict(x[:2], verbose=0)
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    found = {"prediction": prediction.tolist(), "loss": history["loss"]}
    if os.environ.get("KERAS_MK_WRITE_GOLDEN"):
        expected_path.write_text(json.dumps(found, indent=2) + "\n")
    expected = json.loads(expected_path.read_text())
    for key in found:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-4)


def test_weights_of_a_plain_layer_are_refused(tmp_path):
    plain = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="d")]
    )
    path = tmp_path / "plain.weights.h5"
    plain.save_weights(path)
    model = keras.Sequential([keras.Input((4,)), layers.MKDense(3, name="d")])
    with pytest.raises(ValueError, match="Layer 'd'"):
        model.load_weights(path)


def test_weights_of_another_expansion_are_refused(tmp_path):
    path = tmp_path / "three.weights.h5"
    three = keras.Sequential([keras.Input((4,)), layers.MKDense(2, name="d")])
    three.save_weights(path)
    two = keras.Sequential(
        [keras.Input((4,)), layers.MKDense(2, expansion=2, name="d")]
    )
    with pytest.raises(ValueError, match="another `expansion`"):
        two.load_weights(path)


OPTIMIZERS = [
    "SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax",
    "Adafactor", "Nadam", "Ftrl", "Lion", "Lamb", "Muon", "ScheduleFreeAdamW",
]  # fmt: skip


def test_every_optimizer_of_keras_is_listed():
    base = keras.optimizers.Optimizer
    found = {
        name
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type)
        and issubclass(value, base)
        and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
    }
    assert found == set(OPTIMIZERS)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    optimizer = getattr(keras.optimizers, name)(learning_rate=1e-2)
    model = compiled(convnet(), optimizer)
    fixed_weights(model)
    before = [to_numpy(v) for v in model.trainable_variables]
    history = model.fit(*data(), epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert np.abs(to_numpy(variable) - old).max() > 0, variable.path


def moved(optimizer, expansion):
    """How far a step takes the kernel when its gradient never changes."""
    layer = layers.MKDense(
        50, kernel_initializer="ones", expansion=expansion, seed=7
    )
    model = keras.Sequential([keras.Input((20,)), layer])
    model.compile(optimizer, lambda y, out: keras.ops.mean(out))
    x, steps = np.ones((300, 20)), 300
    # The first steps of these optimizers are larger.
    model.fit(x, x[:, :1], batch_size=1, verbose=0)
    before = to_numpy(layer.kernel)
    model.fit(x, x[:, :1], batch_size=1, verbose=0)
    return np.mean(before - to_numpy(layer.kernel)) / steps


@pytest.mark.parametrize("expansion", [2, 3])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "Adafactor"])
def test_adaptive_optimizers_move_the_average_less(name, expansion):
    """By E[p] / sqrt(E[p**2]), whatever the rate."""

    def optimizer():
        fixed = {"relative_step": False} if name == "Adafactor" else {}
        return getattr(keras.optimizers, name)(1e-5, **fixed)

    ratio = moved(optimizer(), expansion) / moved(optimizer(), 1)
    expected = np.sqrt((expansion + 1) / (2 * expansion))
    assert ratio == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float64"]
)
def test_dtype_policies_train(policy):
    if policy == "float64" and BACKEND == "jax":
        pytest.skip("JAX has no float64 unless jax_enable_x64 is set")
    model = compiled(convnet(policy), keras.optimizers.SGD(0.1))
    x, y = data()
    first = model.evaluate(x, y, verbose=0)
    model.fit(x, y, epochs=15, verbose=0)
    assert model.evaluate(x, y, verbose=0) < first


@pytest.mark.parametrize(
    "options",
    [
        {"run_eagerly": True},
        {"jit_compile": True},
        {"jit_compile": False},
        {"steps_per_execution": 2},
    ],
)
def test_ways_to_run(options):
    """However the step runs, it computes the same."""
    if BACKEND == "torch" and options.get("jit_compile"):
        pytest.skip("torch.compile: see test_torch_compile")
    if BACKEND == "torch" and options.get("steps_per_execution"):
        pytest.skip("Keras on torch has no steps_per_execution")

    def losses(**options):
        model = compiled(convnet(), **options)
        fixed_weights(model)
        x, y = data()
        history = model.fit(
            x, y, batch_size=8, shuffle=False, epochs=2, verbose=0
        ).history
        states = [
            to_numpy(layer.mixing_seed_generator.state)[1]
            for layer in model.layers
            if hasattr(layer, "mixing_seed_generator")
        ]
        assert states == [8, 8, 8]
        return history["loss"]

    np.testing.assert_allclose(losses(**options), losses(), rtol=1e-4)


def torch_compile_only(test):
    """Marks a test that compiles with torch."""
    marks = [
        pytest.mark.slow,
        pytest.mark.skipif(BACKEND != "torch", reason="torch only"),
        pytest.mark.skipif(
            shutil.which("g++") is None,
            reason="torch.compile needs a C++ compiler, and there is none",
        ),
        # torch._dynamo warns of what Keras and it do together.
        pytest.mark.filterwarnings("ignore"),
    ]
    for mark in marks:
        test = mark(test)
    return test


def one_dense(seed):
    layer = layers.MKDense(3, seed=seed)
    return keras.Sequential([keras.Input((4,)), layer])


@torch_compile_only
def test_torch_compile():
    def losses(jit_compile):
        model = one_dense(seed=1)
        fixed_weights(model)
        model.compile("sgd", "mse", jit_compile=jit_compile)
        x = np.ones((4, 4), "float32")
        y = np.zeros((4, 3), "float32")
        return model.fit(x, y, epochs=3, verbose=0).history["loss"]

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


@torch_compile_only
def test_resumed_under_torch_compile(tmp_path):
    resumed_equals_uninterrupted(
        one_dense,
        np.ones((4, 4), "float32"),
        np.zeros((4, 3), "float32"),
        tmp_path / "state.keras",
        optimizer="sgd",
        loss="mse",
        jit_compile=True,
    )


def test_shared_layer_draws_at_each_call():
    layer = layers.MKDense(4, seed=1)
    first, second = keras.Input((4,)), keras.Input((4,))
    model = keras.Model([first, second], layer(first) + layer(second))
    model.compile("sgd", "mse")
    x = np.ones((4, 4), "float32")
    model.fit([x, x], x, verbose=0)
    assert to_numpy(layer.mixing_seed_generator.state)[1] == 2
    assert len(model.trainable_variables) == 4


class ForgetsTraining(keras.Model):
    """A model of the kind that trains without sampling."""

    def __init__(self):
        super().__init__()
        self.dense = layers.MKDense(1, name="forgotten")

    def call(self, x):
        return self.dense(x)


def test_training_without_sampling_warns_once():
    model = ForgetsTraining()
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3)), np.ones((4, 1))
    model.predict(x, verbose=0)
    with pytest.warns(UserWarning, match="'forgotten' is being") as record:
        model.fit(x, y, verbose=0)
    ours = [w for w in record if "on the average" in str(w.message)]
    assert len(ours) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.fit(x, y, verbose=0)


def test_sampling_check_raises_when_nothing_was_drawn():
    model = ForgetsTraining()
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3)), np.ones((4, 1))
    with (
        pytest.warns(UserWarning, match="trained on the average"),
        pytest.raises(
            RuntimeError, match=r"have not mixed their copies.*dense"
        ),
    ):
        model.fit(x, y, verbose=0, callbacks=[callbacks.SamplingCheck()])


def test_sampling_check_names_the_layer_that_was_not_mixed():
    class Half(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.mixed = layers.MKDense(2)
            self.average = layers.MKDense(1, name="average")

        def build(self, input_shape):
            self.mixed.build(input_shape)
            self.average.build((None, 2))

        def call(self, x, training=None):
            return self.average(
                self.mixed(x, training=training), training=False
            )

    model = Half()
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3)), np.ones((4, 1))
    with (
        pytest.warns(UserWarning, match="'average' is being trained"),
        pytest.raises(RuntimeError, match=r"Layers: average$"),
    ):
        model.fit(x, y, verbose=0, callbacks=[callbacks.SamplingCheck()])


def test_a_gradient_by_the_inputs_leaves_the_warning_to_the_training():
    model = ForgetsTraining()
    model.compile("sgd", "mse")
    x, y = np.ones((4, 3), "float32"), np.ones((4, 1))
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        gradient(lambda x: keras.ops.sum(model.dense(x, training=False)), [x])
    assert all("gradient by the inputs" in str(w.message) for w in record)
    with pytest.warns(UserWarning, match=r"'forgotten' is .*training=None"):
        model.fit(x, y, verbose=0)


def test_sampling_check_is_content_with_a_model_that_samples():
    model = compiled(convnet())
    model.fit(*data(), verbose=0, callbacks=[callbacks.SamplingCheck()])


def test_sampling_check_needs_a_majority_kernel_layer():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="no majority-kernel layer"):
        model.fit(
            np.ones((4, 3)),
            np.ones((4, 1)),
            verbose=0,
            callbacks=[callbacks.SamplingCheck()],
        )


def test_inference_and_evaluation_never_warn_or_draw():
    model = compiled(convnet())
    x, y = data()
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    model(x)
    assert all(
        to_numpy(layer.mixing_seed_generator.state)[1] == 0
        for layer in model.layers
        if hasattr(layer, "mixing_seed_generator")
    )
