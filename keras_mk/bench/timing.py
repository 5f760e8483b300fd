"""Interleaved timing, and ratios that a busy machine does not spoil."""

import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from rich.progress import Progress

LONGEST_TURN = 3.0
# A variant this many times slower than the fastest need not be timed again.
HOPELESS = 8


def interleave(
    variants: Mapping[str, Callable[[int], Any]],
    rounds: int,
    steps: int,
    title: str,
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds per step of each variant in each round, after a warm-up.

    The variants take turns, so that what slows the machine for a while slows
    all of them, and a ratio within a round means something.

    Args:
        variants: Functions that run the given number of steps.
        rounds: How often each variant takes its turn.
        steps: Steps per turn; fewer for a variant so slow that its turn would
            take more than `LONGEST_TURN` seconds. Where one step does, and is
            `HOPELESS` times that of the fastest variant, it has one turn.
        title: What the progress bar says.

    Returns:
        For each variant one number per round, NaN where it sat out; and the
        seconds that its very first step took, with what it compiled.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    first: dict[str, float] = {}
    step_seconds: dict[str, float] = {}
    turn_steps: dict[str, int] = {}
    with Progress(transient=True) as progress:
        task = progress.add_task(title, total=(rounds + 1) * len(variants))
        for name, run in variants.items():
            first[name] = _time(run, 1)
            step_seconds[name] = _time(run, 1)
            fitting = int(LONGEST_TURN / step_seconds[name])
            turn_steps[name] = max(1, min(steps, fitting))
            progress.advance(task)
        slow = max(LONGEST_TURN, HOPELESS * min(step_seconds.values()))
        for turn in range(rounds):
            for name, run in variants.items():
                if turn == 0 or step_seconds[name] < slow:
                    elapsed = _time(run, turn_steps[name])
                    seconds[name].append(elapsed / turn_steps[name])
                else:
                    seconds[name].append(math.nan)
                progress.advance(task)
    return seconds, first


def _time(run: Callable[[int], Any], steps: int) -> float:
    start = time.perf_counter()
    run(steps)
    return time.perf_counter() - start


def ratio(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    """Median of the ratios round by round, with their quartiles."""
    ratios = np.array(numerator) / np.array(denominator)
    low, median, high = np.nanpercentile(ratios, [25, 50, 75])
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
