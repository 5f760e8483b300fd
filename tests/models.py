"""Small models and data for the tests."""

import keras
import numpy as np

from keras_mk import layers


def data(size=32, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(size, 6, 6, 2)).astype("float32")
    y = random.integers(3, size=size)
    return x, y


def fixed_weights(model, seed=0):
    """The same weights on every backend."""
    random = np.random.default_rng(seed)
    model.set_weights(
        [
            (random.normal(size=w.shape) * 0.3).astype("float32")
            for w in model.weights
        ]
    )


def convnet(dtype=None, seed=5):
    """A network of several majority-kernel layers with given seeds."""
    options = {"expansion": 3, "dtype": dtype}
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.MKConv2D(4, 3, activation="tanh", seed=seed, **options),
            layers.MKSeparableConv2D(4, 2, seed=seed + 1, **options),
            keras.layers.Flatten(dtype=dtype),
            layers.MKDense(3, seed=seed + 2, **options),
        ]
    )


def compiled(model, optimizer="adam", **kwargs):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, **kwargs)
    return model
