"""The mathematics of majority kernels, on the backend that Keras uses.

    seed state -> bits -> mixing weights p -> mixture of the copies

`keras_mk.mixing.reference` is the same in numpy, written for reading.

Example:

>>> import keras
>>> from keras_mk import mixing
>>> state = keras.random.SeedGenerator(7).next()
>>> p = mixing.mixing_weights(state, expansion=3, shape=(2, 2))
>>> len(p), tuple(p[0].shape)
(3, (2, 2))
>>> copies = [keras.ops.full((2, 2), value) for value in (1.0, 2.0, 3.0)]
>>> tuple(mixing.mixture(copies, p).shape)
(2, 2)
"""

import importlib

import keras

_MODULES = {
    "tensorflow": "keras_mk.mixing._tensorflow",
    "jax": "keras_mk.mixing._jax",
    "torch": "keras_mk.mixing._torch",
}

_backend = importlib.import_module(
    _MODULES.get(keras.config.backend(), "keras_mk.mixing.reference")
)

random_bits = _backend.random_bits
mixing_weights = _backend.mixing_weights
mixture = _backend.mixture
sampled_mixture = _backend.sampled_mixture
mean = _backend.mean
