"""Which rule makes one kernel of several copies.

A layer in training mixes its copies at random. For the time of a call another
rule can take its place: that is all that the other training algorithms of the
paper change.
"""

import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keras_mk import mixing

# From a layer, the name of a kernel, its copies, and the seed state that was
# drawn for it (`None` outside of training, and in a frozen layer): the kernel
# that the layer uses, or `None` for the average of a layer at rest.
Rule = Callable[[Any, str, list[Any], Any], Any]


def random_mixture(layer: Any, name: str, copies: list[Any], state: Any) -> Any:
    """Majority kernels: a random mixture in training."""
    return None if state is None else mixing.sampled_mixture(copies, state)


def uniform_mixture(
    layer: Any, name: str, copies: list[Any], state: Any
) -> Any:
    """The average of the copies, which then train alike."""
    return None if state is None else mixing.mean(copies)


class _Current(threading.local):
    def __init__(self) -> None:
        self.rule: Rule = random_mixture


_current = _Current()


@contextmanager
def mixed_by(rule: Rule) -> Iterator[None]:
    """Lets the majority-kernel layers called inside use a rule.

    Frozen ones and those that are not in training are asked too: each rule
    says itself what it does then.
    """
    before, _current.rule = _current.rule, rule
    try:
        yield
    finally:
        _current.rule = before


def current_rule() -> Rule:
    return _current.rule
