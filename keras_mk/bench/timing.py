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


def rows(
    seconds: dict[str, list[float]], first: dict[str, float]
) -> list[dict[str, Any]]:
    """What `interleave` found, one row per variant.

    Ratios are to the variants `plain` and `floor`, where there are such.
    """
    return [
        {
            "variant": name,
            "step_ms": round(float(np.nanmedian(times)) * 1e3, 4),
            "first_step_seconds": round(first[name], 2),
            **_ratios("to_plain", times, seconds.get("plain")),
            **_ratios("to_floor", times, seconds.get("floor")),
            "rounds_ms": " ".join(f"{1e3 * time:.5g}" for time in times),
        }
        for name, times in seconds.items()
    ]


def _ratios(
    prefix: str, times: list[float], reference: list[float] | None
) -> dict[str, float | None]:
    found: dict[str, Any] = dict.fromkeys(("median", "low", "high"))
    if reference is not None:
        found = ratio(times, reference)
    return {f"{prefix}_{key}": value for key, value in found.items()}


def environment() -> dict[str, Any]:
    """Versions and hardware, to stand beside every figure."""
    backend = keras.config.backend()
    switches = [name for name in os.environ if name.startswith("KERAS_MK_")]
    return {
        "backend": backend,
        "keras": keras.__version__,
        backend: importlib.metadata.version(backend),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
        **{name: os.environ[name] for name in sorted(switches)},
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
