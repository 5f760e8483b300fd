"""What an export did."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExportReport:
    """What `keras_mk.export_collapsed` wrote. Prints as one line.

    Attributes:
        path: Where it is.
        format: Its format.
        bytes: Its size on disk.
        parameters: Number of parameters of the deployed model.
        difference: Largest difference between its output and the inference
            of the majority-kernel model; `None` if it was not compared.
        scale: Largest output in that comparison.
        quantize: How it was quantized, or `None`.
        route: How it was written: `"in process"`, or by a process with
            another backend.
        seconds: How long it took.
    """

    path: Path
    format: str
    bytes: int
    parameters: int
    difference: float | None
    scale: float | None
    quantize: str | None
    route: str
    seconds: float

    def __str__(self) -> str:
        kind = (
            f"{self.format} {self.quantize}" if self.quantize else self.format
        )
        compared = (
            "not compared"
            if self.difference is None
            else f"largest difference {self.difference:.1e} in outputs up to "
            f"{self.scale:.3g}"
        )
        return (
            f"{self.path}: {kind}, {self.bytes / 1e6:,.2f} MB, "
            f"{self.parameters:,} parameters, {compared}, {self.route}, "
            f"{self.seconds:.1f} s"
        )
