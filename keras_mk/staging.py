"""A place to write files beside their target, until they are complete."""

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from pathlib import Path

from keras_mk import file_lock
from keras_mk.replacing import FILES
from keras_mk.replacing import REPLACED
from keras_mk.replacing import put_back

LOCK = "lock"
LONGEST_NAME = 100
# Where no lock tells whether the owner lives.
SECONDS_UNTIL_ABANDONED = 24 * 60 * 60


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A folder beside the target to work in; it is gone afterwards.

    Nobody else works in it. What a killed process left there is removed, and
    what it had taken away is put back.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    clear(target)
    folder, file = _make_folder(target)
    try:
        yield folder / FILES
    finally:
        _delete(folder)
        if file is not None:
            os.close(file)


def beside(target: Path, ending: str) -> Path:
    """A hidden name next to a target, that no file system finds too long."""
    name = target.name
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return target.with_name(f".{name}.{ending}")


def _placing(target: Path) -> Path:
    return beside(target, "placing")


@contextmanager
def placing(target: Path) -> Iterator[None]:
    """Waits until nobody else puts anything at the target."""
    with file_lock.one_at_a_time(_placing(target)):
        yield


def clear(target: Path) -> None:
    """Mends what killed processes left beside a target."""
    for folder in _folders(target):
        # Of somebody who lives, or of another user.
        with suppress(OSError):
            _clear_folder(folder, target)
    if _placing(target).exists():
        with suppress(OSError), placing(target):
            # Which removes it.
            pass


def _folders(target: Path) -> list[Path]:
    pattern = re.escape(beside(target, "writing-").name) + "[0-9a-f]{16}"
    try:
        with os.scandir(target.parent) as entries:
            return [
                target.with_name(entry.name)
                for entry in entries
                if re.fullmatch(pattern, entry.name)
                and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


def _make_folder(target: Path) -> tuple[Path, int | None]:
    """A new folder, and the file whose lock says that its owner lives."""
    while True:
        folder = beside(target, f"writing-{secrets.token_hex(8)}")
        folder.mkdir()
        # Until it is locked, somebody may take it for litter.
        with suppress(FileNotFoundError, BlockingIOError):
            file = file_lock.lock(folder / LOCK, wait=False)
            if file is None or file_lock.is_at(file, folder / LOCK):
                (folder / FILES).mkdir()
                return folder, file
            os.close(file)


def _clear_folder(folder: Path, target: Path) -> None:
    if not (folder / LOCK).exists():
        with suppress(OSError):
            folder.rmdir()
            return
        file = None
    else:
        file = file_lock.lock(folder / LOCK, wait=False)
    try:
        if file is None and not _is_old(folder):
            return
        if (folder / REPLACED).exists():
            with placing(target):
                put_back(folder, target)
        _delete(folder)
    finally:
        if file is not None:
            os.close(file)


def _is_old(folder: Path) -> bool:
    return time.time() - folder.stat().st_mtime > SECONDS_UNTIL_ABANDONED


def _delete(folder: Path) -> None:
    # The lock goes last: without it nobody could tell whose folder it is.
    shutil.rmtree(folder / FILES, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
