"""How a model with majority kernels is doing: figures and their plot."""

from keras_mk.diagnostics.agreement import agreement as agreement
from keras_mk.diagnostics.batch_norm import BatchNormShift as BatchNormShift
from keras_mk.diagnostics.batch_norm import batch_norm_shift as batch_norm_shift
from keras_mk.diagnostics.callback import Diagnostics as Diagnostics
from keras_mk.diagnostics.callback import plot as plot
from keras_mk.diagnostics.copies import Diversity as Diversity
from keras_mk.diagnostics.copies import diversity as diversity
from keras_mk.diagnostics.loss import Sharpness as Sharpness
from keras_mk.diagnostics.loss import gap as gap
from keras_mk.diagnostics.loss import sharpness as sharpness
