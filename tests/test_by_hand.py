"""Every layer on numbers small enough to be worked out by hand.

Each kernel has two copies, (1, 2) and (3, 6), of average (2, 4).
"""

import numpy as np
import pytest

from keras_mk import layers
from keras_mk.layers.majority_kernel import _KERNEL_STRIDE
from keras_mk.mixing import reference
from tests.backends import to_numpy


def product(a, b):
    """The row (1, 2) times the column (a, b)."""
    return [a + 2 * b]


def slide(a, b):
    """The filter (a, b) over the row 1, 2, 3."""
    return [a + 2 * b, 2 * a + 3 * b]


def spread(a, b):
    """The transpose: each of 1, 2, 3 adds a multiple of (a, b)."""
    return [a, b + 2 * a, 2 * b + 3 * a, 3 * b]


EINSUM = {"equation": "ab,bc->ac", "output_shape": 1}

CASES = [
    ("Dense", {"units": 1}, [[1, 2]], product, [10]),
    ("EinsumDense", EINSUM, [[1, 2]], product, [10]),
    ("Conv1D", {"filters": 1}, [[1, 2, 3]], slide, [10, 16]),
    ("Conv2D", {"filters": 1}, [[[1, 2, 3]]], slide, [10, 16]),
    ("Conv3D", {"filters": 1}, [[[[1, 2, 3]]]], slide, [10, 16]),
    ("DepthwiseConv1D", {}, [[1, 2, 3]], slide, [10, 16]),
    ("DepthwiseConv2D", {}, [[[1, 2, 3]]], slide, [10, 16]),
    ("Conv1DTranspose", {"filters": 1}, [[1, 2, 3]], spread, [2, 8, 14, 12]),
    ("Conv2DTranspose", {"filters": 1}, [[[1, 2, 3]]], spread, [2, 8, 14, 12]),
    (
        "Conv3DTranspose",
        {"filters": 1},
        [[[[1, 2, 3]]]],
        spread,
        [2, 8, 14, 12],
    ),
]


def build(name, arguments, x):
    """The layer without bias, its kernels one row long, and its input."""
    x = np.array(x, "float32")
    if "Conv" in name:
        arguments = {**arguments, "kernel_size": (1,) * (x.ndim - 2) + (2,)}
        x = x[..., None]
    if name != "EinsumDense":
        arguments = {**arguments, "use_bias": False}
    layer = getattr(layers, f"MK{name}")(**arguments, expansion=2, seed=0)
    layer.build(x.shape)
    return layer, x


def set_kernels(copies, *values):
    for variable, value in zip(copies, values, strict=True):
        variable.assign(np.reshape(value, variable.shape))


def share(seed, index, size):
    """p of the first copy: one uniform number of 16 bits, at step 0."""
    bits = int(reference.random_bits([seed, 0], (size,))[index])
    return ((bits & 0xFFFF) + 0.5) / 65536


def mixed(first, second, seed=0):
    return [
        a * share(seed, i, len(first)) + b * (1 - share(seed, i, len(first)))
        for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]


@pytest.mark.parametrize(("name", "arguments", "x", "formula", "mean"), CASES)
def test_one_kernel(name, arguments, x, formula, mean):
    layer, x = build(name, arguments, x)
    set_kernels(layer.kernels, (1, 2), (3, 6))
    np.testing.assert_array_equal(to_numpy(layer(x)).ravel(), mean)
    expected = formula(*mixed((1, 2), (3, 6)))
    output = to_numpy(layer(x, training=True)).ravel()
    np.testing.assert_allclose(output, expected, rtol=1e-6)
    assert np.abs(output - mean).max() > 0.1


@pytest.mark.parametrize(
    ("name", "x"),
    [("SeparableConv1D", [[1, 2, 3]]), ("SeparableConv2D", [[[1, 2, 3]]])],
)
def test_two_kernels(name, x):
    layer, x = build(name, {"filters": 1}, x)
    set_kernels(layer.depthwise_kernels, (1, 2), (3, 6))
    set_kernels(layer.pointwise_kernels, 1, 2)
    np.testing.assert_array_equal(to_numpy(layer(x)).ravel(), [15, 24])
    (point,) = mixed([1], [2], seed=_KERNEL_STRIDE)
    expected = [v * point for v in slide(*mixed((1, 2), (3, 6)))]
    output = to_numpy(layer(x, training=True)).ravel()
    np.testing.assert_allclose(output, expected, rtol=1e-6)


def test_attention():
    """With one key there is nothing to choose: values come through."""
    layer = layers.MKMultiHeadAttention(
        1, 1, expansion=2, seed=0, use_bias=False
    )
    x = np.array([[[10.0]]], "float32")
    layer.build(x.shape, x.shape)
    set_kernels(layer.value_dense.kernels, 1, 3)
    set_kernels(layer.output_dense.kernels, 1, 2)
    np.testing.assert_array_equal(to_numpy(layer(x, x)).ravel(), [30])
    (value,) = mixed([1], [3], seed=layer.value_dense.seed)
    (out,) = mixed([1], [2], seed=layer.output_dense.seed)
    np.testing.assert_allclose(
        to_numpy(layer(x, x, training=True)).ravel(),
        [10 * value * out],
        rtol=1e-6,
    )
