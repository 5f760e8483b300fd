"""Paths on this machine's file system, which is where this package writes."""

import os
import re
from pathlib import Path

# `pathlib` makes one slash of two. One letter is a drive of Windows.
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")
# What Keras and TensorFlow take for elsewhere, unless it is mounted here.
_ELSEWHERE = ("/cns", "/cfs", "/gcs", "/hdfs", "/placer", "/readahead")


def check_local(path: str | os.PathLike[str], name: str = "path") -> None:
    """Raises if a path leads to another machine, as `gs://` and `hf://` do."""
    text = os.fspath(path)
    elsewhere = _SCHEME.match(text) or any(
        text.startswith(f"{root}/") and not os.path.isdir(root)
        for root in _ELSEWHERE
    )
    if elsewhere:
        raise ValueError(
            f"`{name}` must be a path on this machine's file system: what is "
            "written is checked, and moved into place when it is complete. "
            "Use a local path, and copy the result to where it belongs. "
            f"Received: {name}='{text}'"
        )


def follow(path: Path) -> Path:
    """Where a symbolic link leads, which is what writing to it writes."""
    if not path.is_symlink():
        return path
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"'{path}' is a symbolic link that leads to itself. Choose another "
            "path, or remove it first."
        ) from error
