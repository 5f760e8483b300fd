"""The plain model, written for where it is deployed."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_mk import _keras_internals as internals
from keras_mk.baselines.ensemble import Ensemble
from keras_mk.collapse import check_comparable
from keras_mk.collapse import check_majority
from keras_mk.collapse import collapse
from keras_mk.collapse import difference
from keras_mk.collapse import largest
from keras_mk.collapse import largest_finite
from keras_mk.collapse import tolerance_of
from keras_mk.copy_model import copy_model
from keras_mk.copy_model import custom_classes
from keras_mk.copy_model import has_majority
from keras_mk.export import child
from keras_mk.export import place
from keras_mk.export import runtimes
from keras_mk.export import signature as signatures
from keras_mk.export import writers
from keras_mk.export.formats import check_format
from keras_mk.export.report import ExportReport
from keras_mk.local_path import check_local
from keras_mk.recalibrate import recalibrate_batch_norm
from keras_mk.staging import staging

BATCH_SIZES = (1, 3)
QUANTIZED_TOLERANCE = 0.1
# Two runtimes differ more than two models in one.
ACROSS_RUNTIMES = 5


def export_collapsed(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str = "tf_saved_model",
    *,
    verify: Any = True,
    input_signature: Any = None,
    overwrite: bool = False,
    quantize: str | None = None,
    tolerance: float | None = None,
    modules: Sequence[str] = (),
    calibration_data: Any = None,
    calibration_steps: int | None = None,
) -> ExportReport:
    """Collapses a model and writes it for another runtime.

    What is written is the plain model: nothing in it comes from `keras_mk`.
    Every backend can write every format; where the format needs another
    backend, a process with that backend writes it. It appears at `path` when
    it is complete and has been checked, or not at all. The model that is given
    is not changed.

    Args:
        model: A built model with majority-kernel layers, or a
            `keras_mk.baselines.Ensemble`, of plain models too.
        path: Where to write, on this machine's file system. A folder for
            `"tf_saved_model"`, otherwise a file with the format's suffix.
        format: `"tf_saved_model"`, `"litert"` (`.tflite`), `"onnx"`,
            `"openvino"` (`.xml`), `"torch"` (`.pt2`) or `"keras"`.
        verify: Whether to load the result in a fresh process, in its own
            runtime, and compare its output with the model's inference on two
            batch sizes of made-up inputs. Instead of `True` it may be a batch
            of inputs to compare on.
        input_signature: Shapes and dtypes of the inputs, as
            `keras.Model.export` takes them. Defaults to the model's own. The
            batch size is always dynamic.
        overwrite: Whether to replace what is at `path`. It is replaced when
            the new one is ready.
        quantize: `"int8"` (all but OpenVINO and torch) or `"float16"`
            (LiteRT). LiteRT quantizes the weights of all layers, the other
            formats those that `keras.Model.quantize` does.
        tolerance: Largest difference that `verify` accepts, relative to the
            largest output (to 1 if that is more, unless quantized). Defaults
            to one that fits the dtype, and to 0.1 if quantized.
        modules: Modules that register custom objects, to be imported by the
            other process. The modules of custom layers are found without.
        calibration_data: Data to gather the statistics of BatchNorm layers on
            again, as `keras_mk.recalibrate_batch_norm` takes it. What is
            written is then compared with the calibrated model. Defaults to
            none: the statistics of training.
        calibration_steps: How many of its batches to take. Defaults to all.

    Returns:
        An `ExportReport`: path, size, parameters, difference, route, seconds.

    Raises:
        ValueError: If an argument is wrong, the model is plain or not built,
            or the written model computes something else.
        ImportError: If a package is missing; it names the extra to install.
        OSError: If `path` cannot be written, or is taken.
        RuntimeError: If the conversion fails.

    Example:

    >>> import keras, keras_mk, os, tempfile
    >>> plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    >>> model = keras_mk.expand(plain)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.keras")
    ...     report = keras_mk.export_collapsed(
    ...         model, path, format="keras", verify=False
    ...     )
    ...     report.parameters, os.path.exists(path)
    (36, True)
    """
    start = time.perf_counter()
    check_local(path)
    path = Path(path).expanduser()
    # An ensemble is what one compares with, and has to be deployed likewise.
    if not isinstance(model, Ensemble):
        check_majority(model)
    if not model.built:
        raise ValueError(
            f"Model '{model.name}' is not built. Call it on a batch, or build "
            "it, before exporting it."
        )
    kind = check_format(format, quantize)
    target = place.check_target(path, kind, overwrite)
    signature = signatures.encoded_signature(model, input_signature)
    backend = kind.backend or keras.config.backend()
    in_process = backend == keras.config.backend()
    batches = _batches(signature, verify)
    internals.synchronize(model)
    plain = collapse(model) if has_majority(model) else copy_model(model)
    reference = model
    if calibration_data is not None:
        reference = recalibrate_batch_norm(
            plain, calibration_data, calibration_steps, verbose=0
        )
        # What is written may be quantized in place.
        plain = copy_model(reference)
    classes = custom_classes(plain)
    if not in_process or (batches and format == "keras"):
        _check_importable(classes)
    parameters = plain.count_params()
    job = {
        "format": format,
        "signature": signature,
        "quantize": quantize,
        "modules": list(modules),
        "custom_objects": [
            [cls.__name__, cls.__module__, cls.__qualname__] for cls in classes
        ],
    }
    with staging(target) as folder:
        written = folder / f"artifact{kind.suffix}"
        if in_process:
            writers.write(plain, format, str(written), signature, quantize)
        else:
            saved = folder / "collapsed.keras"
            plain.save(saved)
            files = {"model": str(saved), "output": str(written)}
            child.run("writers.py", {**job, **files}, folder, backend)
        gap = scale = None
        if batches:
            gap, scale = _compare(reference, written, job, batches, folder)
            _check_difference(model, gap, scale, quantize, tolerance)
        size = _size(written, kind.companions)
        place.move_into_place(written, target, kind, overwrite)
    return ExportReport(
        path=path,
        format=format,
        bytes=size,
        parameters=parameters,
        difference=gap,
        scale=scale,
        quantize=quantize,
        route="in process" if in_process else f"by a {backend} process",
        seconds=round(time.perf_counter() - start, 2),
    )


def _check_importable(classes: list[type]) -> None:
    """Raises if another process could not import one of the classes."""
    for cls in classes:
        if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
            raise ValueError(
                f"Class '{cls.__qualname__}' of '{cls.__module__}' cannot be "
                "imported by the process that writes or checks the export. "
                "Define it at the top level of a module. Received: a model "
                f"with a layer of {cls}"
            )


def _batches(signature: Any, verify: Any) -> list[dict[str, Any]]:
    """Inputs by name on which to compare."""
    if verify is False or verify is None:
        return []
    if verify is True:
        return [signatures.random_inputs(signature, n) for n in BATCH_SIZES]
    return [signatures.named_inputs(signature, verify)]


def _compare(
    model: keras.Model,
    written: Path,
    job: dict[str, Any],
    batches: list[dict[str, Any]],
    folder: Path,
) -> tuple[float, float]:
    """Largest difference between the artefact and the model, and the scale."""
    files = []
    for i, batch in enumerate(batches):
        files.append((folder / f"inputs_{i}.npz", folder / f"outputs_{i}.npz"))
        np.savez(files[-1][0], **batch)
    job = {
        **job,
        "artifact": str(written),
        "batches": [[str(a), str(b)] for a, b in files],
    }
    child.run("runtimes.py", job, folder, keras.config.backend())
    differences, values = [], []
    for batch, (_, outputs) in zip(batches, files):
        arguments = runtimes.fill(job["signature"], batch)
        expected = runtimes.named_outputs(
            keras.tree.map_structure(
                keras.ops.convert_to_numpy,
                writers.inference(model)(*arguments),
            )
        )
        found = dict(np.load(outputs))
        for name, value in expected.items():
            other = _matching(name, value, expected, found)
            differences.append(difference(value, other))
            values.append(value)
    check_comparable(model, values)
    return largest(differences), largest_finite(values)


def _matching(name: str, value: Any, expected: Any, found: Any) -> Any:
    """The output that was found under a name, or at its position."""
    if set(found) == set(expected):
        other = found[name]
    elif len(found) == len(expected):
        other = found[list(found)[list(expected).index(name)]]
    else:
        raise ValueError(
            f"The exported model has {len(found)} outputs, the model it was "
            f"made of {len(expected)}. Nothing was written."
        )
    if other.shape != value.shape:
        raise ValueError(
            f"Output '{name}' of the exported model has the shape "
            f"{other.shape}, where the model it was made of gives "
            f"{value.shape}. Nothing was written."
        )
    return other


def _check_difference(
    model: keras.Model,
    gap: float,
    scale: float,
    quantize: str | None,
    tolerance: float | None,
) -> None:
    if tolerance is None:
        tolerance = (
            QUANTIZED_TOLERANCE
            if quantize
            else ACROSS_RUNTIMES * tolerance_of(model)
        )
    allowed = tolerance * (scale if quantize else max(1.0, scale))
    # Not `gap > allowed`, which is false for NaN.
    if not gap <= allowed:
        raise ValueError(
            "The exported model differs from the inference of the model it was "
            f"made of by {gap:.2e} at most, where {allowed:.2e} is "
            "allowed. Nothing was written."
        )


def _size(written: Path, companions: Sequence[str]) -> int:
    if written.is_dir():
        return sum(p.stat().st_size for p in written.rglob("*") if p.is_file())
    files = [written, *(written.with_suffix(suffix) for suffix in companions)]
    return sum(file.stat().st_size for file in files)
