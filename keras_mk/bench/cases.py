"""Every layer that can have majority kernels, as a network of its own."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_mk.bench import workloads
from keras_mk.bench.workloads import Workload

# A layer of a size that occurs in networks, and the shape of an example.
LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "Dense": (lambda: keras.layers.Dense(1024), (1024,)),
    "EinsumDense": (
        lambda: keras.layers.EinsumDense("abc,cde->abde", (128, 8, 64)),
        (128, 512),
    ),
    "Conv1D": (lambda: keras.layers.Conv1D(256, 3), (128, 256)),
    "Conv2D": (lambda: keras.layers.Conv2D(256, 3), (14, 14, 256)),
    "Conv3D": (lambda: keras.layers.Conv3D(128, 3), (8, 8, 8, 128)),
    "Conv1DTranspose": (
        lambda: keras.layers.Conv1DTranspose(256, 3),
        (128, 256),
    ),
    "Conv2DTranspose": (
        lambda: keras.layers.Conv2DTranspose(256, 3),
        (14, 14, 256),
    ),
    "Conv3DTranspose": (
        lambda: keras.layers.Conv3DTranspose(128, 3),
        (8, 8, 8, 128),
    ),
    "DepthwiseConv1D": (lambda: keras.layers.DepthwiseConv1D(3), (128, 256)),
    "DepthwiseConv2D": (lambda: keras.layers.DepthwiseConv2D(3), (14, 14, 256)),
    "SeparableConv1D": (
        lambda: keras.layers.SeparableConv1D(256, 3),
        (128, 256),
    ),
    "SeparableConv2D": (
        lambda: keras.layers.SeparableConv2D(256, 3),
        (14, 14, 256),
    ),
    "MultiHeadAttention": (
        lambda: keras.layers.MultiHeadAttention(8, 64),
        (128, 512),
    ),
}


def layer(name: str) -> Workload:
    """A network of one layer, by the name that Keras gives it."""
    make_layer, shape = LAYERS[name]

    def make() -> keras.Model:
        inputs = keras.Input(shape)
        one = make_layer()
        attends = name == "MultiHeadAttention"
        return keras.Model(
            inputs, one(inputs, inputs) if attends else one(inputs)
        )

    def data(batch: int) -> tuple[Any, Any]:
        y = np.ones((batch, *make().output_shape[1:]), "float32")
        return np.ones((batch, *shape), "float32"), y

    return Workload(name, make, data, optimizers=("momentum",), batches=(64,))


def find(name: str) -> list[Workload]:
    """`layers` for all of them, a layer's name, or any other workload."""
    if name == "layers":
        return [layer(each) for each in LAYERS]
    if name in LAYERS:
        return [layer(name)]
    return workloads.find(name)
