"""`keras-mk bench`: training steps, as ratios to the plain model's."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields
from functools import partial
from typing import Any

import keras
import numpy as np

from keras_mk.bench import timing
from keras_mk.bench import variants
from keras_mk.bench.workloads import Workload

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(1e-3),
    "momentum": lambda: keras.optimizers.SGD(1e-3, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-4),
    "adamw": lambda: keras.optimizers.AdamW(1e-4),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-4),
}
# How many batches are in the arrays that `--feed arrays` trains on.
ARRAY_BATCHES = 20


@dataclass(frozen=True)
class Setting:
    """One configuration to measure.

    Attributes:
        workload: The network.
        batch: Batch size.
        expansion: Copies of each kernel.
        optimizer: A key of `OPTIMIZERS`.
        dtype: Keras dtype policy.
        jit: As `jit_compile` of `compile`.
        feed: `"step"`: one batch that is ready in memory, again and again, so
            that the step alone is measured. `"arrays"`: arrays, shuffled by
            `fit`, as a user would feed them.
    """

    workload: Workload
    batch: int
    expansion: int
    optimizer: str
    dtype: str
    jit: bool | str
    feed: str

    def options(self) -> dict[str, Any]:
        """All but the workload, as arguments for another `Setting`."""
        found = {
            field.name: getattr(self, field.name) for field in fields(self)
        }
        del found["workload"]
        return found

    def columns(self) -> dict[str, Any]:
        return {
            "backend": keras.config.backend(),
            "workload": self.workload.name,
            "batch": self.batch,
            "expansion": self.expansion,
            "optimizer": self.optimizer,
            "dtype": self.dtype,
            "jit_compile": self.jit,
            "feed": self.feed,
        }


def compiled_models(setting: Setting, variant: str) -> list[keras.Model]:
    """The models of a variant, ready for `fit`."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(setting.dtype)
    try:
        models = variants.make(variant, setting.workload, setting.expansion)
    finally:
        keras.config.set_dtype_policy(before)
    for model in models:
        model.compile(
            optimizer=OPTIMIZERS[setting.optimizer](),
            loss=setting.workload.loss,
            jit_compile=setting.jit,
        )
    return models


def measure(
    setting: Setting, names: list[str], rounds: int, steps: int
) -> list[dict[str, Any]]:
    """One row per variant, from one interleaved run."""
    # Models refer to themselves: those of the setting before are still there.
    gc.collect()
    feed = _feed(setting)
    runs = {
        name: partial(_fit, compiled_models(setting, name), feed)
        for name in names
    }
    title = f"{setting.workload.name}, {setting.optimizer}"
    seconds, first = timing.interleave(runs, rounds, steps, title)
    return [
        {
            **setting.columns(),
            **row,
            "examples_per_second": round(
                1e3 * setting.batch / row["step_ms"], 1
            ),
        }
        for row in timing.rows(seconds, first)
    ]


def _fit(models: list[keras.Model], feed: Any, steps: int) -> None:
    for model in models:
        model.fit(**feed(steps), verbose=0)


def _feed(setting: Setting) -> Callable[[int], dict[str, Any]]:
    """From a number of steps, what `fit` is called with."""
    x, y = setting.workload.data(setting.batch)
    if setting.feed == "arrays":
        x, y = keras.tree.map_structure(
            lambda a: np.concatenate([a] * ARRAY_BATCHES), (x, y)
        )
        return lambda steps: {
            "x": keras.tree.map_structure(
                lambda a: a[: steps * setting.batch], x
            ),
            "y": keras.tree.map_structure(
                lambda a: a[: steps * setting.batch], y
            ),
            "batch_size": setting.batch,
        }
    if keras.config.backend() == "tensorflow" or setting.workload.by_tf_data:
        import tensorflow as tf

        # Autotuning wakes up after 10, 20, 40, ... ms, and the end of the data
        # waits for it: times would be rounded up to a power of two.
        options = tf.data.Options()
        options.autotune.enabled = False
        data = tf.data.Dataset.from_tensors((x, y)).with_options(options)
        return lambda steps: {"x": data.repeat(steps), "shuffle": False}
    return lambda steps: {"x": _Repeated((x, y), steps), "shuffle": False}


class _Repeated(keras.utils.PyDataset):
    def __init__(self, batch: tuple[Any, Any], steps: int) -> None:
        super().__init__()
        self.batch, self.steps = batch, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.batch
