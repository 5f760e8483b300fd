"""Majority Kernels for Keras 3: train several copies, ship their average."""

from keras_mk import callbacks as callbacks
from keras_mk import layers as layers
from keras_mk import mixing as mixing
from keras_mk.version import __version__ as __version__
