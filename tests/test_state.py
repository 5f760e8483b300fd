"""What a model carries beside its config survives every operation."""

import copy
import functools
import random as python_random

import keras
import numpy as np
import pytest
from keras import layers

import keras_mk
from keras_mk import _keras_internals as internals
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.walk import walk
from tests.backends import to_numpy
from tests.conversion_cases import Block
from tests.conversion_cases import Subclassed
from tests.conversion_cases import random

BLOCKS = {"Block": Block, "Subclassed": Subclassed}


def trainable(model):
    """The number of parameters that an optimizer would update."""
    return sum(int(np.prod(w.shape)) for w in model.trainable_variables)


def saved(model, folder, custom_objects=None):
    path = folder / "model.keras"
    model.save(path)
    return keras.saving.load_model(path, custom_objects)


def penalty(model):
    return sum(float(to_numpy(loss)) for loss in model.losses)


def attention():
    inputs = keras.Input((5, 8))
    x = layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    return keras.Model(inputs, layers.Dense(2)(x))


def blocks():
    model = Subclassed()
    model.build((None, 6))
    return model


def test_what_is_frozen_in_a_composite_stays_frozen(tmp_path):
    plain = attention()
    plain.get_layer("attention").trainable = False
    model = keras_mk.expand(plain, expansion=2)
    assert trainable(plain) == 8 * 2 + 2
    assert trainable(model) == 2 * 8 * 2 + 2
    assert trainable(keras_mk.collapse(model)) == trainable(plain)
    assert trainable(saved(model, tmp_path)) == trainable(model)


def test_each_flag_is_kept_by_itself(tmp_path):
    """Also a layer that trains in a frozen composite, and single variables."""
    plain = blocks()
    plain.blocks[0].trainable = False
    plain.blocks[0].up.trainable = True
    plain.blocks[1].up.kernel.trainable = False
    plain.head.bias.trainable = False

    def flags(model):
        return [
            (f.key, f.layer.trainable, v.name.split("_")[0], v.trainable)
            for f in walk(model)
            for v in internals.own_variables(f.layer)
            if v.name[-2:] != "_1"
        ]

    model = keras_mk.expand(plain, expansion=2)
    assert flags(model) == flags(plain)
    assert flags(saved(model, tmp_path, BLOCKS)) == flags(plain)
    assert flags(keras_mk.collapse(model)) == flags(plain)


def test_what_is_frozen_afterwards_ships_frozen(tmp_path):
    model = keras_mk.expand(blocks(), expansion=2)
    model.blocks[0].trainable = False
    assert not keras_mk.collapse(model).blocks[0].trainable
    model = saved(model, tmp_path, BLOCKS)
    assert not model.blocks[0].up.trainable
    # And can be trained again.
    model.blocks[0].trainable = True
    model.compile("sgd", "mse", jit_compile=False)
    before = [to_numpy(w) for w in model.blocks[0].up.kernels]
    model.fit(random(4, 6), random(4, 2), verbose=0)
    for variable, old in zip(model.blocks[0].up.kernels, before):
        assert np.abs(to_numpy(variable) - old).max() > 0


def test_what_was_frozen_when_expanded_can_be_unfrozen(tmp_path):
    """The config is of the moment of saving, not of expanding."""
    base = keras.Sequential([layers.Dense(6), layers.Dense(3)], name="base")
    plain = keras.Sequential([keras.Input((6,)), base, layers.Dense(2)])
    base.trainable = False
    model = keras_mk.expand(plain, expansion=2)
    model.layers[0].trainable = True
    model = saved(model, tmp_path)
    model.compile("sgd", "mse", jit_compile=False)
    before = [to_numpy(w) for w in model.layers[0].trainable_variables]
    assert len(before) == 2 * 3
    model.fit(random(4, 6), random(4, 2), verbose=0)
    for variable, old in zip(model.layers[0].trainable_variables, before):
        assert np.abs(to_numpy(variable) - old).max() > 0


