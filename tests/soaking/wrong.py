"""What was found wrong, and whether an error is a refusal of this package."""

import re
import traceback
from dataclasses import dataclass
from pathlib import Path

import keras_mk
from tests.soaking.state import field_of

_PACKAGE = str(Path(keras_mk.__file__).parent)


@dataclass(frozen=True)
class Wrong:
    """One thing that was not kept.

    Attributes:
        operation: What was done to the model.
        what: The state that is lost, without the place; equal for all cases
            of one kind.
        where: Its place in the model.
        text: Before and after, or an error.
    """

    operation: str
    what: str
    where: str
    text: str

    @property
    def kind(self):
        return f"{self.operation}: {self.what}"

    def __str__(self):
        return f"{self.kind} at '{self.where}': {self.text}"


class Refused(Exception):
    """The package has refused a model with an error of its own."""


def is_ours(error):
    """Whether it is one of the errors that the package raises itself."""
    if not isinstance(error, (ValueError, TypeError, RuntimeError)):
        return False
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(_PACKAGE)


def of_error(operation, error):
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    place = f"{Path(last.filename).name}:{last.name}"
    text = f"{type(error).__name__}: {error}"
    words = re.sub(r"[0-9_]+|'[^']*'", "*", text.splitlines()[0])[:60]
    return Wrong(operation, f"raises {words}", place, text)


def of_differences(operation, found, states):
    """From `{key: (before, after)}`, with the states that tell the classes."""
    wrongs = []
    for key, (before, after) in found.items():
        path = key.split(":", 1)[0]
        name = next(
            (s[f"{path}:class"] for s in states if f"{path}:class" in s), ""
        )
        field = _general(field_of(key))
        before, after = _short(before), _short(after)
        if isinstance(before, bool) or isinstance(after, bool):
            field += f" {before} -> {after}"
        short = name.rpartition(".")[2]
        if field == "name" and _stem(before) == _stem(after):
            field = "automatic name"
        where = f"{path} ({short})"
        wrongs.append(Wrong(operation, field, where, f"{before} -> {after}"))
    return wrongs


def _general(field):
    return re.sub(r"_?[0-9]+|#[0-9]+", "", field)


def _stem(name):
    return re.sub(r"_[0-9]+$", "", str(name))


def _short(value):
    if isinstance(value, bool):
        return value
    text = " ".join(str(value).split())
    return text if len(text) < 160 else f"{text[:160]}..."
