"""The mathematics of majority kernels, on the backend that Keras uses.

    seed state -> bits -> mixing weights p -> mixture of the copies

`keras_mk.mixing.reference` is the same in numpy, written for reading.

Example:

>>> import numpy as np
>>> from keras_mk import mixing
>>> p = mixing.mixing_weights(np.array([7, 0]), expansion=3, shape=(2, 2))
>>> len(p), tuple(p[0].shape)
(3, (2, 2))
>>> copies = [np.full((2, 2), value, "float32") for value in (1.0, 2.0, 3.0)]
>>> tuple(mixing.mixture(copies, p).shape)
(2, 2)
"""

import keras

if keras.config.backend() == "tensorflow":
    from keras_mk.mixing import _tensorflow as _backend
elif keras.config.backend() == "jax":
    from keras_mk.mixing import _jax as _backend
elif keras.config.backend() == "torch":
    from keras_mk.mixing import _torch as _backend
else:
    from keras_mk.mixing import reference as _backend

random_bits = _backend.random_bits
mixing_weights = _backend.mixing_weights
mixture = _backend.mixture
sampled_mixture = _backend.sampled_mixture
mean = _backend.mean
