"""The backend's mixing against the numpy reference, bit by bit."""

import gc
import shutil
import weakref

import keras
import numpy as np
import pytest

from keras_mk import mixing
from keras_mk.mixing import hashing
from keras_mk.mixing import reference
from keras_mk.mixing import simplex
from tests.backends import BACKEND
from tests.backends import MODES
from tests.backends import compiled
from tests.backends import gradient
from tests.backends import seed_state
from tests.backends import tensor
from tests.backends import to_numpy

SHAPES = [(), (1,), (7,), (3, 5), (3, 3, 4, 6), (2, 1, 3, 1, 2)]


def copies_of(shape, expansion, dtype="float32"):
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(dtype) for _ in range(expansion)]


def as_words(bits):
    return to_numpy(bits).astype("int64").astype("uint32")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("expansion", [1, 2, 3, 4, 8])
def test_p_is_bit_identical_to_the_reference(mode, expansion):
    for shape in SHAPES:
        draw = compiled(
            lambda state, shape=shape: mixing.mixing_weights(
                state, expansion, shape
            ),
            mode,
        )
        p = draw(seed_state(2_000_000_011, 5))
        expected = reference.mixing_weights(
            [2_000_000_011, 5], expansion, shape
        )
        for ours, theirs in zip(p, expected, strict=True):
            np.testing.assert_array_equal(to_numpy(ours), theirs)


def test_bits_of_the_whole_range_of_the_state():
    for state in ([0, 0], [2**31 - 1, 2**31 - 1], [1, 2**31 - 1]):
        ours = as_words(mixing.random_bits(seed_state(*state), (64,)))
        np.testing.assert_array_equal(ours, reference.random_bits(state, (64,)))


def test_bits_worked_by_hand():
    """The hash for one index with Python's unbounded integers."""

    def mix(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    seed, counter, index = 11, 3, 5
    key0 = mix(mix((mix(seed) + counter) % 2**32))
    key1 = mix(mix(((key0 ^ 0x9E3779B9) + seed) % 2**32))
    x = (index + key0) % 2**32
    x ^= x >> 17
    x = x * 0xED5AD4BB % 2**32 ^ key1
    x ^= x >> 11
    x = x * 0xAC4C1B51 % 2**32
    x ^= x >> 15
    x = x * 0x31848BAB % 2**32
    x ^= x >> 14
    bits = as_words(mixing.random_bits(seed_state(seed, counter), (8,)))
    assert bits[index] == x


def test_more_elements_than_float32_can_count():
    size = 2**24 + 5
    ours = as_words(mixing.random_bits(seed_state(3), (size,)))
    np.testing.assert_array_equal(ours, reference.random_bits([3, 0], (size,)))
    assert len(np.unique(ours[-8:])) == 8


def test_more_elements_than_a_word_can_count(monkeypatch):
    """Leading axes number blocks of at most 2**32 elements (here of 8)."""
    whole = reference.random_bits([3, 0], (5, 2, 4))
    monkeypatch.setattr(
        hashing, "split_axes", lambda shape: max(len(shape) - 2, 0)
    )
    state = seed_state(3)
    ours = as_words(mixing.random_bits(state, (5, 2, 4)))
    np.testing.assert_array_equal(
        ours, reference.random_bits([3, 0], (5, 2, 4))
    )
    np.testing.assert_array_equal(ours[0], whole[0])
    assert len(np.unique(ours)) == ours.size
    kernels = copies_of((5, 2, 4), 5)
    p = reference.mixing_weights([3, 0], 5, (5, 2, 4))
    mixed = mixing.sampled_mixture([tensor(w) for w in kernels], state)
    np.testing.assert_allclose(
        to_numpy(mixed), reference.mixture(kernels, p), atol=1e-6
    )


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [((2**16, 2**16), 0), ((2**16 + 1, 2**16), 1), ((3, 2**20, 2**13), 2)],
)
def test_only_kernels_beyond_a_word_have_blocks(shape, blocks):
    assert hashing.split_axes(shape) == blocks


