"""Interleaved timing, and ratios that a busy machine does not spoil."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from rich.progress import Progress


def interleave(
    variants: Mapping[str, Callable[[], Any]], rounds: int, title: str
) -> dict[str, list[float]]:
    """Seconds of each variant in each round, after one to warm up.

    The variants take turns, so that what slows the machine for a while slows
    all of them, and a ratio within a round means something.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    with Progress(transient=True) as progress:
        task = progress.add_task(title, total=(rounds + 1) * len(variants))
        for turn in range(rounds + 1):
            for name, run in variants.items():
                start = time.perf_counter()
                run()
                if turn > 0:
                    seconds[name].append(time.perf_counter() - start)
                progress.advance(task)
    return seconds


def ratio(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    """Median of the ratios round by round, with their quartiles."""
    ratios = np.array(numerator) / np.array(denominator)
    low, median, high = np.percentile(ratios, [25, 50, 75])
    return {
        "median": round(float(median), 3),
        "low": round(float(low), 3),
        "high": round(float(high), 3),
    }


def environment() -> dict[str, Any]:
    """Versions and hardware, to stand beside every figure."""
    backend = keras.config.backend()
    return {
        "backend": backend,
        "keras": keras.__version__,
        backend: importlib.metadata.version(backend),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
