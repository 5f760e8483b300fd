"""Random descriptions of networks, and of what is changed in them.

A description is made of dicts, lists and numbers only, so that it can be
written in a log and built again, twice over where a control is needed.
"""

KEYS = ("kind", "parts", "expansion", "dtype", "before", "after")
PARTS = (
    "dense",
    "einsum",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "depthwise1d",
    "depthwise2d",
    "separable1d",
    "batchnorm",
    "layernorm",
    "dropout",
    "attention",
    "grouped_attention",
    "time_distributed",
    "bidirectional",
    "lstm",
    "spectral",
    "hidden",
    "attending",
    "unsaid",
    "branches",
    "shared",
    "functional",
    "sequential",
)
KINDS = (
    "functional",
    "functional_with_step",
    "sequential",
    "sequential_with_step",
    "net",
    "net_with_step",
    "backbone",
)
CHANGES = (
    "layer.trainable",
    "layer.trainable",
    "variable.trainable",
    "variable.trainable",
    "activation",
    "rate",
    "epsilon",
    "regularizer_attribute",
    "constraint_attribute",
    "constraint_of_variable",
    "name",
    "dtype_policy",
    "threshold",
    "labels",
    "forward",
    "assign",
)
ONLY_BEFORE = ("regularizer_of_variable", "lora")
ONLY_AFTER = ("add",)


class FromRandom:
    """Choices by a `random.Random`."""

    def __init__(self, random):
        self._random = random

    def pick(self, options):
        return self._random.choice(list(options))

    def whole(self, low, high):
        return self._random.randint(low, high)


class FromHypothesis:
    """Choices by hypothesis, which can then make a failing case smaller."""

    def __init__(self, draw):
        from hypothesis import strategies

        self._draw, self._strategies = draw, strategies

    def pick(self, options):
        return self._draw(self._strategies.sampled_from(list(options)))

    def whole(self, low, high):
        return self._draw(self._strategies.integers(low, high))


def network(choose, changes=True, kinds=KINDS):
    """A network, with what is changed in it before and after `expand`."""
    spec = {
        "kind": choose.pick(kinds),
        "parts": [_part(choose, 2) for _ in range(choose.whole(1, 3))],
        "expansion": choose.whole(1, 3) if choose.whole(0, 5) == 0 else 2,
        "dtype": choose.pick([None, None, None, "mixed_bfloat16"]),
        "before": [],
        "after": [],
    }
    if changes:
        some = [*CHANGES, *ONLY_BEFORE]
        spec["before"] = _changes(choose, some)
        spec["after"] = _changes(choose, [*CHANGES, *ONLY_AFTER])
    return spec


def _changes(choose, kinds):
    return [
        {
            "change": choose.pick(kinds),
            "at": choose.whole(0, 40),
            "value": choose.whole(0, 2),
        }
        for _ in range(choose.whole(0, 3))
    ]


def _part(choose, depth):
    kinds = PARTS if depth else PARTS[:-4]
    part = {"part": choose.pick(kinds)}
    if part["part"] == "branches":
        part["parts"] = [_part(choose, depth - 1) for _ in range(2)]
    elif part["part"] in ("shared", "functional", "sequential"):
        count = 1 if part["part"] == "shared" else choose.whole(1, 2)
        part["parts"] = [_part(choose, depth - 1) for _ in range(count)]
    else:
        options = {
            "named": choose.pick([False, False, True]),
            "dtype": choose.pick([None, None, None, None, "mixed_bfloat16"]),
            "trainable": choose.pick([True, True, True, True, False]),
            "activation": choose.pick([None, "tanh", "gelu"]),
            "regularizer": choose.pick([None, None, "l2", "l1"]),
            "constraint": choose.pick([None, None, "max_norm", "unit_norm"]),
            "bias": choose.pick([True, True, False]),
            "rate": choose.pick([0.0, 0.5]),
            "seed": choose.pick([None, 7]),
        }
        usual = {"trainable": True, "bias": True, "rate": 0.0, "named": False}
        for key, value in options.items():
            # Short descriptions: only what is not usual.
            if value != usual.get(key):
                part[key] = value
    return part
