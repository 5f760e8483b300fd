"""2D transposed convolution with majority kernels."""

import keras

from keras_mk.layers.majority_kernel import MajorityKernel


@keras.saving.register_keras_serializable(package="keras_mk")
class MKConv2DTranspose(MajorityKernel, keras.layers.Conv2DTranspose):
    """`keras.layers.Conv2DTranspose` trained as a random mixture of kernels.

    In training the layer uses a random mixture of the copies of the kernel,
    drawn anew at each step, otherwise their average. Everything that
    `keras_mk.layers.MKDense` says about seeds, frozen layers, regularizers,
    constraints and learning rates holds here.

    Args:
        *args: As `keras.layers.Conv2DTranspose`, in the same order.
        expansion: Number of copies of the kernel. Defaults to 3; 1 is the
            plain layer.
        seed: Seed of the mixtures, from 0 to `2**31 - 1`. Defaults to a
            random one, which `keras.utils.set_random_seed` controls. Layers
            with equal seeds and kernels of equal shape draw equal mixtures.
        **kwargs: As `keras.layers.Conv2DTranspose`. LoRA and quantization
            come after collapsing, not here.

    Example:

    >>> import numpy as np
    >>> from keras_mk.layers import MKConv2DTranspose
    >>> layer = MKConv2DTranspose(4, 3, expansion=3)
    >>> tuple(layer(np.ones((2, 8, 8, 5))).shape)
    (2, 10, 10, 4)
    >>> len(layer.kernels), tuple(layer.kernel.shape)
    (3, (3, 3, 4, 5))
    """
