"""Ways to run the same function on the backend under test."""

import shutil

import keras
import numpy as np
import pytest

BACKEND = keras.config.backend()


def to_numpy(x):
    return keras.ops.convert_to_numpy(x)


def tensor(x):
    return keras.ops.convert_to_tensor(np.asarray(x))


def seed_state(seed, counter=0):
    """A seed state as a `SeedGenerator` of this backend holds it."""
    generator = keras.random.SeedGenerator(seed)
    dtype = generator.state.dtype
    return keras.ops.convert_to_tensor([seed, counter], dtype=dtype)


def compiled(function, mode):
    """`function`, run as `mode` says. Skips what a machine cannot do."""
    if mode == "eager":
        return function
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=mode == "jit")
    if BACKEND == "jax":
        import jax

        if mode == "graph":
            pytest.skip("JAX has no mode between eager and jit")
        return jax.jit(function)
    import torch

    if mode == "graph":
        pytest.skip("torch has no mode between eager and torch.compile")
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    return torch.compile(function)


def gradient(function, arrays):
    """Gradient of a scalar function with respect to each of some arrays."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tensors = [tf.convert_to_tensor(a) for a in arrays]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        return tape.gradient(value, tensors)
    if BACKEND == "jax":
        import jax

        arrays = [jax.numpy.asarray(a) for a in arrays]
        argnums = tuple(range(len(arrays)))
        return jax.grad(function, argnums)(*arrays)
    import torch

    tensors = [
        a if torch.is_tensor(a) else torch.tensor(a, requires_grad=True)
        for a in arrays
    ]
    return torch.autograd.grad(function(*tensors), tensors, create_graph=True)


MODES = ["eager", "graph", "jit"]