@keras.saving.register_keras_serializable(package="test_state")
class Threshold(keras.Model):
    """A Functional model with a training step, and state, of its own."""

    def __init__(self, *args, threshold=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.threshold = threshold

    def get_config(self):
        return {**super().get_config(), "threshold": self.threshold}


def functional_subclass():
    inputs = keras.Input((6,))
    x = layers.Dense(5, activation="relu", name="first")(inputs)
    x = layers.Dropout(0.1, name="drop")(x)
    return Threshold(inputs, layers.Dense(2, name="last")(x))


@keras.saving.register_keras_serializable(package="test_state")
class Stack(keras.Sequential):
    """A subclass of Sequential."""


@pytest.mark.parametrize("way", ["save", "deepcopy", "collapse"])
def test_changes_after_expand_are_kept(way, tmp_path):
    model = keras_mk.expand(functional_subclass(), expansion=2)
    model.threshold = 5.0
    model.get_layer("drop").rate = 0.4
    model.get_layer("first").activation = keras.activations.tanh
    expected = to_numpy(model(random(4, 6)))
    other = {
        "save": lambda: saved(model, tmp_path),
        "deepcopy": lambda: copy.deepcopy(model),
        "collapse": lambda: keras_mk.collapse(model),
    }[way]()
    assert other.threshold == 5.0
    assert other.get_layer("drop").rate == 0.4
    assert other.get_layer("first").activation is keras.activations.tanh
    np.testing.assert_allclose(to_numpy(other(random(4, 6))), expected, 1e-5)


def test_a_layer_that_was_added_after_expand_is_kept(tmp_path):
    plain = Stack([keras.Input((6,)), layers.Dense(5), layers.Dense(4)])
    model = keras_mk.expand(plain, expansion=2)
    model.add(layers.Dense(3))
    expected = to_numpy(model(random(4, 6)))
    for other in (saved(model, tmp_path), keras_mk.collapse(model)):
        assert len(other.layers) == 3
        np.testing.assert_allclose(
            to_numpy(other(random(4, 6))), expected, 1e-5
        )


def test_attributes_that_a_config_does_not_show_are_copied():
    plain = blocks()
    plain.blocks[0].up.activation = keras.activations.tanh
    plain.note = {"labels": ["a", "b"]}
    plain.head.dtype_policy = "mixed_float16"
    plain.head.kernel.constraint = keras.constraints.NonNeg()
    plain.head.kernel.regularizer = keras.regularizers.L2(0.5)
    expected = to_numpy(plain(random(4, 6)))
    model = keras_mk.expand(plain, expansion=2)
    np.testing.assert_allclose(to_numpy(model(random(4, 6))), expected, 1e-2)
    assert penalty(model) == pytest.approx(penalty(plain), rel=1e-4)
    shipped = keras_mk.collapse(model)
    for other in (model, shipped):
        assert other.blocks[0].up.activation is keras.activations.tanh
        assert other.note == {"labels": ["a", "b"]}
        assert other.head.compute_dtype == "float16"
    assert isinstance(
        model.head.kernels[0].constraint, keras.constraints.NonNeg
    )
    assert isinstance(shipped.head.kernel.constraint, keras.constraints.NonNeg)
    assert penalty(shipped) == pytest.approx(penalty(plain), rel=1e-4)


def test_names_and_paths_are_copied():
    plain = blocks()
    model = keras_mk.expand(plain, expansion=2)
    names = [(f.key, f.layer.name) for f in walk(plain)]
    assert [(f.key, f.layer.name) for f in walk(model)] == names
    shipped = keras_mk.collapse(model)
    assert [w.path for w in shipped.weights] == [w.path for w in plain.weights]


@pytest.mark.skipif(
    keras.config.backend() == "torch",
    reason="on torch, Dropout without a seed draws from torch's generator",
)
def test_seeds_are_copied():
    plain = functional_subclass()
    drop = plain.get_layer("drop")
    drop(random(4, 5), training=True)
    model = keras_mk.expand(plain, expansion=2)
    shipped = keras_mk.collapse(model)
    expected = to_numpy(drop(random(4, 5), training=True))
    for other in (model, shipped):
        found = other.get_layer("drop")(random(4, 5), training=True)
        np.testing.assert_array_equal(to_numpy(found), expected)


def test_lora_is_kept():
    plain = blocks()
    plain.blocks[0].up.enable_lora(2)
    plain.blocks[0].up.lora_kernel_b.assign(random(2, 12))
    expected = to_numpy(plain(random(4, 6)))
    model = keras_mk.expand(plain, expansion=2)
    assert len(model.blocks[0].up.trainable_variables) == 3
    for other in (model, keras_mk.collapse(model)):
        np.testing.assert_allclose(
            to_numpy(other(random(4, 6))), expected, 1e-5
        )
        np.testing.assert_array_equal(
            to_numpy(other.blocks[0].up.lora_kernel_b), random(2, 12)
        )


def test_frozen_batch_norm_of_a_composite_is_not_calibrated():
    inputs = keras.Input((6,))

    @keras.saving.register_keras_serializable(package="test_state")
    class Normed(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.norm = layers.BatchNormalization()
            self.dense = layers.Dense(2)

        def build(self, shape):
            self.norm.build(shape)
            self.dense.build(shape)

        def call(self, x, training=None):
            return self.dense(self.norm(x, training=training))

    x = layers.BatchNormalization()(inputs)
    plain = keras.Model(inputs, Normed(name="normed")(x))
    plain.get_layer("normed").trainable = False
    found = keras_mk.recalibrate_batch_norm(plain, random(64, 6), verbose=0)
    norm = found.get_layer("normed").norm
    np.testing.assert_array_equal(to_numpy(norm.moving_mean), np.zeros(6))


def class_of_a_module(module, factor):
    """A class `Twin` as another module might define it."""

    class Twin(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = layers.Dense(3)

        def build(self, shape):
            self.dense.build(shape)

        def call(self, x):
            return factor * self.dense(x)

    Twin.__module__ = module
    return Twin


def test_classes_of_one_name_from_two_modules():
    one, two = class_of_a_module("one", 1.0), class_of_a_module("two", 5.0)
    plain = keras.Sequential([keras.Input((3,)), one(), two()])
    expected = to_numpy(plain(random(4, 3)))
    model = keras_mk.expand(plain, expansion=2)
    assert [type(f).__module__ for f in model.layers] == ["one", "two"]
    for other in (model, keras_mk.collapse(model)):
        np.testing.assert_allclose(
            to_numpy(other(random(4, 3))), expected, 1e-5
        )
    other = class_of_a_module("one", 2.0)
    plain = keras.Sequential([keras.Input((3,)), one(), other()])
    with pytest.raises(
        ValueError, match=r"two classes that are both.*one\.Twin"
    ):
        keras_mk.expand(plain)


@keras.saving.register_keras_serializable(package="test_state")
class MakesCopies(keras.Model):
    """A model whose constructor makes majority-kernel layers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras_mk.layers.MKDense(5, expansion=2)
        self.attention = keras_mk.layers.MKMultiHeadAttention(1, 2)
        self.last = keras_mk.layers.MKDense(3, expansion=2)

    def call(self, x, training=None):
        x = self.first(x, training=training)
        x = self.attention(x, x, training=training)
        return self.last(x, training=training)


def test_a_model_that_makes_its_copies_itself_is_collapsed(tmp_path):
    model = MakesCopies()
    x = random(4, 2, 6)
    model(x)
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(x, random(4, 2, 3), verbose=0)
    model.first.trainable = False
    expected = to_numpy(model(x))
    plain = keras_mk.collapse(model, verify=x)
    assert type(plain.first) is layers.Dense
    assert type(plain.attention) is layers.MultiHeadAttention
    again = keras_mk.collapse(keras_mk.expand(plain, expansion=2))
    for other in (saved(plain, tmp_path), copy.deepcopy(plain), again):
        assert not any(isinstance(f.layer, MajorityKernel) for f in walk(other))
        assert other.count_params() == plain.count_params()
        assert not other.first.trainable
        np.testing.assert_allclose(to_numpy(other(x)), expected, 1e-5, 1e-6)
    report = keras_mk.export_collapsed(
        model, tmp_path / "shipped.keras", "keras", verify=False
    )
    assert report.parameters == plain.count_params()
    callback = keras_mk.callbacks.CollapsedCheckpoint(tmp_path / "best.keras")
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(x, random(4, 2, 3), verbose=0, callbacks=[callback])
    keras.saving.load_model(tmp_path / "best.keras")


def test_a_loss_that_cannot_be_saved_does_not_stand_in_the_way():
    model = keras_mk.expand(functional_subclass(), expansion=2)
    loss = functools.partial(keras.losses.mean_squared_error)
    model.compile("sgd", loss)
    assert keras_mk.collapse(model).threshold == 1.0


def test_the_global_random_state_stays():
    plain = functional_subclass()
    model = keras_mk.expand(plain, expansion=2, seed=1)

    for operation in (
        lambda: keras_mk.collapse(model),
        lambda: keras_mk.expand(plain, seed=1),
    ):
        numbers = []
        for action in (operation, lambda: None):
            keras.utils.set_random_seed(7)
            action()
            numbers.append(
                (
                    python_random.random(),
                    np.random.random(),
                    *to_numpy(keras.random.normal((3,))),
                )
            )
        assert numbers[0] == numbers[1]


@keras.saving.register_keras_serializable(package="test_state")
class Prepares(keras.Model):
    """A model with a layer that is called as KerasHub's preprocessors are."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.preprocessor = layers.Dense(4)

    def build(self, input_shape):
        self.preprocessor.build(input_shape)

    def call(self, x, training=None):
        return self.preprocessor(x, training=training)


def test_a_layer_called_preprocessor_is_not_shared():
    plain = Prepares()
    plain.build((None, 6))
    model = keras_mk.expand(plain, expansion=2)
    assert isinstance(model.preprocessor, keras_mk.layers.MKDense)
    model.compile("sgd", "mse", jit_compile=False)
    before = plain.get_weights()
    model.fit(random(4, 6), random(4, 4), verbose=0)
    for value, old in zip(plain.get_weights(), before):
        np.testing.assert_array_equal(value, old)
    shipped = keras_mk.collapse(model)
    assert shipped.preprocessor is not model.preprocessor
    assert np.abs(shipped.get_weights()[0] - before[0]).max() > 0


def test_a_composite_is_saved_and_shipped_by_itself(tmp_path):
    model = keras_mk.expand(blocks(), expansion=2)
    x = random(4, 6)
    expected = to_numpy(model.blocks[0](x))
    inputs = keras.Input((6,))
    other = keras.Model(inputs, model.blocks[0](inputs))
    again = saved(model, tmp_path, BLOCKS).blocks[0]
    for found in (
        saved(other, tmp_path, BLOCKS),
        keras_mk.collapse(other),
        keras_mk.collapse(model.blocks[0]),
        keras_mk.collapse(again),
    ):
        np.testing.assert_allclose(to_numpy(found(x)), expected, 1e-5)


def test_a_recipe_that_does_not_fit_says_so(tmp_path):
    config = keras_mk.expand(blocks(), expansion=2).get_config()
    config["recipe"]["head.gone"] = {"expansion": 2, "seed": 1}
    kind = type(keras_mk.expand(blocks(), expansion=2))
    with keras.saving.custom_object_scope(BLOCKS):
        with pytest.raises(ValueError, match=r"No layer at 'head\.gone'"):
            kind.from_config(config)
        del config["recipe"]["head.gone"]
        for item in ({"seed": -1}, {"seed": 2**40}, {"expansion": 0}):
            wrong = {"expansion": 2, "seed": 1, **item}
            broken = {**config, "recipe": {"head": wrong}}
            with pytest.raises(ValueError, match=next(iter(item))):
                kind.from_config(broken)


def test_an_unbuilt_model_is_not_collapsed():
    model = keras.Sequential([keras_mk.layers.MKDense(3)])
    with pytest.raises(ValueError, match="not built"):
        keras_mk.collapse(model)


class Spare(keras.Model):
    """A model that does not use all of its layers."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.used = keras_mk.layers.MKDense(2)
        self.spare = keras_mk.layers.MKDense(3)

    def build(self, input_shape):
        self.used.build(input_shape)

    def call(self, x, training=None):
        return self.used(x, training=training)


def test_a_layer_that_was_never_built_is_collapsed_as_it_is():
    model = Spare()
    model(random(4, 3))
    plain = keras_mk.collapse(model)
    assert type(plain.spare) is layers.Dense
    assert not plain.spare.built


def test_a_checkpoint_callback_in_use_can_be_copied(tmp_path):
    model = keras_mk.expand(functional_subclass(), expansion=2)
    callback = keras_mk.callbacks.CollapsedCheckpoint(tmp_path / "m.keras")
    callback.set_model(model)
    other = copy.deepcopy(callback)
    other.model.save(tmp_path / "other.keras")
    assert keras.saving.load_model(tmp_path / "other.keras").built


# Keras warns of the format.
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_the_plain_model_is_saved_as_hdf5(tmp_path):
    plain = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    shipped = keras_mk.collapse(keras_mk.expand(plain))
    shipped.save(tmp_path / "plain.h5")
    again = keras.saving.load_model(tmp_path / "plain.h5")
    np.testing.assert_allclose(
        to_numpy(again(random(2, 4))), to_numpy(plain(random(2, 4))), 1e-5
    )
