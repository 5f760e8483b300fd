"""Dense layer with majority kernels."""

import keras

from keras_mk.layers.majority_kernel import MajorityKernel


@keras.saving.register_keras_serializable(package="keras_mk")
class MKDense(MajorityKernel, keras.layers.Dense):
    """`keras.layers.Dense` trained as a random mixture of kernels.

    The layer computes `activation(x @ w + bias)`. In training, `w` is
    `sum(kernels[k] * p[k])`, where `p` is drawn anew at each step and in each
    element from the uniform distribution on the simplex (normalised
    exponentials); otherwise `w` is the average of the copies.

    `training=True` advances the seed by one. `training=False` or `None` draws
    nothing, and so does a frozen layer (`trainable=False`), which uses the
    average even in training, as a frozen `BatchNormalization` uses its moving
    statistics. The bias is not copied. A kernel regularizer is averaged over
    the copies; a kernel constraint applies to each.

    Under plain SGD the averaged kernel moves about `1 / expansion` as far per
    step as the kernel of the plain layer does, so the best learning rate is
    higher; with Adam and its relatives, `sqrt((expansion + 1) / (2 *
    expansion))` as far, 0.82 for three copies.

    Reference: [Majority Kernels](https://arxiv.org/abs/2402.05033).

    Args:
        *args: As `keras.layers.Dense`, in the same order.
        expansion: Number of copies of the kernel. Defaults to 3; 1 is the
            plain layer.
        seed: Seed of the mixtures, from 0 to `2**31 - 1`. Defaults to a
            random one, which `keras.utils.set_random_seed` controls. Layers
            with equal seeds and kernels of equal shape draw equal mixtures.
        **kwargs: As `keras.layers.Dense`. LoRA and quantization
            come after collapsing, not here.

    Example:

    >>> import numpy as np
    >>> from keras_mk.layers import MKDense
    >>> layer = MKDense(4, activation="relu", expansion=3)
    >>> tuple(layer(np.ones((2, 5))).shape)
    (2, 4)
    >>> len(layer.kernels), tuple(layer.kernel.shape)
    (3, (5, 4))
    """
