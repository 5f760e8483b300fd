"""Where an export goes, and what it may replace."""

import os
from pathlib import Path

from keras_mk.export.formats import FORMATS
from keras_mk.export.formats import Format
from keras_mk.local_path import follow
from keras_mk.replacing import exchange
from keras_mk.replacing import put_new
from keras_mk.replacing import replace_in_turn
from keras_mk.staging import clear
from keras_mk.staging import placing


def check_target(path: Path, kind: Format, overwrite: bool) -> Path:
    """Raises if an artefact of that kind must not be written to `path`.

    Returns:
        Where to write: where `path` leads, if it is a symbolic link.
    """
    _check_suffix(path, kind)
    target = follow(path)
    for suffix in kind.companions:
        _check_companion(path.with_suffix(suffix), target.with_suffix(suffix))
    clear(target)
    _check_free(target, kind, overwrite)
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
    return target


def _check_suffix(path: Path, kind: Format) -> None:
    if kind.suffix and path.suffix != kind.suffix:
        raise ValueError(
            f"`path` must end in '{kind.suffix}' for this format. Received: "
            f"path='{path}'"
        )
    for name, other in FORMATS.items():
        if not kind.suffix and path.suffix.lower() == other.suffix != "":
            raise ValueError(
                "`path` must be a folder for this format, and not end in "
                f"'{other.suffix}', which is how files of the format "
                f"'{name}' end. Choose that format, or another path. "
                f"Received: path='{path}'"
            )


def _check_companion(found: Path, written: Path) -> None:
    """Raises if who opens the artefact would find another companion."""
    real = os.path.join(os.path.realpath(written.parent), written.name)
    if os.path.realpath(found) != real:
        raise ValueError(
            f"'{found}' must lead to '{written}', as both files are read "
            "together. Give the path to which the symbolic links lead, or "
            "remove them first."
        )


def _check_free(target: Path, kind: Format, overwrite: bool) -> None:
    """Raises if there is something that must not be replaced."""
    companions = [target.with_suffix(suffix) for suffix in kind.companions]
    taken = [path for path in companions if os.path.lexists(path)]
    if os.path.lexists(target) and not _is_empty_folder(target):
        taken.insert(0, target)
    if taken and not overwrite:
        raise FileExistsError(
            f"There is something at '{taken[0]}' already. Pass "
            "`overwrite=True` to replace it."
        )
    for path in taken:
        if kind.marker and not (path / kind.marker).is_file():
            raise FileExistsError(
                f"'{path}' is not an artefact of this format (it has no "
                f"'{kind.marker}'), so it is not replaced. Choose another "
                "path, or remove it first."
            )
        if not kind.marker and not path.is_file():
            raise FileExistsError(
                f"'{path}' is not a file, so it is not replaced. Choose "
                "another path, or remove it first."
            )
    if target.is_dir() and (kind.suffix or os.path.ismount(target)):
        raise FileExistsError(
            f"'{target}' is a folder that cannot be replaced. Choose a path "
            "below it."
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def move_into_place(
    written: Path, target: Path, kind: Format, overwrite: bool
) -> None:
    """Puts what was written, and its companions, where it belongs.

    It is there as a whole, or what was there before still is. Two files
    cannot be replaced in one step: for a moment there is nothing that could
    be used, and if it ends there, `staging` puts the old ones back.
    """
    moves = [(written, target)]
    for suffix in kind.companions:
        moves.append((written.with_suffix(suffix), target.with_suffix(suffix)))
    with placing(target):
        # Once more: it may have appeared meanwhile.
        _check_free(target, kind, overwrite)
        if kind.companions:
            replace_in_turn(moves)
        elif kind.suffix and overwrite:
            os.replace(written, target)
        elif not target.is_dir() or _is_empty_folder(target):
            put_new(written, target)
        elif not exchange(written, target):
            replace_in_turn(moves)
