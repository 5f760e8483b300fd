"""The paper's other training algorithms.

Each is a model around one with majority kernels, with `compile` and `fit` as
usual.
"""

from keras_mk.training.adversarial_mk import AdversarialMK as AdversarialMK
from keras_mk.training.learned_mk import LearnedMK as LearnedMK
