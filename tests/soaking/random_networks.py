"""Random networks, as cases to train."""

import random

from tests.backends import BACKEND
from tests.soaking import build
from tests.soaking import kept
from tests.soaking import specs
from tests.soaking.lifecycle import Case


def spec_of(seed):
    """The description of a random network; seeds may be any integers."""
    choices = specs.FromRandom(random.Random(seed))
    spec = specs.network(choices)
    spec["optimizer"] = choices.pick(["adam", "sgd", "adamw", "lion"])
    spec["eager"] = choices.whole(0, 3) > 0
    if choices.whole(0, 3) == 0:
        spec["before"] = []
    if choices.whole(0, 2) > 0:
        # Without Dropout, so that resuming can be compared.
        _still(spec["parts"])
    return spec


def changed_spec_of(spec):
    """The same network, for what `kept` looks at."""
    return {key: spec[key] for key in specs.KEYS}


def _still(parts):
    for part in parts:
        part.pop("rate", None)
        if part["part"] in ("dropout", "lstm", "bidirectional"):
            part["part"] = "dense"
        _still(part.get("parts", []))


def case_of(spec):
    eager = BACKEND == "tensorflow" and spec["eager"]
    options = (("run_eagerly", True),) if eager else (("jit_compile", False),)
    if BACKEND == "jax":
        options = ()
    return Case(
        make=lambda: kept.make(spec),
        inputs=build.inputs(),
        expansion=spec["expansion"],
        optimizer=spec["optimizer"],
        options=options,
    )
