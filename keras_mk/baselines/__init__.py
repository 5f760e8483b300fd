"""What majority kernels are compared with.

Each is used with `compile` and `fit` as usual.
"""

from keras_mk.baselines.distill import distiller as distiller
from keras_mk.baselines.ensemble import Ensemble as Ensemble
from keras_mk.baselines.sam import SAM as SAM
from keras_mk.baselines.soup import greedy_soup as greedy_soup
from keras_mk.baselines.soup import uniform_soup as uniform_soup
from keras_mk.baselines.subset import SubsetDense as SubsetDense
from keras_mk.baselines.subset import SubsetSelection as SubsetSelection
from keras_mk.baselines.subset_network import (
    selected_network as selected_network,
)
from keras_mk.baselines.subset_network import subset_network as subset_network
