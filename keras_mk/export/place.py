"""Where an export goes, and what it may replace."""

import os
import shutil
from pathlib import Path

from keras_mk.export.formats import Format


def check_target(target: Path, kind: Format, overwrite: bool) -> None:
    """Raises if an artefact of that kind must not be written to `target`."""
    if kind.suffix and target.suffix != kind.suffix:
        raise ValueError(
            f"`path` must end in '{kind.suffix}' for this format. Received: "
            f"path='{target}'"
        )
    _restore(target)
    if target.exists() and not _is_empty_folder(target):
        if not overwrite:
            raise FileExistsError(
                f"There is something at '{target}' already. Pass "
                "`overwrite=True` to replace it."
            )
        if kind.marker and not (target / kind.marker).is_file():
            raise FileExistsError(
                f"'{target}' is not an artefact of this format (it has no "
                f"'{kind.marker}'), so it is not replaced. Choose another "
                "path, or remove it first."
            )
        if not kind.marker and not target.is_file():
            raise FileExistsError(
                f"'{target}' is not a file, so it is not replaced."
            )
    folder = next(p for p in target.absolute().parents if p.exists())
    if not folder.is_dir():
        raise NotADirectoryError(
            f"'{target}' cannot be written: '{folder}' is not a folder."
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            f"'{target}' cannot be written: no permission to write in "
            f"'{folder}'."
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def move_into_place(written: Path, target: Path, kind: Format) -> None:
    """Puts what was written, and its companions, where it belongs."""
    for suffix in kind.companions:
        os.replace(written.with_suffix(suffix), target.with_suffix(suffix))
    if not target.is_dir():
        os.replace(written, target)
        return
    # A folder cannot replace another in one step. If this stops between the
    # two, the next export finds the old one and puts it back.
    old = _old(target)
    shutil.rmtree(old, ignore_errors=True)
    os.replace(target, old)
    os.replace(written, target)
    shutil.rmtree(old)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}.replaced"


def _restore(target: Path) -> None:
    old = _old(target)
    if old.exists() and not target.exists():
        os.replace(old, target)
