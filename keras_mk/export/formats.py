"""What can be written, by which backend, and what it needs."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Format:
    """A kind of artefact.

    Attributes:
        suffix: How its path ends; empty for a folder.
        backend: The Keras backend that writes it, or `None` for any.
        modules: What must be installed to write it and to check it.
        quantize: What `quantize` may be.
        marker: A file that a folder of this kind holds.
        companions: Suffixes of the files that are written next to it.
    """

    suffix: str
    backend: str | None
    modules: tuple[str, ...]
    quantize: tuple[str, ...] = ()
    marker: str = ""
    companions: tuple[str, ...] = ()


FORMATS = {
    "tf_saved_model": Format(
        "", "tensorflow", ("tensorflow",), ("int8",), marker="saved_model.pb"
    ),
    "litert": Format(
        ".tflite",
        "tensorflow",
        ("tensorflow", "ai_edge_litert"),
        ("int8", "float16"),
    ),
    "onnx": Format(
        ".onnx",
        "tensorflow",
        ("tensorflow", "tf2onnx", "onnx", "onnxruntime"),
        ("int8",),
    ),
    "openvino": Format(
        ".xml",
        "tensorflow",
        ("tensorflow", "openvino"),
        companions=(".bin",),
    ),
    "torch": Format(".pt2", "torch", ("torch",)),
    "keras": Format(".keras", None, (), ("int8",)),
}


def format_of(path: Path) -> str:
    """The format of an artefact, from how its path ends."""
    if not path.suffix:
        return "tf_saved_model"
    for name, kind in FORMATS.items():
        if path.suffix == kind.suffix:
            return name
    known = sorted(kind.suffix for kind in FORMATS.values() if kind.suffix)
    raise ValueError(
        f"The format cannot be told from the suffix '{path.suffix}'. Give it "
        f"with `--format`, or a path that ends in one of {known}, or in none "
        f"for a SavedModel. Received: '{path}'"
    )


def check_format(name: str, quantize: str | None) -> Format:
    """The format of that name, if it can be written here."""
    if name not in FORMATS:
        raise ValueError(
            f"`format` must be one of {sorted(FORMATS)}. Received: "
            f"format={name!r}"
        )
    found = FORMATS[name]
    if quantize is not None and quantize not in found.quantize:
        able = {
            other: kinds.quantize
            for other, kinds in FORMATS.items()
            if kinds.quantize
        }
        raise ValueError(
            f"`quantize` is not available like this for {name}. The formats "
            f"that have it: {able}. Received: quantize={quantize!r}"
        )
    missing = [m for m in found.modules if not importlib.util.find_spec(m)]
    if missing:
        known = ("tensorflow", "torch")
        extra = missing[0] if missing[0] in known else "export"
        raise ImportError(
            f"Writing {name} needs {', '.join(missing)}, which is not "
            f"installed here. Install it with `pip install "
            f"keras-mk[{extra}]`."
        )
    return found
