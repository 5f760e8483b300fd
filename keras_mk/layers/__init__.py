"""Keras layers whose kernels are trained as random mixtures of copies."""

from keras_mk.layers.majority_kernel import MajorityKernel as MajorityKernel
from keras_mk.layers.mk_conv1d import MKConv1D as MKConv1D
from keras_mk.layers.mk_conv1d_transpose import (
    MKConv1DTranspose as MKConv1DTranspose,
)
from keras_mk.layers.mk_conv2d import MKConv2D as MKConv2D
from keras_mk.layers.mk_conv2d_transpose import (
    MKConv2DTranspose as MKConv2DTranspose,
)
from keras_mk.layers.mk_conv3d import MKConv3D as MKConv3D
from keras_mk.layers.mk_conv3d_transpose import (
    MKConv3DTranspose as MKConv3DTranspose,
)
from keras_mk.layers.mk_dense import MKDense as MKDense
from keras_mk.layers.mk_depthwise_conv1d import (
    MKDepthwiseConv1D as MKDepthwiseConv1D,
)
from keras_mk.layers.mk_depthwise_conv2d import (
    MKDepthwiseConv2D as MKDepthwiseConv2D,
)
from keras_mk.layers.mk_einsum_dense import MKEinsumDense as MKEinsumDense
from keras_mk.layers.mk_multi_head_attention import (
    MKMultiHeadAttention as MKMultiHeadAttention,
)
from keras_mk.layers.mk_separable_conv1d import (
    MKSeparableConv1D as MKSeparableConv1D,
)
from keras_mk.layers.mk_separable_conv2d import (
    MKSeparableConv2D as MKSeparableConv2D,
)
