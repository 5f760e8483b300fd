"""How far apart the copies of a kernel are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.training.around import innermost
from keras_mk.walk import walk


@dataclass(frozen=True)
class Diversity:
    """How far apart the copies of a kernel are.

    Attributes:
        path: The layer, with the kernel's name.
        spread: Root of the mean square distance of a copy from the average,
            as a multiple of the average's norm. Zero for equal copies.
        cosine: Mean cosine similarity of two copies; 1 for equal ones, about
            0 for independent ones.
    """

    path: str
    spread: float
    cosine: float


def diversity(model: keras.Model) -> list[Diversity]:
    """The diversity of the copies of each kernel with more than one.

    Example:

    >>> import keras
    >>> import keras_mk
    >>> plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> keras_mk.diagnostics.diversity(keras_mk.expand(plain))[0].cosine
    1.0
    """
    internals.synchronize(model)
    found = []
    for each in walk(innermost(model)):
        if isinstance(each.layer, MajorityKernel) and each.layer.expansion > 1:
            for name in each.layer.kernel_names:
                copies = [
                    ops.convert_to_numpy(v).astype("float64").ravel()
                    for v in getattr(each.layer, f"{name}s")
                ]
                found.append(_diversity(f"{each.path}/{name}", copies))
    return found


def _diversity(path: str, copies: Sequence[Any]) -> Diversity:
    average = np.mean(copies, axis=0)
    squares = [np.sum((copy - average) ** 2) for copy in copies]
    spread = np.sqrt(np.mean(squares)) / max(np.linalg.norm(average), 1e-12)
    cosines = [
        a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-12)
        for a, b in combinations(copies, 2)
    ]
    return Diversity(
        path, round(float(spread), 6), round(float(np.mean(cosines)), 6)
    )
