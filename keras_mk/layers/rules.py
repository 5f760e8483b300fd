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
# drawn for it (`None` outside of training): the kernel that the layer uses.
Rule = Callable[[Any, str, list[Any], Any], Any]


class _Current(threading.local):
    rule: Rule | None = None


_current = _Current()


@contextmanager
def mixed_by(rule: Rule) -> Iterator[None]:
    """Lets trainable majority-kernel layers called inside use a rule."""
    before, _current.rule = _current.rule, rule
    try:
        yield
    finally:
        _current.rule = before


def current_rule() -> Rule | None:
    return _current.rule


def random_mixture(layer: Any, name: str, copies: list[Any], state: Any) -> Any:
    """Majority kernels: a random mixture."""
    return mixing.sampled_mixture(copies, state)


def uniform_mixture(
    layer: Any, name: str, copies: list[Any], state: Any
) -> Any:
    """The average of the copies, which then train alike."""
    return mixing.mean(copies)
