"""Model files for the commands, and what to do if one cannot be read."""

import importlib
import re
import sys
import zipfile
from pathlib import Path

import keras

CONTENTS = ("config.json", "metadata.json")


def load(path: str, modules: list[str], safe: bool = True) -> keras.Model:
    """Loads a `.keras` file, after importing the modules of its classes.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is damaged, or has classes that nobody knows.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file '{path}'.")
    if Path(path).suffix == ".keras":
        _check_whole(path)
    if "" not in sys.path:
        # A console script does not look where it is started.
        sys.path.insert(0, "")
    for module in modules:
        importlib.import_module(module)
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=safe)
    except Exception as error:
        found = re.search(r"Could not locate (\w+ '[^']*')", str(error))
        if found is None:
            raise
        raise ValueError(
            f"'{path}' has the {found[1]}, which nothing that was imported "
            "registers. Name the module that does with `--module NAME`; it "
            "must decorate it with "
            "`@keras.saving.register_keras_serializable()`. Received: "
            f"modules={modules}"
        ) from error


def _check_whole(path: str) -> None:
    """Raises if a `.keras` file is not what was written."""
    problem = None
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
            missing = set(CONTENTS) - set(archive.namelist())
        if bad is not None:
            problem = f"'{bad}' in it is damaged"
        elif missing:
            problem = f"it has no {sorted(missing)}"
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        problem = str(error)
    if problem is not None:
        raise ValueError(
            f"'{path}' is there, but it is not a whole `.keras` file: "
            f"{problem}. Write it again, with `model.save('model.keras')`."
        )
