"""What the user can ask of `expand`, `collapse` and their relatives."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_mk
from keras_mk.layers import MajorityKernel
from keras_mk.layers import MKDense
from tests import conversion_cases as cases
from tests.backends import to_numpy

GOLDEN = Path(__file__).parent / "golden"


def kernels(layer, name="kernel"):
    return [to_numpy(w) for w in getattr(layer, f"{name}s")]


def mk_layers(model):
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, MajorityKernel)
    ]


def two_dense():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="relu", name="hidden"),
            keras.layers.Dense(2, name="head"),
        ]
    )


def test_replicated_copies_are_the_kernel():
    plain = two_dense()
    model = keras_mk.expand(plain, expansion=4)
    for ours, theirs in zip(model.layers, plain.layers, strict=True):
        assert len(ours.kernels) == 4
        for copied in kernels(ours):
            np.testing.assert_array_equal(copied, to_numpy(theirs.kernel))
        np.testing.assert_array_equal(
            to_numpy(ours.kernel), to_numpy(theirs.kernel)
        )


def test_independent_copies_are_drawn_anew():
    plain = keras.Sequential(
        [
            keras.Input((200,)),
            keras.layers.Dense(100, kernel_initializer="he_normal"),
        ]
    )
    model = keras_mk.expand(plain, copies="independent")
    copies = kernels(model.layers[0])
    for copied in copies:
        assert np.abs(copied - to_numpy(plain.layers[0].kernel)).max() > 0.1
        assert copied.std() == pytest.approx(np.sqrt(2 / 200), rel=0.05)
    correlation = np.corrcoef([c.ravel() for c in copies])
    assert np.abs(correlation - np.eye(3)).max() < 0.05


def test_perturbed_copies_average_to_the_kernel():
    plain = two_dense()
    model = keras_mk.expand(plain, copies="perturb", scale=0.5, seed=1)
    for ours, theirs in zip(model.layers, plain.layers, strict=True):
        kernel = to_numpy(theirs.kernel)
        np.testing.assert_allclose(to_numpy(ours.kernel), kernel, atol=1e-6)
        noise = np.stack(kernels(ours)) - kernel
        spread = noise.std() / kernel.std()
        # The mean of three is taken off: sqrt(2 / 3) of it is left.
        assert spread == pytest.approx(0.5 * np.sqrt(2 / 3), rel=0.3)
    x = cases.random(4, 8)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), plain.predict(x, verbose=0), atol=1e-5
    )


def test_seed_makes_expand_reproducible():
    plain = two_dense()
    seeds = [
        [layer.seed for layer in keras_mk.expand(plain, seed=s).layers]
        for s in (1, 1, 2, None, None)
    ]
    assert seeds[0] == seeds[1]
    assert len({tuple(s) for s in seeds}) == 4
    assert seeds[0][0] != seeds[0][1]


@pytest.mark.parametrize(
    ("include", "exclude", "converted"),
    [
        ("head", None, ["head"]),
        (None, "head", ["hidden"]),
        ("^h", "^hi", ["head"]),
        (["head", "hidden"], None, ["hidden", "head"]),
        (keras.layers.Dense, None, ["hidden", "head"]),
        (lambda layer: layer.name == "hidden", None, ["hidden"]),
        (None, [keras.layers.Conv2D, "head"], None),
    ],
)
def test_include_and_exclude(include, exclude, converted):
    plain = two_dense()
    if converted is None:
        with pytest.raises(ValueError, match="`exclude` matches no layer"):
            keras_mk.expand(plain, include=include, exclude=exclude)
        return
    model = keras_mk.expand(plain, include=include, exclude=exclude)
    assert [layer.name for layer in mk_layers(model)] == converted
    planned = keras_mk.plan(plain, include=include, exclude=exclude)
    assert [row.path for row in planned.converted] == converted


def test_pattern_without_a_match_lists_near_ones():
    with pytest.raises(ValueError, match=r"\['head'.*Received: include='hed'"):
        keras_mk.expand(two_dense(), include="hed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"expansion": 0}, "Received: expansion=0"),
        ({"expansion": "3"}, "Received: expansion='3'"),
        ({"copies": "same"}, "Received: copies='same'"),
        ({"copies": "perturb", "scale": 0}, "Received: scale=0"),
        ({"seed": -1}, "Received: seed=-1"),
        ({"include": 3}, "Received: include=3"),
        ({"include": "("}, "not a regular expression"),
        ({"exclude": keras.layers.Dense}, "no layer to convert"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_mk.expand(two_dense(), **arguments)


def test_wrong_models():
    with pytest.raises(ValueError, match="must be a Keras model"):
        keras_mk.expand("model")
    with pytest.raises(ValueError, match="must be a Keras model"):
        keras_mk.collapse([])
    with pytest.raises(ValueError, match="is not built"):
        keras_mk.expand(keras.Sequential([keras.layers.Dense(2)]))
    with pytest.raises(ValueError, match="no layer to convert"):
        keras_mk.expand(
            keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.1)])
        )


def test_second_expand_and_collapse_of_a_plain_model_say_what_to_do():
    plain = two_dense()
    model = keras_mk.expand(plain)
    with pytest.raises(ValueError, match=r"expand\(keras_mk.collapse"):
        keras_mk.expand(model)
    with pytest.raises(ValueError, match="it is plain already"):
        keras_mk.collapse(plain)
    again = keras_mk.expand(keras_mk.collapse(model), expansion=2)
    assert len(again.layers[0].kernels) == 2


class NoConfig(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x, training=None):
        return self.layer(x, training=training)

    def get_config(self):
        raise NotImplementedError("no config")


def test_model_that_cannot_be_copied():
    model = NoConfig(keras.layers.Dense(2))
    model(np.ones((1, 3)))
    with pytest.raises(ValueError, match=r"cannot be copied.*`get_config`"):
        keras_mk.expand(model)


def test_a_layer_that_a_copy_does_not_have():
    plain = cases.Subclassed()
    plain.extra = keras.layers.Dense(2)
    plain.extra.build((None, 2))
    plain.build((None, 6))
    with pytest.raises(ValueError, match=r"not have the same layers.*'extra'"):
        keras_mk.expand(plain)


def test_a_compiled_model_stays_compiled():
    plain = two_dense()
    plain.compile("adam", "mse")
    plain.fit(np.ones((4, 8)), np.ones((4, 2)), verbose=0)
    optimizer = plain.optimizer
    state = [to_numpy(v) for v in optimizer.variables]
    model = keras_mk.expand(plain)
    assert plain.compiled
    assert plain.optimizer is optimizer
    assert not model.compiled
    model.compile("adam", "mse")
    model.fit(np.ones((4, 8)), np.ones((4, 2)), verbose=0, epochs=2)
    for variable, old in zip(optimizer.variables, state, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), old)
    plain.fit(np.ones((4, 8)), np.ones((4, 2)), verbose=0)


def test_plan_changes_nothing_and_counts():
    plain = two_dense()
    planned = keras_mk.plan(plain, expansion=3)
    assert planned.parameters == {
        "before": plain.count_params(),
        "training": keras_mk.expand(plain).count_params(),
        "deployed": plain.count_params(),
    }
    training = planned.parameters["training"]
    assert planned.optimizer_bytes["Adam"] == 2 * 4 * training
    text = str(planned)
    assert "hidden" in text
    assert "2 of 2 layers converted" in text
    assert [type(layer) for layer in plain.layers] == [keras.layers.Dense] * 2
    summary = keras_mk.summary(keras_mk.expand(plain))
    assert summary.parameters == planned.parameters


def test_plan_says_why_a_layer_is_left_alone():
    case = cases.recurrent_and_embedding()
    reasons = {row.kind: row.reason for row in keras_mk.plan(case.model).rows}
    assert "embedding" in reasons["Embedding"]
    assert "RNN" in reasons["LSTMCell"]
    assert reasons["Dense"] == ""


class Custom(keras.layers.Layer):
    """A layer with a kernel of its own."""

    def build(self, input_shape):
        self.kernel = self.add_weight(
            name="kernel", shape=(input_shape[-1], 2), initializer="ones"
        )

    def call(self, x):
        return keras.ops.matmul(x, self.kernel)


class MKCustom(MajorityKernel, Custom):
    pass


def test_a_custom_layer_needs_to_be_registered(monkeypatch):
    from keras_mk import registry

    monkeypatch.setattr(registry, "_MK_CLASSES", dict(registry._MK_CLASSES))
    plain = keras.Sequential([keras.Input((3,)), Custom(name="own")])
    row = keras_mk.plan(plain).rows[-1]
    assert row.expansion is None
    assert "keras_mk.register" in row.reason
    with pytest.raises(ValueError, match="must inherit"):
        keras_mk.register(Custom, MKDense)
    keras_mk.register(Custom, MKCustom)
    model = keras_mk.expand(plain)
    assert type(model.layers[0]) is MKCustom
    x = cases.random(2, 3)
    np.testing.assert_array_equal(
        model.predict(x, verbose=0), plain.predict(x, verbose=0)
    )
    collapsed = keras_mk.collapse(model, verify=x)
    assert type(collapsed.layers[0]) is Custom


def test_tied_weights_are_left_alone():
    plain = cases.tied().model
    rows = {row.path: row for row in keras_mk.plan(plain).rows}
    assert "tied to tied/second" in rows["tied/first"].reason
    assert "tied to tied/first" in rows["tied/second"].reason
    model = keras_mk.expand(plain)
    assert [layer.name for layer in mk_layers(model)] == ["free"]


def test_verify_finds_a_difference(monkeypatch):
    model = keras_mk.expand(two_dense(), copies="independent")
    x = cases.random(4, 8)
    keras_mk.collapse(model, verify=x)
    monkeypatch.setattr(
        keras_mk.convert,
        "to_plain",
        lambda layer, cls, original=keras_mk.convert.to_plain: (
            original(layer, cls),
            layer.bias.assign(layer.bias + 1.0),
        ),
    )
    with pytest.raises(ValueError, match=r"differs .* by [0-9.]+e[+-]0[01] at"):
        keras_mk.collapse(model, verify=x)


def test_plain_weights_go_into_every_copy(tmp_path):
    for make in (cases.sequential, cases.subclassed, cases.attention):
        case = make()
        source = case.model
        source.set_weights(
            [
                np.abs(np.random.default_rng(3).normal(size=w.shape))
                for w in source.weights
            ]
        )
        path = tmp_path / "plain.weights.h5"
        source.save_weights(path)
        model = keras_mk.expand(make().model, copies="independent")
        keras_mk.load_plain_weights(model, path)
        np.testing.assert_allclose(
            model.predict(case.inputs, verbose=0),
            source.predict(case.inputs, verbose=0),
            rtol=1e-5,
            atol=1e-5,
        )
        for layer in mk_layers(model):
            for name in layer.kernel_names:
                for copied in kernels(layer, name)[1:]:
                    np.testing.assert_array_equal(
                        copied, kernels(layer, name)[0]
                    )


def test_plain_weights_that_do_not_fit_change_nothing(tmp_path):
    path = tmp_path / "other.weights.h5"
    other = keras.Sequential([keras.Input((9,)), keras.layers.Dense(6)])
    other.save_weights(path)
    model = keras_mk.expand(two_dense())
    before = [to_numpy(w) for w in model.weights]
    with pytest.raises(ValueError, match=r"Layer .* expected|shape"):
        keras_mk.load_plain_weights(model, path)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), old)


@pytest.mark.parametrize("make", [two_dense, lambda: cases.attention().model])
def test_deepcopy_and_pickle(make):
    model = keras_mk.expand(make(), copies="independent")
    shape = (2, *model.input_shape[1:])
    x = cases.random(*shape)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(mk_layers(copied)) == len(mk_layers(model))
        np.testing.assert_array_equal(
            copied.predict(x, verbose=0), model.predict(x, verbose=0)
        )


@keras.saving.register_keras_serializable(package="keras_mk_tests")
def masked_logits(x):
    return keras.ops.where(x > 0, x, -np.inf)


def test_verify_with_infinite_logits(monkeypatch):
    inputs = keras.Input((8,))
    outputs = keras.layers.Dense(4, activation=masked_logits)(inputs)
    model = keras_mk.expand(keras.Model(inputs, outputs), copies="independent")
    x = cases.random(6, 8)
    assert np.isneginf(to_numpy(model(x))).any()
    keras_mk.collapse(model, verify=x)
    copy_model = keras_mk.collapse.__globals__["copy_model"]

    def something_else(model):
        plain = copy_model(model)
        plain.layers[1].bias.assign([10.0, -10.0, 10.0, -10.0])
        return plain

    monkeypatch.setitem(
        keras_mk.collapse.__globals__, "copy_model", something_else
    )
    with pytest.raises(ValueError, match="by inf at most"):
        keras_mk.collapse(model, verify=x)


def test_verify_of_a_model_that_gives_nan():
    model = keras_mk.expand(two_dense())
    model.layers[-1].bias.assign([np.nan] * 2)
    with pytest.raises(ValueError, match="gives NaN on the inputs of `verify`"):
        keras_mk.collapse(model, verify=cases.random(6, 8))


def test_verify_is_a_batch():
    model = keras_mk.expand(two_dense())
    with pytest.raises(ValueError, match=r"batch of inputs.*verify=True"):
        keras_mk.collapse(model, verify=True)
    assert keras_mk.collapse(model, verify=False).count_params() > 0


def test_collapsed_checkpoint(tmp_path):
    model = keras_mk.expand(two_dense(), copies="independent")
    model.compile("adam", "mse")
    path = tmp_path / "folder" / "plain_{epoch}.keras"
    checkpoint = keras_mk.callbacks.CollapsedCheckpoint(str(path))
    x, y = cases.random(8, 8), cases.random(8, 2)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[checkpoint])
    written = sorted(p.name for p in path.parent.iterdir())
    assert written == ["plain_1.keras", "plain_2.keras"]
    plain = keras.saving.load_model(path.parent / "plain_2.keras")
    assert {type(layer) for layer in plain.layers} == {keras.layers.Dense}
    np.testing.assert_allclose(
        plain.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6
    )


@pytest.mark.parametrize("path", ["gs://bucket/m.keras", "hf://me/m.keras"])
def test_collapsed_checkpoint_on_another_machine(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"this machine's.*filepath='{path}'"):
        keras_mk.callbacks.CollapsedCheckpoint(path)
    assert list(tmp_path.iterdir()) == []


def test_collapsed_checkpoint_of_whole_models_in_hdf5(tmp_path):
    with pytest.raises(ValueError, match=r"end in '\.keras'.*m\.h5"):
        keras_mk.callbacks.CollapsedCheckpoint(tmp_path / "m.h5")


def test_collapsed_checkpoint_through_a_symbolic_link(tmp_path):
    model = keras_mk.expand(two_dense(), copies="independent")
    model.compile("sgd", "mse")
    link = tmp_path / "latest.keras"
    link.symlink_to(tmp_path / "blob")
    checkpoint = keras_mk.callbacks.CollapsedCheckpoint(link)
    x, y = cases.random(8, 8), cases.random(8, 2)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[checkpoint])
    assert link.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["blob", link.name]
    plain = keras.saving.load_model(link)
    np.testing.assert_allclose(
        plain.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6
    )


def test_collapsed_checkpoint_of_the_best_weights(tmp_path):
    model = keras_mk.expand(two_dense())
    model.compile("sgd", "mse")
    path = tmp_path / "best.weights.h5"
    checkpoint = keras_mk.callbacks.CollapsedCheckpoint(
        str(path), save_weights_only=True, save_best_only=True, monitor="loss"
    )
    x, y = cases.random(8, 8), cases.random(8, 2)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[checkpoint])
    plain = two_dense()
    plain.load_weights(path)
    np.testing.assert_allclose(
        plain.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6
    )


def test_user_layers_of_majority_kernels_collapse():
    inputs = keras.Input((5, 8))
    x = keras_mk.layers.MKMultiHeadAttention(2, 4, name="attention")(
        inputs, inputs
    )
    model = keras.Model(inputs, MKDense(2)(x))
    batch = cases.random(2, 5, 8)
    plain = keras_mk.collapse(model, verify=batch)
    assert type(plain.get_layer("attention")) is keras.layers.MultiHeadAttention
    revived = keras.Model.from_config(plain.get_config())
    assert type(revived.get_layer("attention")) is (
        keras.layers.MultiHeadAttention
    )


WITHOUT_KERAS_MK = """
import sys
sys.modules["keras_mk"] = None
import keras, numpy as np
model = keras.saving.load_model(sys.argv[1])
x = np.load(sys.argv[2])
np.save(sys.argv[3], model.predict(x, verbose=0))
"""


@pytest.mark.slow
def test_collapsed_model_loads_where_keras_mk_is_not(tmp_path):
    case = cases.attention()
    model = keras_mk.expand(case.model, copies="perturb")
    paths = [str(tmp_path / n) for n in ("plain.keras", "x.npy", "y.npy")]
    keras_mk.collapse(model).save(paths[0])
    np.save(paths[1], case.inputs)
    subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS_MK, *paths],
        check=True,
        capture_output=True,
    )
    np.testing.assert_allclose(
        np.load(paths[2]), model.predict(case.inputs, verbose=0), atol=1e-5
    )


@pytest.mark.slow
def test_t5_generates_as_before():
    case = cases.t5()
    model = keras_mk.expand(case.model)
    collapsed = keras_mk.collapse(model)
    for lm in (case.model, model, collapsed):
        lm.compile(sampler="greedy")
    prompts = {"encoder_text": cases.SENTENCES, "decoder_text": [""] * 4}
    expected = case.model.generate(prompts, max_length=5)
    assert model.generate(prompts, max_length=5) == expected
    assert collapsed.generate(prompts, max_length=5) == expected


def test_a_hidden_composite_saved_on_another_backend():
    """A KerasHub T5, written on JAX, next to what it computed then."""
    pytest.importorskip("keras_hub")
    path, expected = GOLDEN / "t5.keras", GOLDEN / "t5.npy"
    inputs = {
        "encoder_token_ids": np.arange(12).reshape(2, 6) % 11,
        "encoder_padding_mask": np.ones((2, 6), "int32"),
        "decoder_token_ids": np.arange(10).reshape(2, 5) % 11,
        "decoder_padding_mask": np.ones((2, 5), "int32"),
    }
    if os.environ.get("KERAS_MK_WRITE_GOLDEN"):
        backbone = cases.t5().model.backbone
        keras_mk.expand(backbone, copies="perturb", seed=1).save(path)
    model = keras.saving.load_model(path)
    assert len(mk_layers(model)) == 2 * 7 + 2 * 11
    found = model.predict(inputs, verbose=0)["decoder_sequence_output"]
    if os.environ.get("KERAS_MK_WRITE_GOLDEN"):
        np.save(expected, found)
    np.testing.assert_allclose(found, np.load(expected), atol=1e-5)
