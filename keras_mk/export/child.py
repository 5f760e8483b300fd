"""A script of this package run in a process of its own."""

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(script: str, job: dict[str, Any], folder: Path, backend: str) -> None:
    """Runs a script next to this file on a job, and raises what it raised.

    Args:
        script: The script's name. It does not import this package.
        job: What it is to do; JSON.
        folder: Where to put the job, its output and its error.
        backend: `KERAS_BACKEND` of the process.

    Raises:
        OSError: If that is what went wrong there.
        RuntimeError: If anything else did.
    """
    name = Path(script).stem
    job_path, error = folder / f"{name}.json", folder / f"{name}.error"
    log = folder / f"{name}.log"
    error.unlink(missing_ok=True)
    job_path.write_text(json.dumps({**job, "error": str(error)}))
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        # A second process on one accelerator would find it taken.
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with open(log, "wb") as output:
        code = subprocess.run(
            # -P: the script's folder is not a place to import from.
            [sys.executable, "-P", Path(__file__).with_name(script), job_path],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code == 0:
        return
    if error.exists():
        message = error.read_text()
    else:
        lines = log.read_text(errors="replace").splitlines()
        message = f"exit code {code}. " + " ".join(lines[-5:])
    kind = OSError if _is_os_error(message) else RuntimeError
    raise kind(message)


def _is_os_error(message: str) -> bool:
    name = message.split(":", 1)[0]
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, OSError)
