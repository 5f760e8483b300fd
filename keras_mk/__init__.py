"""Majority Kernels for Keras 3: train several copies, ship their average."""

from keras_mk import baselines as baselines
from keras_mk import callbacks as callbacks
from keras_mk import diagnostics as diagnostics
from keras_mk import layers as layers
from keras_mk import mixing as mixing
from keras_mk import training as training
from keras_mk.collapse import collapse as collapse
from keras_mk.expand import expand as expand
from keras_mk.export import export_collapsed as export_collapsed
from keras_mk.plain_weights import load_plain_weights as load_plain_weights
from keras_mk.plan import plan as plan
from keras_mk.plan import summary as summary
from keras_mk.recalibrate import (
    recalibrate_batch_norm as recalibrate_batch_norm,
)
from keras_mk.registry import register as register
from keras_mk.version import __version__ as __version__
