"""One small case of every majority-kernel layer."""

from dataclasses import dataclass
from dataclasses import field

import keras
import numpy as np

from keras_mk import layers


@dataclass
class Case:
    name: str
    arguments: dict
    input_shape: tuple
    kernels: tuple = ("kernel",)
    expansion: int = field(default=3)

    @property
    def mk_class(self):
        return getattr(layers, f"MK{self.name}")

    @property
    def plain_class(self):
        return getattr(keras.layers, self.name)

    def build(self, **kwargs):
        arguments = {"expansion": self.expansion, **self.arguments, **kwargs}
        layer = self.mk_class(**arguments)
        layer.build(self.input_shape)
        return layer

    def plain(self, kernels, bias, **kwargs):
        """The Keras layer with the given weights."""
        layer = self.plain_class(**{**self.arguments, **kwargs})
        layer.build(self.input_shape)
        layer.set_weights([*kernels, *bias])
        return layer

    def network(self, seed):
        """A model of the one layer."""
        layer = self.mk_class(
            **self.arguments, expansion=self.expansion, seed=seed
        )
        inputs = keras.Input(self.input_shape[1:])
        return keras.Model(inputs, self.apply(layer, inputs))

    def apply(self, layer, inputs):
        return layer(inputs)

    def inputs(self, seed=0):
        random = np.random.default_rng(seed)
        return random.normal(size=self.input_shape).astype("float32")


class SelfAttention(Case):
    """The layer that has its majority kernels in sublayers."""

    def apply(self, layer, inputs):
        return layer(inputs, inputs)


CASES = [
    Case("Dense", {"units": 4}, (6, 5)),
    Case(
        "EinsumDense",
        {
            "equation": "abc,cde->abde",
            "output_shape": (None, 2, 3),
            "bias_axes": "de",
        },
        (6, 4, 5),
    ),
    Case("Conv1D", {"filters": 4, "kernel_size": 3}, (6, 8, 5)),
    Case("Conv2D", {"filters": 4, "kernel_size": (3, 2)}, (6, 7, 6, 5)),
    Case("Conv3D", {"filters": 3, "kernel_size": 2}, (6, 4, 4, 4, 2)),
    Case(
        "DepthwiseConv1D", {"kernel_size": 3, "depth_multiplier": 2}, (6, 8, 3)
    ),
    Case("DepthwiseConv2D", {"kernel_size": 3}, (6, 7, 6, 3)),
    Case(
        "SeparableConv1D",
        {"filters": 4, "kernel_size": 3},
        (6, 8, 3),
        ("depthwise_kernel", "pointwise_kernel"),
    ),
    Case(
        "SeparableConv2D",
        {"filters": 4, "kernel_size": 3},
        (6, 7, 6, 3),
        ("depthwise_kernel", "pointwise_kernel"),
    ),
    Case("Conv1DTranspose", {"filters": 4, "kernel_size": 3}, (6, 5, 3)),
    Case("Conv2DTranspose", {"filters": 4, "kernel_size": 3}, (6, 4, 5, 3)),
    Case("Conv3DTranspose", {"filters": 3, "kernel_size": 2}, (6, 3, 3, 3, 2)),
]

IDS = [case.name for case in CASES]

# What a layer does within a model concerns attention as well.
NETWORK_CASES = [
    *CASES,
    SelfAttention(
        "MultiHeadAttention", {"num_heads": 2, "key_dim": 3}, (6, 4, 5)
    ),
]

NETWORK_IDS = [case.name for case in NETWORK_CASES]