def test_no_two_streams_share_their_keys():
    words = hashing.python_words
    keys = {
        words.keys(seed, counter, block)
        for seed in (0, 1, 2, 12345)
        for counter in range(50)
        for block in range(5)
    }
    assert len(keys) == 4 * 50 * 5


@pytest.mark.parametrize("expansion", [1, 2, 3, 5, 8, 16])
def test_p_is_on_the_simplex(expansion):
    p = mixing.mixing_weights(seed_state(7), expansion, (1 << 16,))
    p = np.stack([to_numpy(q) for q in p])
    assert p.dtype == "float32"
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    np.testing.assert_array_equal(p.sum(axis=0, dtype="float32"), 1)


@pytest.mark.parametrize("size", range(1, 17))
def test_sorting_network_sorts(size):
    values = np.random.default_rng(size).integers(0, 9, (size, 500))
    ours = simplex.sort(list(values), np.minimum, np.maximum)
    np.testing.assert_array_equal(np.stack(ours), np.sort(values, axis=0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("expansion", [1, 2, 3, 4, 8])
def test_mixture_is_the_reference(mode, expansion):
    shape = (3, 4, 5)
    kernels = copies_of(shape, expansion)
    mix = compiled(
        lambda state, *kernels: mixing.sampled_mixture(kernels, state), mode
    )
    mixed = mix(seed_state(9, 2), *[tensor(w) for w in kernels])
    p = reference.mixing_weights([9, 2], expansion, shape)
    expected = reference.mixture(kernels, p)
    np.testing.assert_allclose(to_numpy(mixed), expected, atol=1e-6)


def test_mixture_larger_than_a_chunk():
    shape = (1100, 1000)
    kernels = copies_of(shape, 3)
    mixed = mixing.sampled_mixture([tensor(w) for w in kernels], seed_state(9))
    p = reference.mixing_weights([9, 0], 3, shape)
    expected = reference.mixture(kernels, p)
    np.testing.assert_allclose(to_numpy(mixed), expected, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_mixture_in_other_dtypes(dtype):
    if dtype == "float64" and BACKEND == "jax":
        pytest.skip("JAX has no float64 unless jax_enable_x64 is set")
    kernels = [keras.ops.cast(tensor(w), dtype) for w in copies_of((64, 8), 3)]
    mixed = mixing.sampled_mixture(kernels, seed_state(9))
    assert keras.backend.standardize_dtype(mixed.dtype) == dtype
    wide = [to_numpy(w).astype("float64") for w in kernels]
    p = reference.mixing_weights([9, 0], 3, (64, 8), "float64")
    exact = reference.mixture(wide, p)
    # Rounded once, at the end.
    bits = {"float64": 52, "float16": 10, "bfloat16": 7}[dtype]
    error = np.abs(to_numpy(mixed).astype("float64") - exact)
    assert (error <= 1.01 * 2.0 ** -(bits + 1) * np.abs(exact) + 1e-7).all()


@pytest.mark.parametrize("expansion", [2, 3, 5])
def test_equal_copies_mix_and_average_to_their_own_value(expansion):
    kernel = tensor(copies_of((50, 7), 1)[0])
    mixed = mixing.sampled_mixture([kernel] * expansion, seed_state(4))
    np.testing.assert_array_equal(to_numpy(mixed), to_numpy(kernel))
    average = mixing.mean([kernel] * expansion)
    np.testing.assert_array_equal(to_numpy(average), to_numpy(kernel))


@pytest.mark.parametrize("expansion", [2, 3, 4, 8])
def test_gradient_is_upstream_times_p(expansion):
    shape = (5, 6)
    upstream = copies_of(shape, 1)[0]
    kernels = copies_of(shape, expansion)
    state = seed_state(9, 2)
    gradients = gradient(
        lambda *kernels: keras.ops.sum(
            mixing.sampled_mixture(kernels, state) * tensor(upstream)
        ),
        kernels,
    )
    p = reference.mixing_weights([9, 2], expansion, shape)
    for ours, theirs in zip(
        gradients, reference.mixture_gradient(upstream, p), strict=True
    ):
        np.testing.assert_allclose(
            to_numpy(keras.ops.stop_gradient(ours)), theirs, atol=1e-6
        )


def _curved(kernels, state, mix):
    """A function of the kernels with non-trivial derivatives."""
    return keras.ops.sum(mix(kernels, state) ** 3)


def _autodiff(kernels, state):
    p = reference.mixing_weights(to_numpy(state), len(kernels), (4, 3))
    return mixing.mixture(kernels, [tensor(q) for q in p])


def test_gradient_equals_autodiff_of_the_reference():
    kernels, state = copies_of((4, 3), 3), seed_state(5)
    ours = gradient(
        lambda *w: _curved(w, state, mixing.sampled_mixture), kernels
    )
    theirs = gradient(lambda *w: _curved(w, state, _autodiff), kernels)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            to_numpy(keras.ops.stop_gradient(a)),
            to_numpy(keras.ops.stop_gradient(b)),
            rtol=1e-4,
            atol=1e-5,
        )


def test_gradient_equals_finite_differences():
    kernels, state = copies_of((4, 3), 3), seed_state(5)
    gradients = gradient(
        lambda *w: _curved(w, state, mixing.sampled_mixture), kernels
    )
    p = reference.mixing_weights([5, 0], 3, (4, 3), "float64")

    def value(kernels):
        return np.sum(reference.mixture(kernels, p) ** 3)

    step = 1e-5
    for k in range(3):
        for at in [(0, 0), (1, 2), (3, 1)]:
            up = [w.astype("float64") for w in kernels]
            down = [w.copy() for w in up]
            up[k][at] += step
            down[k][at] -= step
            slope = (value(up) - value(down)) / (2 * step)
            ours = to_numpy(keras.ops.stop_gradient(gradients[k]))[at]
            np.testing.assert_allclose(ours, slope, rtol=1e-3, atol=1e-5)


def test_second_derivatives():
    kernels, state = copies_of((4, 3), 3), seed_state(5)

    def penalty(mix):
        def squared_norm(*kernels):
            first = gradient(lambda *w: _curved(w, state, mix), kernels)
            return sum(keras.ops.sum(g**2) for g in first)

        return gradient(squared_norm, kernels)

    ours = penalty(mixing.sampled_mixture)
    theirs = penalty(_autodiff)
    for a, b in zip(ours, theirs, strict=True):
        a, b = (to_numpy(keras.ops.stop_gradient(x)) for x in (a, b))
        assert np.abs(b).max() > 0.1
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_given_p_is_differentiable():
    kernels = copies_of((4, 3), 3)
    p = reference.mixing_weights([5, 0], 3, (4, 3))
    gradients = gradient(
        lambda *p: keras.ops.sum(
            mixing.mixture([tensor(w) for w in kernels], p)
        ),
        [np.array(q) for q in p],
    )
    for ours, kernel in zip(gradients, kernels, strict=True):
        np.testing.assert_allclose(
            to_numpy(keras.ops.stop_gradient(ours)), kernel, rtol=1e-6
        )


def test_given_p_must_have_one_entry_per_copy():
    kernels = [tensor(w) for w in copies_of((4, 3), 3)]
    with pytest.raises(ValueError, match="zip"):
        mixing.mixture(kernels, kernels[:2])


def test_mean_reports_when_it_is_differentiated():
    calls = []
    kernels = copies_of((4, 3), 3)

    def value(*kernels):
        return keras.ops.sum(mixing.mean(kernels, lambda: calls.append(1)))

    value(*[tensor(w) for w in kernels])
    assert not calls
    gradients = gradient(value, kernels)
    assert calls
    for ours in gradients:
        np.testing.assert_allclose(
            to_numpy(keras.ops.stop_gradient(ours)), 1 / 3, rtol=1e-6
        )


@pytest.mark.skipif(BACKEND != "torch", reason="torch's two ways on a CPU")
@pytest.mark.parametrize("compile", [False, True])
def test_torch_in_chunks_and_compiled_by_itself(monkeypatch, compile):
    from keras_mk.mixing import _torch

    if compile and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    monkeypatch.setattr(_torch, "COMPILE", compile)
    for shape in [(7, 5), (3, 100, 1000)]:
        kernels = copies_of(shape, 3)
        factor = copies_of(shape, 1)[0]
        p = reference.mixing_weights([9, 4], 3, shape)

        def value(*kernels, factor=factor):
            mixed = mixing.sampled_mixture(kernels, seed_state(9, 4))
            assert mixed.shape == factor.shape
            return keras.ops.sum(mixed * tensor(factor)), mixed

        mixed = value(*[tensor(w) for w in kernels])[1]
        np.testing.assert_allclose(
            to_numpy(mixed), reference.mixture(kernels, p), atol=2e-6
        )
        gradients = gradient(lambda *w: value(*w)[0], kernels)
        expected = reference.mixture_gradient(factor, p)
        for ours, theirs in zip(gradients, expected, strict=True):
            ours = to_numpy(keras.ops.stop_gradient(ours))
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.skipif(BACKEND != "torch", reason="torch keeps what ctx holds")
def test_torch_keeps_no_array_for_the_backward_pass():
    import torch

    kernels = [
        torch.tensor(w, requires_grad=True) for w in copies_of((40, 30), 3)
    ]
    mixed = mixing.sampled_mixture(kernels, seed_state(1))
    node = mixed.grad_fn
    assert not node.saved_tensors
    assert node.state.numel() == 2
    reference_to_mixed = weakref.ref(mixed)
    del mixed
    gc.collect()
    assert reference_to_mixed() is None


@pytest.mark.skipif(BACKEND != "jax", reason="asks XLA through JAX")
def test_jax_keeps_nothing_between_the_passes():
    """The compiled step has no more temporary memory than with the mean."""
    import jax

    size = 1024
    x = jax.numpy.ones((8, size))
    kernels = tuple(jax.numpy.asarray(w) for w in copies_of((size, size), 3))

    def temporary_bytes(mix):
        def loss(kernels, state):
            h = x
            for layer in range(3):
                h = jax.numpy.tanh(h @ mix(kernels[layer], state))
            return h.sum()

        step = jax.jit(jax.grad(loss))
        lowered = step.lower((kernels,) * 3, seed_state(1))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    sampled = temporary_bytes(mixing.sampled_mixture)
    floor = temporary_bytes(lambda kernels, state: mixing.mean(kernels))
    assert sampled - floor < 4 * size * size // 8


@pytest.mark.skipif(BACKEND != "tensorflow", reason="looks at a TF graph")
def test_tensorflow_keeps_nothing_between_the_passes():
    """What the backward call takes is the state and the upstream gradient."""
    import tensorflow as tf

    kernels = [tf.constant(w) for w in copies_of((40, 30), 3)]

    @tf.function
    def step(state):
        with tf.GradientTape() as tape:
            tape.watch(kernels)
            value = tf.reduce_sum(mixing.sampled_mixture(kernels, state) ** 2)
        return tape.gradient(value, kernels)

    graph = step.get_concrete_function(seed_state(1)).graph
    calls = [
        op for op in graph.get_operations() if "PartitionedCall" in op.type
    ]
    assert len(calls) == 2
    forward, backward = calls
    assert len(forward.outputs) == 1
    assert len(backward.inputs) == 2


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow only")
def test_many_shapes_do_not_make_tensorflow_warn_of_retracing(caplog):
    for size in range(1, 12):
        kernels = [tensor(np.ones((size, 3), "float32"))] * 3
        mixing.mean(kernels)
        mixing.sampled_mixture(kernels, seed_state(1))
    assert "retracing" not in caplog.text
