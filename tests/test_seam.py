"""Which kernel a layer uses, however it is called or its kernel is read."""

import threading

import keras
import numpy as np
import pytest
from keras import layers
from keras import ops

import keras_mk
from keras_mk import mixing
from tests.backends import to_numpy
from tests.conversion_cases import random

BACKEND = keras.config.backend()


def counter(layer):
    return int(to_numpy(layer.mixing_seed_generator.state)[1])


def mixture_of(layer, draw):
    """The mixture that a layer's `draw`-th draw makes, counted from 0."""
    state = to_numpy(layer.mixing_seed_generator.state).copy()
    state[1] = draw
    if BACKEND == "torch":
        # There the state counts in both words.
        state[0] = layer.seed
    state = ops.convert_to_tensor(
        state, layer.mixing_seed_generator.state.dtype
    )
    return to_numpy(
        mixing.sampled_mixture([w.value for w in layer.kernels], state)
    )


def dense(units=3, **kwargs):
    layer = keras_mk.layers.MKDense(units, use_bias=False, seed=7, **kwargs)
    layer.build((None, 4))
    return layer


class Reader(layers.Layer):
    """Multiplies by the kernel of a layer, twice, and by its transpose."""

    def __init__(self, dense, **kwargs):
        super().__init__(**kwargs)
        self.dense = dense
        self.built = True

    def call(self, x, training=None):
        first = ops.matmul(x, self.dense.kernel)
        second = ops.matmul(x, self.dense.kernel)
        back = ops.matmul(first, ops.transpose(self.dense.kernel))
        return first, second, back


