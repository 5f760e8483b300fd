"""Peak memory of a training step, each variant in a process of its own."""

import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from keras_mk.bench import steps as training
from keras_mk.bench import workloads

MIB = 2**20


def peak() -> int:
    """Largest resident memory of this process so far, in bytes.

    On Linux not by `getrusage`: it starts at what the parent process held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(
            x for x in status.read_text().splitlines() if x.startswith("VmHWM:")
        )
        return int(line.split()[1]) * 1024
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


def in_fresh_process(function: Any, *args: Any) -> Any:
    """Calls a function where nothing has been allocated before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def peak_of_training(
    name: str, width: int | None, index: int, options: Any, variant: str
) -> int:
    """MiB that two steps of a variant add to the peak of the process.

    The workload is the one at `index` of `workloads.find(name, width)`: a
    process cannot be given the workload itself.
    """
    setting = training.Setting(workloads.find(name, width)[index], **options)
    before = peak()
    models = training.compiled_models(setting, variant)
    feed = training._feed(setting)
    training._fit(models, feed, 2)
    return round((peak() - before) / MIB)
