"""1D convolution with majority kernels."""

import keras

from keras_mk.layers.majority_kernel import MajorityKernel


@keras.saving.register_keras_serializable(package="keras_mk")
class MKConv1D(MajorityKernel, keras.layers.Conv1D):
    """`keras.layers.Conv1D` trained as a random mixture of kernels.

    In training the layer uses a random mixture of the copies of the kernel,
    drawn anew at each step, otherwise their average. Everything that
    `keras_mk.layers.MKDense` says about seeds, frozen layers, regularizers,
    constraints and learning rates holds here.

    Args:
        *args: As `keras.layers.Conv1D`, in the same order.
        expansion: Number of copies of the kernel. Defaults to 3; 1 is the
            plain layer.
        seed: Seed of the mixtures, from 0 to `2**31 - 1`. Defaults to a
            random one, which `keras.utils.set_random_seed` controls. Layers
            with equal seeds and kernels of equal shape draw equal mixtures.
        **kwargs: As `keras.layers.Conv1D`. LoRA and quantization
            come after collapsing, not here.

    Example:

    >>> import numpy as np
    >>> from keras_mk.layers import MKConv1D
    >>> layer = MKConv1D(4, 3, expansion=3)
    >>> tuple(layer(np.ones((2, 8, 5))).shape)
    (2, 6, 4)
    >>> len(layer.kernels), tuple(layer.kernel.shape)
    (3, (3, 5, 4))
    """
