"""Puts files where others are, and is killed at every step of it.

    python tests/killed_at_each_step.py CASE

A step is what Python tells its audit hooks: each rename, link, removal and
new folder. Keras is not imported, so that a death takes milliseconds.
"""

import os
import shutil
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from pathlib import Path

STEPS = {
    "ctypes.dlsym",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
}
# Format, what is there before, whether to overwrite, what the system lacks.
CASES = {
    "pair": ("openvino", ["model.bin", "model.xml"], True, ""),
    "pair without links": (
        "openvino",
        ["model.bin", "model.xml"],
        True,
        "link",
    ),
    "new pair": ("openvino", [], False, ""),
    "stray weights": ("openvino", ["model.bin"], True, ""),
    "folder": ("tf_saved_model", ["model/saved_model.pb"], True, ""),
    "folder without exchange": (
        "tf_saved_model",
        ["model/saved_model.pb"],
        True,
        "exchange",
    ),
    "new folder": ("tf_saved_model", [], False, ""),
    "file": ("keras", ["model.keras"], True, ""),
    "new file": ("keras", [], False, ""),
    "new file without links": ("keras", [], False, "link"),
}
KILLED, REFUSED = 9, 3


def without_keras() -> None:
    """Makes the modules of the package importable without the package."""
    root = Path(__file__).parents[1] / "keras_mk"
    for name in ("keras_mk", "keras_mk.export"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.parent.joinpath(*name.split(".")))]
        sys.modules[name] = package


def export(folder: Path, format: str, overwrite: bool, content: str) -> None:
    """As `export_collapsed` does, with this content."""
    from keras_mk.export import place
    from keras_mk.export.formats import FORMATS
    from keras_mk.staging import staging

    kind = FORMATS[format]
    path = folder / f"model{kind.suffix}"
    target = place.check_target(path, kind, overwrite)
    with staging(target) as stage:
        written = stage / f"artifact{kind.suffix}"
        if kind.marker:
            written.mkdir()
            (written / kind.marker).write_text(content)
        else:
            for suffix in (kind.suffix, *kind.companions):
                written.with_suffix(suffix).write_text(content)
        place.move_into_place(written, target, kind, overwrite)


def in_a_child(work: Callable[[], None], step: int) -> int:
    """The exit code of a process that is killed at that step of the work."""
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, KILLED, REFUSED), code
        return code
    left = [step]

    def hook(event: str, arguments: object) -> None:
        if event in STEPS:
            left[0] -= 1
            if left[0] < 0:
                os._exit(KILLED)

    sys.addaudithook(hook)
    try:
        work()
    except FileExistsError:
        os._exit(REFUSED)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def found(folder: Path, format: str) -> str:
    """What is at the path: nothing, its content, or that it is half."""
    from keras_mk.export.formats import FORMATS

    kind = FORMATS[format]
    main = folder / f"model{kind.suffix}"
    if not main.exists():
        return ""
    if kind.marker:
        return (main / kind.marker).read_text()
    paths = [main, *(main.with_suffix(s) for s in kind.companions)]
    contents = {p.read_text() if p.exists() else "nothing" for p in paths}
    return " and ".join(sorted(contents))


def die(case: str, first: int, second: int | None) -> tuple[int, int]:
    """An export that dies, the next that dies as well, and one that lives.

    Returns:
        The exit codes of the first two.
    """
    format, before, overwrite, _ = CASES[case]
    folder = Path(tempfile.mkdtemp())
    for name in before:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("old")
    code = in_a_child(lambda: export(folder, format, overwrite, "new"), first)
    at_once = found(folder, format)
    assert at_once in ("", "old", "new"), at_once
    assert code == KILLED or at_once == "new", at_once
    # What can be replaced in one step is never absent.
    assert at_once or case not in ("file", "folder")
    other = 0
    if second is not None:
        next_one = lambda: export(folder, format, False, "next")
        other = in_a_child(next_one, second)
        assert found(folder, format) in ("", "old", "new", "next")
    in_a_child(lambda: export(folder, format, False, "last"), 10**6)
    after = found(folder, format)
    if at_once:
        assert after == at_once, after
    elif before == ["model.bin"]:
        # It was no model, and is none now.
        assert after == "", after
        assert (folder / "model.bin").read_text() == "old"
    elif before:
        assert after == "old", after
    else:
        assert after in ("next", "last"), after
    hidden = [p.name for p in folder.iterdir() if p.name.startswith(".")]
    # Unless it was refused, when it had cleared already.
    assert not hidden, hidden
    shutil.rmtree(folder)
    return code, other


def _can_exchange() -> bool:
    from keras_mk.replacing import exchange

    with tempfile.TemporaryDirectory() as folder:
        one, other = Path(folder) / "one", Path(folder) / "other"
        one.mkdir()
        other.mkdir()
        return exchange(one, other)


def run(case: str) -> int:
    """Dies at each step, and at each step of the next. How often, in all."""
    from keras_mk.export import place

    def no_links(*paths: object) -> None:
        raise PermissionError("this file system has no links")

    lacking = CASES[case][-1]
    if case == "folder" and not _can_exchange():
        case = "folder without exchange"
    if lacking == "link":
        os.link = no_links
    if lacking == "exchange":
        place.exchange = lambda one, other: False
    first = deaths = 0
    while die(case, first, None)[0] == KILLED:
        second = 0
        while die(case, first, second)[1] == KILLED:
            second += 1
        deaths += second + 1
        first += 1
    return deaths


if __name__ == "__main__":
    without_keras()
    print(run(sys.argv[1]))