def test_a_kernel_that_another_layer_reads_is_mixed_once_a_step():
    inner = dense()
    reader = Reader(inner)
    x = random(2, 4)
    for draw in range(2):
        first, second, back = map(to_numpy, reader(x, training=True))
        assert counter(inner) == draw + 1
        w = mixture_of(inner, draw)
        np.testing.assert_allclose(first, x @ w, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(back, x @ w @ w.T, rtol=1e-5, atol=1e-5)
    average = np.mean([to_numpy(w) for w in inner.kernels], axis=0)
    first, _, _ = reader(x, training=False)
    np.testing.assert_allclose(to_numpy(first), x @ average, rtol=1e-5)
    assert counter(inner) == 2
    inner.trainable = False
    first, _, _ = reader(x, training=True)
    np.testing.assert_allclose(to_numpy(first), x @ average, rtol=1e-5)
    assert counter(inner) == 2


def test_a_tied_kernel_is_the_one_that_the_layer_used():
    class Tied(layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = dense()
            self.built = True

        def call(self, x, training=None):
            hidden = self.dense(x, training=training)
            return hidden, ops.matmul(hidden, ops.transpose(self.dense.kernel))

    layer = Tied()
    x = random(2, 4)
    hidden, back = map(to_numpy, layer(x, training=True))
    assert counter(layer.dense) == 1
    w = mixture_of(layer.dense, 0)
    np.testing.assert_allclose(hidden, x @ w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(back, hidden @ w.T, rtol=1e-5, atol=1e-6)


def test_a_kernel_that_is_read_in_mixed_precision_is_cast():
    inner = dense(dtype="mixed_bfloat16")

    class Asks(layers.Layer):
        def call(self, x):
            self.found = keras.backend.standardize_dtype(inner.kernel.dtype)
            return x

    reader = Asks(dtype="mixed_bfloat16")
    reader(random(2, 4), training=True)
    assert reader.found == "bfloat16"
    assert keras.backend.standardize_dtype(inner.kernel.dtype) == "float32"


def test_copies_that_only_another_layer_reads_train_apart():
    inputs = keras.Input((4,))
    inner = dense()
    for copy in inner.kernels:
        copy.assign(random(4, 3))
    model = keras.Model(inputs, Reader(inner)(inputs)[2])
    model.compile("sgd", "mse")
    model.fit(random(4, 4), random(4, 4), epochs=2, verbose=0)
    assert counter(inner) == 2
    first, second, _ = (to_numpy(copy) for copy in inner.kernels)
    assert np.abs(first - second).max() > 0


class ReadsInModel(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = dense(4)
        self.built = True

    def call(self, x, training=None):
        return ops.matmul(x, self.dense.kernel)


def test_a_kernel_that_a_model_reads():
    model = ReadsInModel()
    model.compile("sgd", "mse")
    x, y = random(4, 4), random(4, 4)
    if BACKEND == "jax":
        with pytest.warns(UserWarning, match="in the `call` of a model"):
            model.fit(x, y, verbose=0)
        assert counter(model.dense) == 0
    else:
        model.fit(x, y, verbose=0)
        assert counter(model.dense) == 1


def test_time_distributed_draws_once_a_step():
    inner = dense()
    layer = layers.TimeDistributed(inner)
    x = random(2, 5, 4)
    found = to_numpy(layer(x, training=True))
    assert counter(inner) == 1
    expected = x @ mixture_of(inner, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_time_distributed_draws_once_a_step_in_fit():
    plain = keras.Sequential(
        [keras.Input((5, 4)), layers.TimeDistributed(layers.Dense(3))]
    )
    model = keras_mk.expand(plain, expansion=2)
    model.compile("sgd", "mse")
    model.fit(random(8, 5, 4), random(8, 5, 3), batch_size=4, verbose=0)
    assert counter(model.layers[0].layer) == 2


def test_a_shared_layer_draws_at_each_call():
    inner = dense()
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [inner(inputs), inner(inputs)])
    one, two = map(to_numpy, model(random(2, 4), training=True))
    assert counter(inner) == 2
    assert np.abs(one - two).max() > 0


class Recurses(layers.Layer):
    """A layer of one's own that calls itself."""

    def build(self, input_shape):
        self.kernel = self.add_weight(name="kernel", shape=(4, 4))

    def call(self, x):
        if x.shape[0] > 2:
            x = self(x[:2])
        return ops.matmul(x, self.kernel)


class MKRecurses(keras_mk.layers.MajorityKernel, Recurses):
    pass


def test_a_layer_that_calls_itself_is_mixed():
    layer = MKRecurses(seed=7)
    layer.build((3, 4))
    x = random(3, 4)
    found = to_numpy(layer(x, training=True))
    average = np.mean([to_numpy(w) for w in layer.kernels], axis=0)
    outer, inner = mixture_of(layer, 0), mixture_of(layer, 1)
    np.testing.assert_allclose(found, x[:2] @ inner @ outer, rtol=1e-4)
    assert np.abs(found - x[:2] @ inner @ average).max() > 1e-3


class Underscore(layers.Layer):
    """A layer of one's own that keeps its kernel to itself."""

    def build(self, input_shape):
        self._kernel = self.add_weight(
            name="kernel", shape=(input_shape[-1], 3)
        )

    def call(self, x):
        return ops.matmul(x, self._kernel)


class MKUnderscore(keras_mk.layers.MajorityKernel, Underscore):
    pass


keras_mk.register(Underscore, MKUnderscore)


def test_a_kernel_behind_an_underscore_is_mixed(tmp_path):
    x = random(2, 4)
    layer = MKUnderscore(seed=7)
    found = to_numpy(layer(x, training=True))
    np.testing.assert_allclose(found, x @ mixture_of(layer, 0), rtol=1e-5)
    plain = keras.Sequential([keras.Input((4,)), Underscore()])
    model = keras_mk.expand(plain, copies="independent", expansion=2)
    expected = to_numpy(model(x))
    for model_ in (model, keras.Sequential([keras.Input((4,)), layer])):
        expected = to_numpy(model_(x))
        shipped = keras_mk.collapse(model_)
        assert type(shipped.layers[0]) is Underscore
        np.testing.assert_allclose(to_numpy(shipped(x)), expected, rtol=1e-5)


def test_spectral_normalization_of_copies_is_refused():
    layer = layers.SpectralNormalization(keras_mk.layers.MKDense(3))
    with pytest.raises(ValueError, match="not support SpectralNormalization"):
        layer(random(2, 4), training=True)


class Waits(layers.Layer):
    """A layer of one's own that waits before and after it reads its kernel."""

    wait = staticmethod(lambda: None)

    def build(self, input_shape):
        self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1], 3))

    def call(self, x):
        self.wait()
        y = ops.matmul(x, self.kernel)
        self.wait()
        return y


class MKWaits(keras_mk.layers.MajorityKernel, Waits):
    pass


@pytest.mark.xfail(
    strict=True, reason="the kernel of a call is kept on the layer"
)
def test_two_threads_do_not_see_each_others_kernels():
    layer = MKWaits(seed=7)
    layer.build((None, 4))
    x = random(2, 4)
    average = np.mean([to_numpy(w) for w in layer.kernels], axis=0)
    both, found = threading.Barrier(2, timeout=20), {}
    layer.wait = both.wait

    def call(training):
        found[training] = to_numpy(layer(x, training=training))

    threads = [
        threading.Thread(target=call, args=(training,))
        for training in (True, False)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(found[False], x @ average, rtol=1e-5)
    np.testing.assert_allclose(found[True], x @ mixture_of(layer, 0), rtol=1e-5)


def loss_and_gradients(model, x):
    """Of the mean square of what a model gives in training, eagerly."""
    variables = model.trainable_variables
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(model(x, training=True)))
        gradients = tape.gradient(loss, [v.value for v in variables])
    elif BACKEND == "torch":
        loss = ops.mean(ops.square(model(x, training=True)))
        loss.backward()
        gradients = [v.value.grad for v in variables]
    else:
        import jax

        def compute(values, others):
            outputs, others = model.stateless_call(
                values, others, x, training=True
            )
            return ops.mean(ops.square(outputs)), others

        compute = jax.value_and_grad(compute, has_aux=True)
        (loss, others), gradients = compute(
            [v.value for v in variables],
            [v.value for v in model.non_trainable_variables],
        )
        for variable, value in zip(model.non_trainable_variables, others):
            variable.assign(value)
    return float(to_numpy(loss)), [to_numpy(g) for g in gradients]


def test_a_rematerialized_layer_is_differentiated_as_it_was_mixed():
    x = random(5, 4)
    found = []
    for scope in (None, keras.RematScope(mode="full")):
        if scope is None:
            layer = dense(activation="tanh")
        else:
            with scope:
                layer = dense(activation="tanh")
        for k, variable in enumerate(layer.kernels):
            variable.assign((k + 1) * random(4, 3))
        model = keras.Sequential([keras.Input((4,)), layer])
        found.append(loss_and_gradients(model, x))
        assert counter(layer) == 1
    (loss, expected), (other, gradients) = found
    assert other == pytest.approx(loss)
    for gradient, value in zip(gradients, expected):
        np.testing.assert_allclose(gradient, value, rtol=1e-4, atol=1e-6)


def test_rematerialized_layers_are_fitted_as_others():
    def network():
        keras.utils.set_random_seed(3)
        return [
            keras_mk.layers.MKDense(5, activation="tanh", seed=1),
            keras_mk.layers.MKConv1D(4, 2, seed=2),
        ]

    losses = []
    with keras.RematScope(mode="full"):
        rematerialized = network()
    for found in (network(), rematerialized):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((5, 4)), *found])
        model.compile("sgd", "mse")
        history = model.fit(
            random(8, 5, 4), random(8, 4, 4), 4, 2, shuffle=False, verbose=0
        )
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_copies_inside_of_a_rematerialized_layer_are_refused():
    with keras.RematScope(mode="full"):
        around = keras.Sequential([keras.Input((4,)), dense()], name="around")
    with pytest.raises(ValueError, match=r"inside of 'around'.*RematScope"):
        around(random(2, 4), training=True)
    if BACKEND != "jax":
        # Nothing is drawn here. (JAX makes a tensor of `training`.)
        around(random(2, 4), training=False)
