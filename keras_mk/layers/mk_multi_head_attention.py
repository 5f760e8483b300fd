"""Multi-head attention with majority kernels."""

from typing import Any

import keras

from keras_mk.layers.majority_kernel import extended_signature
from keras_mk.layers.mk_einsum_dense import MKEinsumDense
from keras_mk.mixing import hashing
from keras_mk.validation import check_expansion
from keras_mk.validation import check_seed


@keras.saving.register_keras_serializable(package="keras_mk")
class MKMultiHeadAttention(keras.layers.MultiHeadAttention):
    """`keras.layers.MultiHeadAttention` with majority-kernel projections.

    The query, key, value and output projections (and the gate, if there is
    one) are `keras_mk.layers.MKEinsumDense` layers, each with a seed of its
    own.

    Args:
        *args: As `keras.layers.MultiHeadAttention`, in the same order.
        expansion: Number of copies of each projection's kernel. Defaults to
            3; 1 is the plain layer.
        seed: Seed of the dropout, as in `keras.layers.MultiHeadAttention`, and
            of the mixtures. From 0 to `2**31 - 1`.
        **kwargs: As `keras.layers.MultiHeadAttention`.

    Example:

    >>> import numpy as np
    >>> from keras_mk.layers import MKMultiHeadAttention
    >>> layer = MKMultiHeadAttention(num_heads=2, key_dim=4, expansion=3)
    >>> x = np.ones((2, 6, 8))
    >>> tuple(layer(x, x).shape)
    (2, 6, 8)
    >>> len(layer.query_dense.kernels)
    3
    """

    def __init__(
        self,
        *args: Any,
        expansion: int = 3,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_expansion(expansion)
        check_seed(seed)
        super().__init__(*args, seed=seed, **kwargs)
        self.expansion = expansion

    def __setattr__(self, name: str, value: Any) -> None:
        # `build` makes each projection, assigns it, and then builds it: here
        # it is still without weights.
        if type(value) is keras.layers.EinsumDense:
            value = self._with_copies(value)
        super().__setattr__(name, value)

    def _with_copies(self, projection: keras.layers.EinsumDense) -> Any:
        seed = self.seed
        if seed is not None:
            seed = hashing.derive_seed(seed, projection.name)
        config = {"expansion": self.expansion, "seed": seed}
        return MKEinsumDense.from_config({**projection.get_config(), **config})

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "expansion": self.expansion}


MKMultiHeadAttention.__signature__ = extended_signature(MKMultiHeadAttention)
