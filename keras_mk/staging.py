"""A place to write files beside their target, until they are complete."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A folder beside the target to work in; it is gone afterwards.

    What a killed process left there is removed as well.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_litter(target)
    folder = target.parent / f"{_prefix(target)}{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(target: Path) -> str:
    return f".{target.name}.writing-"


def _remove_litter(target: Path) -> None:
    prefix = _prefix(target)
    for path in target.parent.glob(f"{_escape(prefix)}*"):
        owner = path.name.removeprefix(prefix)
        if not (owner.isdigit() and _is_alive(int(owner))):
            shutil.rmtree(path, ignore_errors=True)


def _escape(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _is_alive(process: int) -> bool:
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
