"""`keras-mk bench mlp`: the whole `fit` step of an MLP."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.table import Table

from keras_mk.bench import timing
from keras_mk.bench.peers import GammaMKDense
from keras_mk.bench.peers import LogUniformMKDense
from keras_mk.bench.peers import MeanMKDense
from keras_mk.layers import MKDense

HIDDEN = (400, 200, 100)
INPUTS = 3072
CLASSES = 10
STEPS = 20

VARIANTS = {
    "plain": keras.layers.Dense,
    "mean": MeanMKDense,
    "mk": MKDense,
    "log(uniform)": LogUniformMKDense,
    "gamma": GammaMKDense,
}


def build(
    dense: Callable[..., Any], expansion: int, optimizer: str, jit: bool | str
) -> keras.Model:
    copies = {} if dense is keras.layers.Dense else {"expansion": expansion}
    hidden = [dense(units, activation="relu", **copies) for units in HIDDEN]
    model = keras.Sequential(
        [keras.Input((INPUTS,)), *hidden, dense(CLASSES, **copies)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit)
    return model


def _feed(batch: int) -> Callable[[int], Any]:
    """Steps of one batch that is ready in memory, as `fit` takes them.

    What is measured is the step; a well-kept input pipeline costs it nothing.
    """
    random = np.random.default_rng(0)
    x = random.normal(size=(batch, INPUTS)).astype("float32")
    y = random.integers(CLASSES, size=batch)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensors((x, y))
        return data.repeat
    return lambda steps: _Repeated((x, y), steps)


class _Repeated(keras.utils.PyDataset):
    def __init__(self, batch: tuple[Any, Any], steps: int) -> None:
        super().__init__()
        self.batch, self.steps = batch, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.batch


def measure(
    optimizer: str, expansion: int, batch: int, jit: bool | str, rounds: int
) -> dict[str, Any]:
    """Times `STEPS` steps of `fit` per variant and round."""
    feed = _feed(batch)
    models = {
        name: build(dense, expansion, optimizer, jit)
        for name, dense in VARIANTS.items()
        if name != "gamma" or _gamma_compiles(jit)
    }

    def fit(model: keras.Model, steps: int) -> None:
        model.fit(feed(steps), shuffle=False, verbose=0)

    seconds = timing.interleave(
        {name: partial(fit, model) for name, model in models.items()},
        rounds,
        STEPS,
        title=optimizer,
    )
    return {
        "optimizer": optimizer,
        "step_ms": {
            name: round(float(np.nanmedian(times)) * 1e3, 2)
            for name, times in seconds.items()
        },
        "to_plain": {
            name: timing.ratio(times, seconds["plain"])
            for name, times in seconds.items()
        },
        "mk_to_mean": timing.ratio(seconds["mk"], seconds["mean"]),
        "log_uniform_to_mk": timing.ratio(
            seconds["log(uniform)"], seconds["mk"]
        ),
        **(
            {"gamma_to_mk": timing.ratio(seconds["gamma"], seconds["mk"])}
            if "gamma" in seconds
            else {}
        ),
    }


def _gamma_compiles(jit: bool | str) -> bool:
    """XLA in TensorFlow has no kernel for `keras.random.gamma`."""
    return keras.config.backend() != "tensorflow" or jit is False


def run(
    optimizers: list[str],
    expansion: int,
    batch: int,
    jit: bool | str,
    rounds: int,
    output_dir: str,
) -> None:
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results = [
        measure(optimizer, expansion, batch, jit, rounds)
        for optimizer in optimizers
    ]
    report = {
        "workload": f"MLP {list(HIDDEN)} on {INPUTS} inputs, one step of fit",
        "expansion": expansion,
        "batch": batch,
        "jit_compile": jit,
        "rounds": rounds,
        "environment": timing.environment(),
        "results": results,
    }
    name = f"bench_mlp_{keras.config.backend()}_jit_{jit}.json".lower()
    path = folder / name
    path.write_text(json.dumps(report, indent=2) + "\n")
    _print(report)
    print(f"Written: {path}")


def _print(report: dict[str, Any]) -> None:
    environment = report["environment"]
    table = Table(
        title=f"{environment['backend']}, jit_compile={report['jit_compile']}, "
        f"expansion {report['expansion']}, batch {report['batch']}"
    )
    for column in ("optimizer", "variant", "ms / step", "x plain", "quartiles"):
        table.add_column(column)
    for result in report["results"]:
        for name, ratio in result["to_plain"].items():
            table.add_row(
                result["optimizer"],
                name,
                f"{result['step_ms'][name]:.2f}",
                f"{ratio['median']:.2f}",
                f"{ratio['low']:.2f} - {ratio['high']:.2f}",
            )
    console = Console()
    console.print(table)
    for result in report["results"]:
        console.print(
            f"{result['optimizer']}: sampling, mk / mean = "
            f"{result['mk_to_mean']['median']:.2f}; the obvious way / mk = "
            f"{result['log_uniform_to_mk']['median']:.2f} by log(uniform), "
            + (
                f"{result['gamma_to_mk']['median']:.2f} by gamma"
                if "gamma_to_mk" in result
                else "by gamma not at all: XLA in TensorFlow has no kernel"
            )
        )
