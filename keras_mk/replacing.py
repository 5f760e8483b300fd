"""Files and folders moved to where they belong, whatever happens meanwhile.

They come from a folder of `keras_mk.staging`, which holds what is new in
`files` and, while it is being replaced, what was there before in `replaced`:
whoever finds the folder of a killed process can put it back.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FILES = "files"
REPLACED = "replaced"

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> bool:
    """Gives each the name of the other, in one step.

    Returns:
        Whether the system and the file system can do that.
    """
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and not rename(
        _AT_FDCWD,
        os.fsencode(one),
        _AT_FDCWD,
        os.fsencode(other),
        _RENAME_EXCHANGE,
    )


def put_new(new: Path, path: Path) -> None:
    """Puts a file or a folder where there is nothing, or an empty folder.

    Raises:
        FileExistsError: If there is something, also since a moment ago.
    """
    try:
        if new.is_dir():
            with suppress(OSError):
                path.rmdir()
            os.rename(new, path)
        else:
            _put_new_file(new, path)
    except OSError as error:
        if os.path.lexists(path):
            raise FileExistsError(
                f"There is something at '{path}' that was not there before. "
                "It is not replaced."
            ) from error
        raise


def _put_new_file(new: Path, path: Path) -> None:
    try:
        # Other than a rename, it replaces nothing.
        os.link(new, path)
    except OSError:
        # It exists, or the file system has no links.
        if os.path.lexists(path):
            raise
        os.rename(new, path)


def replace_in_turn(moves: Sequence[tuple[Path, Path]]) -> None:
    """Replaces what cannot be replaced in one step.

    Args:
        moves: What is new, in the folder `files` of a staging folder, and
            where it belongs. The first is what makes the others usable: it
            goes first and comes last, so that until then there is nothing
            rather than half of each.
    """
    folder = moves[0][0].parent.parent
    replaced = folder / REPLACED
    replaced.mkdir()
    try:
        for _, path in moves:
            if os.path.lexists(path):
                os.rename(path, replaced / path.name)
        for new, path in reversed(moves):
            put_new(new, path)
    finally:
        put_back(folder, moves[0][1])


def put_back(folder: Path, target: Path) -> None:
    """Puts back what was replaced, if the new one is not there as a whole."""
    replaced, files = folder / REPLACED, [*(folder / FILES).iterdir()]
    if not any(_is_same(new, target) for new in files):
        for new in files:
            companion = target.with_suffix(new.suffix)
            if _is_same(new, companion):
                companion.unlink()
    if not os.path.lexists(target):
        # The target itself last, as above.
        for old in sorted(
            replaced.iterdir(), key=lambda old: old.name == target.name
        ):
            os.replace(old, target.with_name(old.name))
    # From here on it is litter, and may be deleted in any order.
    replaced.rename(folder / FILES / REPLACED)


def _is_same(one: Path, other: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samefile(one, other)
    return False
