"""`keras-mk bench infer`: inference, before and after collapsing."""

from functools import partial
from typing import Any

import keras

from keras_mk.bench import timing
from keras_mk.bench.workloads import Workload
from keras_mk.collapse import collapse
from keras_mk.expand import expand


def measure(
    workload: Workload,
    batch: int,
    expansion: int,
    jit: bool | str,
    rounds: int,
    steps: int,
) -> list[dict[str, Any]]:
    """`predict` of the plain, the collapsed and the uncollapsed model."""
    plain = workload.make()
    model = expand(plain, expansion, copies="perturb")
    models = {"plain": plain, "collapsed": collapse(model), "mk": model}
    x, _ = workload.data(batch)
    for each in models.values():
        each.compile(jit_compile=jit)

    def predict(model: keras.Model, steps: int) -> None:
        for _ in range(steps):
            model.predict_on_batch(x)

    seconds, first = timing.interleave(
        {name: partial(predict, each) for name, each in models.items()},
        rounds,
        steps,
        f"inference, {workload.name}",
    )
    return [
        {
            "backend": keras.config.backend(),
            "workload": f"{workload.name}, inference",
            "batch": batch,
            "expansion": expansion,
            "jit_compile": jit,
            **row,
            "parameters": models[row["variant"]].count_params(),
            "examples_per_second": round(1e3 * batch / row["step_ms"], 1),
        }
        for row in timing.rows(seconds, first)
    ]
