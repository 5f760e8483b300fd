"""Runs the suite once per backend, and closes with the total.

Usage: python tests/run_all.py BACKEND... [PYTEST_ARGUMENT...]
"""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
BACKENDS = ("tensorflow", "jax", "torch")


def run(backend, arguments):
    """Runs pytest on one backend; returns its exit code and its counts."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "--numprocesses=2"]
        command += ["--durations=15", "--durations-min=10"]
        command += [f"--junit-xml={report}", *arguments]
        environment = {**os.environ, "KERAS_BACKEND": backend}
        # Where the TPU compiler is installed, JAX would look for a TPU.
        environment.setdefault("JAX_PLATFORMS", "cpu")
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        counts = {}
        if report.exists():
            suite = ET.parse(report).getroot().find("testsuite")
            counts = {
                key: int(suite.get(key))
                for key in ("tests", "failures", "errors", "skipped")
            }
        return code, counts


def main(arguments):
    backends = [a for a in arguments if a in BACKENDS]
    rest = [a for a in arguments if a not in BACKENDS]
    passed = failed = skipped = 0
    bad = []
    for backend in backends:
        print(f"\n=== backend: {backend} ===", flush=True)
        start = time.time()
        code, counts = run(backend, rest)
        if code != 0:
            bad.append(backend)
        wrong = counts.get("failures", 0) + counts.get("errors", 0)
        failed += wrong
        skipped += counts.get("skipped", 0)
        passed += counts.get("tests", 0) - wrong - counts.get("skipped", 0)
        print(f"=== {backend}: {time.time() - start:.0f} s ===", flush=True)
    print(f"\nbackends: {', '.join(backends)}")
    if bad:
        print(f"failed on: {', '.join(bad)}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if bad or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
