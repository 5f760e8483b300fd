"""`keras-mk bench expand`: time and memory of converting a model."""

import gc
import json
import time
from pathlib import Path
from typing import Any

import keras
from rich.console import Console
from rich.table import Table

from keras_mk.bench import memory
from keras_mk.bench import timing
from keras_mk.bench import workloads
from keras_mk.collapse import collapse
from keras_mk.expand import expand

# The T5 has the size of flan-t5-small: 77 million parameters.
MODELS = {
    "resnet50": workloads.resnet50().make,
    "t5": workloads.t5(blocks=8).make,
}


def measure(name: str, expansion: int, rounds: int) -> dict[str, Any]:
    """One model, in this process: peak memory never falls again.

    The first round is what a script does that converts one model, imports
    apart; the ratio is the median over the rounds.
    """
    tiny = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    collapse(expand(tiny, expansion))
    seconds: dict[str, list[float]] = {"build": [], "expand": [], "back": []}
    for _ in range(rounds):
        gc.collect()
        model = _timed(seconds["build"], MODELS[name])
        before = memory.peak()
        expanded = _timed(seconds["expand"], expand, model, expansion)
        if len(seconds["expand"]) == 1:
            added = memory.peak() - before
        _timed(seconds["back"], collapse, expanded)
        parameters = model.count_params()
        weights = sum(w.numpy().nbytes for w in model.weights)
        # Before the next round, not when a new model takes its name.
        del model, expanded
    return {
        "model": name,
        "parameters": parameters,
        "build_seconds": round(seconds["build"][0], 2),
        "expand_seconds": round(seconds["expand"][0], 2),
        "collapse_seconds": round(seconds["back"][0], 2),
        "expand_to_build": timing.ratio(seconds["expand"], seconds["build"]),
        "weights_mib": round(weights / memory.MIB),
        "peak_mib_added": round(added / memory.MIB),
        "peak_to_weights": round(added / weights, 2),
    }


def _measure_each(
    models: list[str], expansion: int, rounds: int
) -> list[dict[str, Any]]:
    if len(models) == 1:
        return [measure(models[0], expansion, rounds)]
    return [
        memory.in_fresh_process(measure, name, expansion, rounds)
        for name in models
    ]


def _timed(seconds: list[float], function: Any, *args: Any) -> Any:
    start = time.perf_counter()
    result = function(*args)
    seconds.append(time.perf_counter() - start)
    return result


def run(models: list[str], expansion: int, rounds: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    results = _measure_each(models, expansion, rounds)
    report = {
        "workload": "keras_mk.expand and keras_mk.collapse",
        "expansion": expansion,
        "rounds": rounds,
        "environment": timing.environment(),
        "results": results,
    }
    table = Table(title=f"{keras.config.backend()}, expansion {expansion}")
    for column in results[0]:
        table.add_column(column.replace("_", " "))
    for result in results:
        ratio = f"{result['expand_to_build']['median']:.2f}"
        row = {**result, "expand_to_build": ratio}
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    path = folder / f"bench_expand_{keras.config.backend()}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"Written: {path}")
