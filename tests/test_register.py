"""Layer classes of one's own, registered to be converted."""

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_mk
from keras_mk import _keras_internals as internals
from tests.backends import to_numpy
from tests.conversion_cases import random


@keras.saving.register_keras_serializable(package="test_register")
class Gate(layers.Layer):
    """Two kernels of one shape, neither of them the first weight."""

    def build(self, input_shape):
        size = input_shape[-1]
        self.scale = self.add_weight(name="scale", shape=(size,))
        self.out_kernel = self.add_weight(
            (size, size), "glorot_normal", name="out_kernel"
        )
        self.bias = self.add_weight(name="bias", shape=(size,))
        self._in_kernel = self.add_weight(name="in_kernel", shape=(size, size))

    def call(self, x):
        hidden = ops.tanh(ops.matmul(x * self.scale, self._in_kernel))
        return ops.matmul(hidden, self.out_kernel) + self.bias


class MKGate(keras_mk.layers.MajorityKernel, Gate):
    kernel_names = ("in_kernel", "out_kernel")


keras_mk.register(Gate, MKGate)


def gated():
    plain = keras.Sequential([keras.Input((4,)), Gate(), layers.Dense(2)])
    for variable in plain.weights:
        variable.assign(np.random.default_rng(3).normal(size=variable.shape))
    return plain


def test_kernels_are_found_by_name(tmp_path):
    plain = gated()
    x = random(5, 4)
    expected = to_numpy(plain(x))
    model = keras_mk.expand(plain, expansion=2)
    np.testing.assert_allclose(to_numpy(model(x)), expected, rtol=1e-5)
    shipped = keras_mk.collapse(model)
    np.testing.assert_allclose(to_numpy(shipped(x)), expected, rtol=1e-5)
    assert [w.path for w in shipped.weights] == [w.path for w in plain.weights]


def test_a_layer_of_ones_own_is_made_with_copies():
    layer = MKGate()
    layer.build((None, 4))
    assert [w.shape for w in layer.out_kernels] == [(4, 4)] * 3
    assert tuple(layer(random(5, 4), training=True).shape) == (5, 4)


def test_plain_weights_go_into_their_kernels(tmp_path):
    plain = gated()
    x = random(5, 4)
    expected = to_numpy(plain(x))
    plain.save_weights(tmp_path / "plain.weights.h5")
    other = gated()
    other.set_weights([0 * w for w in other.get_weights()])
    model = keras_mk.expand(other, expansion=3)
    keras_mk.load_plain_weights(model, tmp_path / "plain.weights.h5")
    np.testing.assert_allclose(to_numpy(model(x)), expected, rtol=1e-5)
    assert len({to_numpy(w).tobytes() for w in model.layers[0].in_kernels}) == 1


def test_plain_weights_are_not_taken_for_copies(tmp_path):
    plain = gated()
    plain.save_weights(tmp_path / "plain.weights.h5")
    model = keras_mk.expand(plain, expansion=3)
    with pytest.raises(ValueError, match="load_plain_weights"):
        model.load_weights(tmp_path / "plain.weights.h5")


@keras.saving.register_keras_serializable(package="test_register")
class Noisy(layers.Dense):
    """A layer with a seed, and a seed generator, of its own."""

    def __init__(self, units, seed=None, **kwargs):
        super().__init__(units, **kwargs)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, x, training=None):
        if training:
            shape = ops.shape(x)
            x = x + keras.random.normal(shape, seed=self.seed_generator)
        return super().call(x)

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


@keras.saving.register_keras_serializable(package="test_register")
class MKNoisy(keras_mk.layers.MajorityKernel, Noisy):
    pass


keras_mk.register(Noisy, MKNoisy)


def test_a_seed_of_the_layers_own_is_kept(tmp_path):
    plain = keras.Sequential([keras.Input((4,)), Noisy(3, seed=11)])
    x = random(2, 4)
    plain.layers[0].seed_generator.next()
    model = keras_mk.expand(plain, expansion=2, seed=1)
    layer = model.layers[0]
    assert layer.seed == 11
    own = to_numpy(layer.seed_generator.state)
    np.testing.assert_array_equal(
        own, to_numpy(plain.layers[0].seed_generator.state)
    )
    assert to_numpy(layer.mixing_seed_generator.state)[0] != 11
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras").layers[0]
    assert again.seed == 11
    np.testing.assert_array_equal(
        to_numpy(again.mixing_seed_generator.state),
        to_numpy(layer.mixing_seed_generator.state),
    )
    shipped = keras_mk.collapse(model).layers[0]
    assert type(shipped) is Noisy
    assert shipped.seed == 11
    np.testing.assert_array_equal(to_numpy(shipped.seed_generator.state), own)
    assert len(internals.seed_generators(shipped)) == 1
    assert MKNoisy(3, seed=5).get_config()["seed"] == 5
    np.testing.assert_allclose(
        to_numpy(model(x)), to_numpy(plain(x)), rtol=1e-5
    )


class Picky(layers.Dense):
    """A layer whose `call` takes more than its input."""

    def call(self, x, other=None, training=None, mask=None):
        y = super().call(x)
        if other is not None:
            y = y + other
        if mask is not None:
            y = y * ops.cast(mask, y.dtype)[:, None]
        return 2 * y if training else y


class MKPicky(keras_mk.layers.MajorityKernel, Picky):
    pass


keras_mk.register(Picky, MKPicky)


@pytest.mark.xfail(
    strict=True, reason="a layer's `call` is given its first argument only"
)
@pytest.mark.parametrize("argument", ["other", "mask", "training"])
def test_call_is_given_all_of_its_arguments(argument):
    layer = MKPicky(3, expansion=1)
    layer.build((None, 4))
    plain = Picky(3)
    plain.build((None, 4))
    plain.set_weights(layer.get_weights())
    given = {"other": np.ones(3), "mask": np.array([1, 0]), "training": True}
    arguments = {argument: given[argument]}
    x = random(2, 4)
    np.testing.assert_allclose(
        to_numpy(layer(x, **arguments)), to_numpy(plain(x, **arguments))
    )
