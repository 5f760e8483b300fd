"""Files that appear at their place whole, or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A folder beside the target to work in; it is gone afterwards.

    What a killed process left there is removed as well.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_litter(target)
    folder = target.parent / f".{target.name}.exporting-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    os.replace(target, old)
    os.replace(written, target)
    shutil.rmtree(old)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}.exporting-old"


def _restore(target: Path) -> None:
    old = _old(target)
    if old.exists() and not target.exists():
        os.replace(old, target)


def _remove_litter(target: Path) -> None:
    prefix = f".{target.name}.exporting-"
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
