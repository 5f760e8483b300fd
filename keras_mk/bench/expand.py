"""`keras-mk bench expand`: time and memory of converting a model."""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import keras
from rich.console import Console
from rich.table import Table

from keras_mk.bench import timing
from keras_mk.collapse import collapse
from keras_mk.expand import expand

MIB = 2**20


def resnet50() -> keras.Model:
    return keras.applications.ResNet50(weights=None)


def t5() -> keras.Model:
    """The size of t5_small_multi: 77 million parameters."""
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "This needs KerasHub. Install it with `pip install keras-mk[hub]`."
        ) from error
    return keras_hub.models.T5Backbone(
        vocabulary_size=32128,
        num_layers=8,
        num_heads=6,
        hidden_dim=512,
        intermediate_dim=1024,
        key_value_dim=64,
        use_gated_activation=True,
        activation="gelu",
        tie_embedding_weights=False,
    )


MODELS = {"resnet50": resnet50, "t5": t5}


def measure(name: str, expansion: int) -> dict[str, Any]:
    """One model, in this process: peak memory never falls again.

    Imports apart, everything happens for the first time, as in a script.
    """
    tiny = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    collapse(expand(tiny, expansion))
    start = time.perf_counter()
    model = MODELS[name]()
    build = time.perf_counter() - start
    weights = sum(w.numpy().nbytes for w in model.weights)
    before = _peak()
    start = time.perf_counter()
    expanded = expand(model, expansion)
    seconds = time.perf_counter() - start
    peak = _peak() - before
    start = time.perf_counter()
    collapse(expanded)
    collapse_seconds = time.perf_counter() - start
    return {
        "model": name,
        "parameters": model.count_params(),
        "build_seconds": round(build, 2),
        "expand_seconds": round(seconds, 2),
        "collapse_seconds": round(collapse_seconds, 2),
        "expand_to_build": round(seconds / build, 2),
        "weights_mib": round(weights / MIB),
        "peak_mib_added": round(peak / MIB),
        "peak_to_weights": round(peak / weights, 2),
    }


def _peak() -> int:
    """Largest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run(models: list[str], expansion: int, output_dir: str) -> None:
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    results = [measure(name, expansion) for name in models]
    report = {
        "workload": "keras_mk.expand and keras_mk.collapse",
        "expansion": expansion,
        "environment": timing.environment(),
        "results": results,
    }
    table = Table(title=f"{keras.config.backend()}, expansion {expansion}")
    for column in results[0]:
        table.add_column(column.replace("_", " "))
    for result in results:
        table.add_row(*(str(value) for value in result.values()))
    Console().print(table)
    path = folder / f"bench_expand_{keras.config.backend()}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"Written: {path}")
