"""Einsum layer with majority kernels."""

import keras

from keras_mk.layers.majority_kernel import MajorityKernel


@keras.saving.register_keras_serializable(package="keras_mk")
class MKEinsumDense(MajorityKernel, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` trained as a random mixture of kernels.

    In training the layer uses a random mixture of the copies of the kernel,
    drawn anew at each step, otherwise their average. Everything that
    `keras_mk.layers.MKDense` says about seeds, frozen layers, regularizers,
    constraints and learning rates holds here.

    Args:
        *args: As `keras.layers.EinsumDense`, in the same order.
        expansion: Number of copies of the kernel. Defaults to 3; 1 is the
            plain layer.
        seed: Seed of the mixtures, from 0 to `2**31 - 1`. Defaults to a
            random one, which `keras.utils.set_random_seed` controls. Layers
            with equal seeds and kernels of equal shape draw equal mixtures.
        **kwargs: As `keras.layers.EinsumDense`. LoRA and quantization
            come after collapsing, not here.

    Example:

    >>> import numpy as np
    >>> from keras_mk.layers import MKEinsumDense
    >>> layer = MKEinsumDense("abc,cd->abd", (None, 4), expansion=3)
    >>> tuple(layer(np.ones((2, 3, 5))).shape)
    (2, 3, 4)
    >>> len(layer.kernels), tuple(layer.kernel.shape)
    (3, (5, 4))
    """
