"""Locks on files: they end with the process that holds them."""

import importlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_has_locks = importlib.util.find_spec("fcntl") is not None
fcntl: Any = importlib.import_module("fcntl") if _has_locks else None

_threads = threading.Lock()


def lock(path: Path, wait: bool) -> int | None:
    """Opens a file, and locks it until it is closed.

    Returns:
        The open file, or `None` where files cannot be locked: on Windows, on
        some network disks.

    Raises:
        BlockingIOError: If somebody else has locked it and `wait` is false.
    """
    if fcntl is None:
        return None
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException as error:
        os.close(file)
        if isinstance(error, OSError) and not isinstance(
            error, BlockingIOError
        ):
            return None
        raise
    return file


def is_at(file: int, path: Path) -> bool:
    """Whether an open file is still the one of that path."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Waits until no other thread or process is here with the same path.

    The path is that of a lock file, which is gone afterwards.
    """
    with _threads:
        file = lock(path, wait=True)
        while file is not None and not is_at(file, path):
            # The one that had it has removed it.
            os.close(file)
            file = lock(path, wait=True)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            if file is not None:
                os.close(file)
