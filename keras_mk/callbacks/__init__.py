"""Callbacks for training with majority kernels."""

from keras_mk.callbacks.collapsed_checkpoint import (
    CollapsedCheckpoint as CollapsedCheckpoint,
)
from keras_mk.callbacks.resume import Resume as Resume
from keras_mk.callbacks.sampling_check import SamplingCheck as SamplingCheck
