"""`keras-mk bench compile`: training steps through XLA, for any device.

Nothing is run: XLA compiles for a TPU on any Linux machine where `libtpu` is
installed, and JAX lowers for CUDA everywhere.
"""

import importlib.util
import os
import re
import time
from dataclasses import dataclass
from typing import Any

import keras

from keras_mk import _keras_internals as internals
from keras_mk.bench import steps as training
from keras_mk.bench.memory import MIB
from keras_mk.bench.steps import Setting


@dataclass(frozen=True)
class Target:
    """A device to compile for.

    Attributes:
        platform: What JAX calls it.
        topology: Name of a slice of TPUs, `None` for other devices.
        accelerator: The type that `libtpu` would otherwise ask a TPU for.
    """

    platform: str
    topology: str | None = None
    accelerator: str = ""


TARGETS = {
    "cpu": Target("cpu"),
    "tpu-v5e": Target("tpu", "v5e:2x2", "v5litepod-4"),
    "tpu-v6e": Target("tpu", "v6e:2x2", "v6e-4"),
    "cuda": Target("cuda"),
}


def why_not(target: str) -> str | None:
    """Why one cannot compile for a target here, or `None`."""
    if TARGETS[target].platform == "tpu" and not _has_libtpu():
        return (
            "the TPU compiler is not installed; install it with "
            "`pip install keras-mk[jax,tpu]`"
        )
    return None


def _has_libtpu() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def prepare(targets: list[str]) -> None:
    """Tells `libtpu` not to look for TPUs, before JAX looks for devices."""
    for target in map(TARGETS.__getitem__, targets):
        if target.platform == "tpu":
            os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
            os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
            os.environ["TPU_ACCELERATOR_TYPE"] = target.accelerator
            os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    import jax

    jax.config.update("jax_platforms", "cpu")


def measure(
    setting: Setting, names: list[str], target: str
) -> list[dict[str, Any]]:
    """One row per variant: what the compiler says of its training step."""
    found = {name: _compiled(setting, name, target) for name in names}
    plain = found.get("plain")
    return [
        {
            **setting.columns(),
            "target": target,
            "variant": name,
            **figures,
            **(_ratios(figures, plain) if plain else {}),
        }
        for name, figures in found.items()
    ]


def _ratios(figures: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{key}_to_plain": round(figures[key] / plain[key], 3)
        for key in ("flops", "bytes", "cycles")
        if figures.get(key) and plain.get(key)
    }


def _compiled(setting: Setting, variant: str, target: str) -> dict[str, Any]:
    import jax

    (model,) = training.compiled_models(setting, variant)
    step, arguments = _training_step(
        model, *setting.workload.data(setting.batch)
    )
    start = time.perf_counter()
    if TARGETS[target].platform == "cuda":
        lowered = jax.export.export(step, platforms=["cuda"])(*arguments)
        return {
            "compile_seconds": round(time.perf_counter() - start, 2),
            "lowered_bytes": len(lowered.mlir_module_serialized),
        }
    sharding = jax.sharding.SingleDeviceSharding(_device(TARGETS[target]))
    arguments = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        arguments,
    )
    compiled = step.lower(*arguments).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    cycles = re.findall(r'"estimated_cycles":"(\d+)"', compiled.as_text())
    return {
        "compile_seconds": round(time.perf_counter() - start, 2),
        "flops": cost["flops"],
        "bytes": cost["bytes accessed"],
        # Of the whole step, where the compiler estimates it: TPU.
        "cycles": sum(map(int, cycles)) or None,
        "arguments_mib": round(memory.argument_size_in_bytes / MIB, 2),
        "temporary_mib": round(memory.temp_size_in_bytes / MIB, 2),
    }


def _device(target: Target) -> Any:
    import jax
    from jax.experimental import topologies

    if target.topology is None:
        return jax.devices("cpu")[0]
    described = topologies.get_topology_desc(
        topology_name=target.topology, platform=target.platform
    )
    return described.devices[0]


def _training_step(model: keras.Model, x: Any, y: Any) -> tuple[Any, Any]:
    """Keras's own training step as `fit` compiles it, and its arguments."""
    import jax

    internals.build_for_fit(model, (x, y))
    state = tuple(
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )
    data = keras.tree.map_structure(
        lambda a: jax.ShapeDtypeStruct(
            a.shape, jax.dtypes.canonicalize_dtype(a.dtype)
        ),
        (x, y),
    )
    return jax.jit(model.train_step, donate_argnums=0), (state, data)
