"""What a majority-kernel layer keeps for the time of a call."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class InCall:
    """What a layer keeps outside of Keras's tracking of attributes."""

    def __init__(self, shares_seed: bool) -> None:
        self.kernels: dict[str, Any] = {}
        self.state: Any = None
        self.warned: set[str] = set()
        self.shares_seed = shares_seed

    @contextmanager
    def drawing(self, state: Any) -> Iterator[None]:
        """Lets the calls inside use a seed state."""
        self.state = state
        try:
            yield
        finally:
            self.state = None
