"""Writes a plain Keras model in the format of another runtime.

It runs in a process of its own as well, with another backend, as

    python writers.py job.json

so it imports nothing from this package.
"""

import importlib
import inspect
import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

OPSET = 18


def write(
    model: Any, format: str, path: str, signature: Any, quantize: str | None
) -> None:
    """Writes `model` to `path`.

    Args:
        model: A plain, built Keras model.
        format: A key of `WRITERS`.
        path: What to write. It does not exist yet.
        signature: The model's inputs, as `decode_signature` takes them.
        quantize: `None`, `"int8"` or `"float16"`.
    """
    if quantize == "int8" and format != "litert":
        with warnings.catch_warnings():
            # Of the layers that have nothing to quantize.
            warnings.filterwarnings("ignore", ".*does not have a `quantize`")
            model.quantize("int8")
    WRITERS[format](model, path, decode_signature(signature), quantize)


def decode_signature(encoded: Any) -> Any:
    """Nested lists and dicts of `keras.InputSpec`, from JSON."""
    import keras

    if isinstance(encoded, list):
        return [decode_signature(item) for item in encoded]
    if set(encoded) == {"shape", "dtype", "name"}:
        return keras.InputSpec(
            shape=tuple(encoded["shape"]),
            dtype=encoded["dtype"],
            name=encoded["name"],
        )
    return {key: decode_signature(value) for key, value in encoded.items()}


def inference(model: Any) -> Callable[..., Any]:
    """The model as a function of its inputs alone."""
    if "training" in inspect.signature(model.call).parameters:
        return lambda *inputs: model(*inputs, training=False)
    return lambda *inputs: model(*inputs)


def _keras(model: Any, path: str, signature: Any, quantize: Any) -> None:
    model.save(path)


def _saved_model(model: Any, path: str, signature: Any, quantize: Any) -> None:
    import keras

    # Not `model.export`, which stores each weight twice.
    archive = keras.export.ExportArchive()
    archive.add_endpoint(
        "serve", inference(model), input_signature=tuple(signature)
    )
    archive.write_out(path, verbose=False)


def _litert(model: Any, path: str, signature: Any, quantize: Any) -> None:
    import tensorflow as tf

    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        _saved_model(model, folder, signature, None)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=["serving_default"]
        )
        # No Flex operations: the LiteRT runtime does not have them.
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if quantize is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            converted = converter.convert()
        except Exception as error:
            if "Flex" not in str(error):
                raise
            raise ValueError(
                "The model uses operations that LiteRT lacks, most often "
                "because of a dynamic dimension other than the batch. Give an "
                "`input_signature` with fixed lengths. The converter says: "
                f"{error}"
            ) from error
    Path(path).write_bytes(converted)


def _openvino(model: Any, path: str, signature: Any, quantize: Any) -> None:
    import openvino

    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        _saved_model(model, folder, signature, None)
        converted = openvino.convert_model(folder)
        openvino.save_model(converted, path, compress_to_fp16=False)


def _onnx(model: Any, path: str, signature: Any, quantize: Any) -> None:
    import keras
    import onnx
    import tensorflow as tf
    import tf2onnx

    specs = [
        tf.TensorSpec(spec.shape, spec.dtype, name=spec.name)
        for spec in keras.tree.flatten(signature)
    ]

    @tf.function(input_signature=specs)  # type: ignore[untyped-decorator]
    def function(*inputs: Any) -> Any:
        arguments = keras.tree.pack_sequence_as(signature, inputs)
        outputs = inference(model)(*arguments)
        if not isinstance(outputs, (dict, list, tuple)):
            outputs = [outputs]
        if not isinstance(outputs, dict):
            outputs = {f"output_{i}": item for i, item in enumerate(outputs)}
        return outputs

    _teach_tf2onnx_erfc()
    converted, _ = tf2onnx.convert.from_function(
        function, input_signature=specs, opset=OPSET
    )
    # tf2onnx takes some constants for inputs, which nothing reads.
    for extra in list(converted.graph.input):
        if extra.name not in {spec.name for spec in specs}:
            converted.graph.input.remove(extra)
    # And it only logs what it cannot convert.
    onnx.checker.check_model(converted, full_check=True)
    onnx.save(converted, path)


def _teach_tf2onnx_erfc() -> None:
    """TensorFlow computes the exact gelu by erfc, which ONNX lacks."""
    import numpy as np
    from tf2onnx import utils
    from tf2onnx.handler import tf_op

    class Erfc:
        @classmethod
        def version_9(cls, graph: Any, node: Any, **kwargs: Any) -> None:
            shapes, dtypes = node.output_shapes, node.output_dtypes
            numpy_dtype = utils.map_onnx_to_numpy_type(dtypes[0])
            graph.remove_node(node.name)
            erf = graph.make_node("Erf", node.input, dtypes=dtypes)
            one = graph.make_const(
                utils.make_name("one"), np.array(1, numpy_dtype)
            )
            graph.make_node(
                "Sub",
                [one.output[0], erf.output[0]],
                outputs=node.output,
                shapes=shapes,
                dtypes=dtypes,
            )

    tf_op("Erfc")(Erfc)


def _torch(model: Any, path: str, signature: Any, quantize: Any) -> None:
    import keras
    import torch

    def example(spec: Any) -> Any:
        # A dimension of 1 in the example would be taken as fixed.
        shape = [2 if size is None else size for size in spec.shape]
        return keras.ops.ones(shape, spec.dtype)

    def dynamic(spec: Any) -> Any:
        return {
            axis: torch.export.Dim.DYNAMIC
            for axis, size in enumerate(spec.shape)
            if size is None
        }

    class Inference(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return inference(self.model)(*inputs)

    arange = keras.ops.arange

    def arange_of_symbols(*args: Any, dtype: Any = None) -> Any:
        """Keras asks a symbolic size for its dtype, which it has not."""
        if dtype is None and any(isinstance(a, torch.SymInt) for a in args):
            dtype = "int32"
        return arange(*args, dtype=dtype)

    model.eval()
    with mock.patch.object(keras.ops, "arange", arange_of_symbols):
        program = torch.export.export(
            Inference(),
            tuple(keras.tree.map_structure(example, signature)),
            dynamic_shapes=(
                tuple(keras.tree.map_structure(dynamic, signature)),
            ),
            strict=False,
        )
    torch.export.save(program, path)


WRITERS: dict[str, Callable[[Any, str, Any, Any], None]] = {
    "tf_saved_model": _saved_model,
    "litert": _litert,
    "openvino": _openvino,
    "onnx": _onnx,
    "torch": _torch,
    "keras": _keras,
}


def main(job_path: str) -> int:
    """Does what a job file says; its `error` file says what went wrong."""
    job = json.loads(Path(job_path).read_text())
    try:
        import keras

        for module in job["modules"]:
            importlib.import_module(module)
        custom_objects = {
            name: attrgetter(qualified)(importlib.import_module(module))
            for name, module, qualified in job["custom_objects"]
        }
        model = keras.saving.load_model(
            job["model"],
            custom_objects,
            compile=False,
            # Made by the parent a moment ago, so as safe as the parent.
            safe_mode=False,
        )
        write(
            model,
            job["format"],
            job["output"],
            job["signature"],
            job["quantize"],
        )
    except BaseException as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        Path(job["error"]).write_text(message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
