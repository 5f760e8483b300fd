"""Runs an exported model in the runtime that it is meant for.

It runs in a process of its own, as

    python runtimes.py job.json

so it imports nothing from this package, and no more than the runtime.
"""

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]
# From arrays by name, and the signature in which they stand.
Run = Callable[[Arrays, Any], Any]


def _saved_model(path: str) -> Run:
    import tensorflow as tf

    loaded = tf.saved_model.load(path)

    def run(named: Arrays, signature: Any) -> Any:
        tensors = {name: tf.constant(value) for name, value in named.items()}
        return loaded.signatures["serving_default"](**tensors)

    return run


def _litert(path: str) -> Run:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path)
    runner = interpreter.get_signature_runner("serving_default")
    return lambda named, signature: runner(**named)


def _openvino(path: str) -> Run:
    import openvino

    # Not in bfloat16, which is the default on some processors.
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", options)
    return lambda named, signature: {
        port.get_any_name(): value for port, value in compiled(named).items()
    }


def _onnx(path: str) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        path, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return lambda named, signature: dict(zip(names, session.run(names, named)))


def _torch(path: str) -> Run:
    import torch

    module = torch.export.load(path).module()

    def run(named: Arrays, signature: Any) -> Any:
        tensors = {k: torch.from_numpy(v) for k, v in named.items()}
        with torch.no_grad():
            return module(*fill(signature, tensors))

    return run


def _keras(path: str) -> Run:
    import keras

    model = keras.saving.load_model(path, compile=False, safe_mode=False)
    return lambda named, signature: model(*fill(signature, named))


RUNTIMES: dict[str, Callable[[str], Run]] = {
    "tf_saved_model": _saved_model,
    "litert": _litert,
    "openvino": _openvino,
    "onnx": _onnx,
    "torch": _torch,
    "keras": _keras,
}


def fill(signature: Any, named: Arrays) -> Any:
    """The arguments of a call, from a signature and arrays by name."""
    if isinstance(signature, list):
        return [fill(item, named) for item in signature]
    if set(signature) == {"shape", "dtype", "name"}:
        return named[signature["name"]]
    return {key: fill(item, named) for key, item in signature.items()}


def named_outputs(outputs: Any) -> Arrays:
    """Outputs by name, as a SavedModel names them, in float64."""
    if not isinstance(outputs, (dict, list, tuple)):
        outputs = [outputs]
    if not isinstance(outputs, dict):
        outputs = {f"output_{i}": item for i, item in enumerate(outputs)}
    return {name: _wide(value) for name, value in outputs.items()}


def _wide(value: Any) -> Any:
    for method in ("detach", "cpu"):
        value = getattr(value, method, lambda value=value: value)()
    return np.asarray(value).astype("float64")


def main(job_path: str) -> int:
    """Does what a job file says; its `error` file says what went wrong."""
    job = json.loads(Path(job_path).read_text())
    try:
        if job["format"] == "keras":
            import keras

            for module in job["modules"]:
                importlib.import_module(module)
            for name, module, qualified in job["custom_objects"]:
                found = attrgetter(qualified)(importlib.import_module(module))
                keras.saving.get_custom_objects()[name] = found
        run = RUNTIMES[job["format"]](job["artifact"])
        for source, target in job["batches"]:
            named = dict(np.load(source))
            outputs = run(named, job["signature"])
            np.savez(target, **named_outputs(outputs))
    except BaseException as error:
        traceback.print_exc()
        Path(job["error"]).write_text(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
