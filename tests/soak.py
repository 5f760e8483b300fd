"""Random networks and all of KerasHub, from `expand` to `collapse`.

Each goes through `expand`, two steps of `fit`, saving, loading, resuming and
`collapse`; random networks also through changes after `expand`, deepcopy and
export. What fails is compared with the same network without this package.

Usage: python tests/soak.py [--networks 300] [--seed 0] [--hub] [--log FILE]

`KERAS_BACKEND` chooses the backend. Run again with the same log, it goes on
where it was stopped. One case again: `--only net-17` or `--only BertBackbone`.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

# Small networks: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Where the TPU compiler is installed, JAX would look for a TPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiled quickly rather than well: each network runs a few steps.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=1",
)
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.backends import BACKEND
from tests.soaking import hub_models
from tests.soaking import kept
from tests.soaking import lifecycle
from tests.soaking import random_networks
from tests.soaking import wrong as wrong_of
from tests.soaking.wrong import Refused

HELD, REFUSED = "held", "refused with our error"
CONTROL, WRONG = "Keras's own plain control fails too", "WRONG"
OUTCOMES = (HELD, REFUSED, CONTROL, WRONG)


def run_network(name):
    """A random network, by its number."""
    spec = random_networks.spec_of(int(name.removeprefix("net-")))
    with TemporaryDirectory() as folder:
        wrongs, theirs = lifecycle.run(random_networks.case_of(spec), folder)
        spec = random_networks.changed_spec_of(spec)
        wrongs += kept.check(spec, folder, export=True)
    return wrongs, theirs


def run_hub(name):
    """A backbone or task of KerasHub."""
    try:
        case = hub_models.case_of(name)
        kept.outputs(case.make(), case.inputs)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return [], [f"cannot be made or called: {text[:200]}"]
    with TemporaryDirectory() as folder:
        return lifecycle.run(case, folder)


def record_of(name):
    """What is written in the log of one case."""
    start = time.time()
    run = run_network if name.startswith("net-") else run_hub
    try:
        wrongs, theirs = run(name)
        outcome = WRONG if wrongs else CONTROL if theirs else HELD
    except Refused as error:
        wrongs, theirs, outcome = [], [str(error)], REFUSED
    except kept.PlainFails as error:
        wrongs, theirs, outcome = [], [str(error)], CONTROL
    except Exception as error:
        found = wrong_of.of_error("not looked for", error)
        wrongs, theirs, outcome = [found], [], WRONG
    first = {}
    for wrong in wrongs:
        first.setdefault(wrong.kind, str(wrong))
    return {
        "case": name,
        "backend": BACKEND,
        "outcome": outcome,
        "seconds": round(time.time() - start, 1),
        "wrong": first,
        "control": sorted({getattr(w, "kind", w) for w in theirs}),
    }


def soak(names, log, out=print):
    """Runs the cases that the log does not hold; returns all its records."""
    records = {}
    if log.exists():
        for line in log.read_text().splitlines():
            record = json.loads(line)
            if record["backend"] == BACKEND:
                records[record["case"]] = record
    with log.open("a") as file:
        for i, name in enumerate(names):
            if name in records:
                continue
            record = records[name] = record_of(name)
            file.write(json.dumps(record) + "\n")
            file.flush()
            out(
                f"{i + 1}/{len(names)} {name}: {record['outcome']} "
                f"({record['seconds']} s)"
            )
            for text in record["wrong"].values():
                out(f"    {text}")
    return [records[name] for name in names]


def summary(records):
    """Counts by outcome, and the kinds of what is wrong."""
    outcomes = Counter(record["outcome"] for record in records)
    lines = [f"{BACKEND}: {len(records)} cases"]
    lines += [f"  {outcomes[outcome]:4} {outcome}" for outcome in OUTCOMES]
    cases = {}
    for record in records:
        for kind in record["wrong"]:
            cases.setdefault(kind, []).append(record["case"])
    for kind, found in sorted(cases.items(), key=lambda item: -len(item[1])):
        lines.append(f"  {len(found):4} {kind}, first in {found[0]}")
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hub", action="store_true")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--only", nargs="+")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    numbers = range(options.seed, options.seed + options.networks)
    names = [f"net-{number}" for number in numbers]
    if options.hub:
        names += hub_models.names()
    if options.only:
        names = options.only
        for name in names:
            print(json.dumps(record_of(name), indent=2))
        return 0
    log = options.log or Path(f"soak-{BACKEND}.jsonl")
    records = soak(names, log, lambda text: print(text, flush=True))
    print(summary(records))
    return 1 if any(r["outcome"] == WRONG for r in records) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
