"""Places to write in, and what puts files where they belong."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from keras_mk import file_lock
from keras_mk import replacing
from keras_mk import staging as staging_module
from keras_mk.export import place
from keras_mk.export.formats import FORMATS
from keras_mk.local_path import check_local
from keras_mk.replacing import put_new
from keras_mk.staging import staging
from tests import killed_at_each_step
from tests.backends import BACKEND

needs_locks = pytest.mark.skipif(
    file_lock.fcntl is None, reason="files cannot be locked here"
)


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def export(folder, format, overwrite, content):
    killed_at_each_step.export(folder, format, overwrite, content)


@needs_locks
@pytest.mark.skipif(BACKEND != "jax", reason="once is enough: without Keras")
@pytest.mark.parametrize("case", killed_at_each_step.CASES)
def test_killed_at_each_step(case):
    """Old or new as a whole, or nothing; the next one mends it."""
    result = subprocess.run(
        [sys.executable, killed_at_each_step.__file__, case],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 15


@pytest.mark.parametrize("format", ["openvino", "tf_saved_model"])
def test_an_error_midway_puts_the_old_one_back(tmp_path, format, monkeypatch):
    export(tmp_path, format, False, "old")
    before = listing(tmp_path)

    def fail(new, path):
        if path.suffix != ".bin":
            raise OSError("no more")
        put_new(new, path)

    monkeypatch.setattr(replacing, "put_new", fail)
    monkeypatch.setattr(place, "exchange", lambda one, other: False)
    with pytest.raises(OSError, match="no more"):
        export(tmp_path, format, True, "new")
    assert killed_at_each_step.found(tmp_path, format) == "old"
    assert listing(tmp_path) == before


HOLDS = """
import sys
from pathlib import Path
from tests import killed_at_each_step
killed_at_each_step.without_keras()
from keras_mk.staging import staging
with staging(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    input()
"""


def _hold(path, *before):
    """A process that works in a staging folder until it is told to stop."""
    return subprocess.Popen(
        [*before, sys.executable, "-c", HOLDS, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )


@needs_locks
def test_a_living_process_keeps_its_folder_and_a_killed_one_does_not(tmp_path):
    path = tmp_path / "model"
    with _hold(path) as other:
        theirs = Path(other.stdout.readline().decode().strip())
        with staging(path) as ours:
            assert theirs.exists()
            assert ours.exists()
            assert ours != theirs
        other.kill()
    assert theirs.exists()
    with staging(path):
        assert not theirs.exists()
    assert listing(tmp_path) == []


@needs_locks
def test_a_process_of_another_pid_namespace_keeps_its_folder(tmp_path):
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    try:
        subprocess.run([*inside, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no process can be put into a namespace here")
    path = tmp_path / "model"
    with _hold(path, *inside) as other:
        theirs = Path(other.stdout.readline().decode().strip())
        with staging(path):
            assert theirs.exists()
        other.communicate(b"\n")
    assert listing(tmp_path) == []


def test_without_locks_only_old_folders_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(file_lock, "fcntl", None)
    path = tmp_path / "model"
    with staging(path) as young:
        with staging(path):
            assert young.exists()
        os.utime(young.parent, (0, 0))
        with staging(path):
            assert not young.exists()
    assert listing(tmp_path) == []


def test_other_files_with_such_a_name_are_left_alone(tmp_path):
    mine = [".model.writing-notes", ".model.writing-0123456789abcdef"]
    (tmp_path / mine[0]).mkdir()
    (tmp_path / mine[1]).write_text("mine")
    with staging(tmp_path / "model"):
        pass
    assert listing(tmp_path) == sorted(mine)


@needs_locks
def test_a_folder_taken_for_litter_before_its_lock_is_made_anew(
    tmp_path, monkeypatch
):
    lock, taken = file_lock.lock, []

    def slow(path, wait):
        if not taken:
            taken.append(path.parent)
            staging_module.clear(tmp_path / "model")
            assert not path.parent.exists()
        return lock(path, wait)

    monkeypatch.setattr(file_lock, "lock", slow)
    with staging(tmp_path / "model") as folder:
        assert folder.exists()
        assert folder.parent not in taken
    assert listing(tmp_path) == []


def in_two_threads(work):
    """What each call gave, or the error that it raised."""
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work, name) for name in ("one", "two")]
    return [f.exception() or f.result() for f in futures]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("format", ["openvino", "tf_saved_model", "keras"])
def test_two_threads_to_one_path(tmp_path, monkeypatch, format, overwrite):
    """They meet at each move, unless something keeps them apart."""
    barrier = threading.Barrier(2)

    def meet(function):
        def met(*args):
            with suppress(threading.BrokenBarrierError):
                barrier.wait(timeout=0.1)
            return function(*args)

        return met

    if overwrite:
        export(tmp_path, format, False, "old")
    for name in ("rename", "replace", "link"):
        monkeypatch.setattr(os, name, meet(getattr(os, name)))
    results = in_two_threads(
        lambda name: export(tmp_path, format, overwrite, name)
    )
    assert killed_at_each_step.found(tmp_path, format) in ("one", "two")
    assert not [n for n in listing(tmp_path) if n.startswith(".")]
    if overwrite:
        assert results == [None, None]
    else:
        assert sum(isinstance(r, FileExistsError) for r in results) == 1


@pytest.mark.parametrize("name", ["model.xml", "model.bin"])
def test_what_appears_meanwhile_is_not_replaced(tmp_path, monkeypatch, name):
    link = os.link

    def late(new, path):
        if Path(path).name == name:
            Path(path).write_text("mine")
        link(new, path)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(FileExistsError, match=f"{name}' that was not there"):
        export(tmp_path, "openvino", False, "new")
    assert listing(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("format", ["keras", "tf_saved_model"])
def test_a_target_that_appears_meanwhile_is_not_replaced(
    tmp_path, monkeypatch, format
):
    kind = FORMATS[format]
    target = tmp_path / f"model{kind.suffix}"
    check = place._check_free

    def late(*args):
        check(*args)
        if target.with_name("late").exists():
            target.write_text("mine")
        target.with_name("late").touch()

    monkeypatch.setattr(place, "_check_free", late)
    with pytest.raises(FileExistsError, match="was not there before"):
        export(tmp_path, format, False, "new")
    assert target.read_text() == "mine"


def test_the_companion_of_another_file_is_not_replaced(tmp_path):
    mine = tmp_path / "model.bin"
    mine.write_text("mine")
    with pytest.raises(FileExistsError, match=r"model\.bin.*overwrite=True"):
        export(tmp_path, "openvino", False, "new")
    assert mine.read_text() == "mine"
    mine.unlink()
    mine.mkdir()
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"model\.bin"):
            export(tmp_path, "openvino", overwrite, "new")
    assert listing(tmp_path) == ["model.bin"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("format", ["keras", "tf_saved_model"])
def test_a_symbolic_link_is_followed(tmp_path, format, overwrite):
    suffix = FORMATS[format].suffix
    away, link = tmp_path / "away", tmp_path / f"model{suffix}"
    away.mkdir()
    link.symlink_to(away / f"model{suffix}")
    if overwrite:
        export(away, format, False, "old")
    for content in ("new", "newer"):
        export(tmp_path, format, overwrite, content)
        assert link.is_symlink()
        assert killed_at_each_step.found(away, format) == content
        assert listing(tmp_path) == ["away", link.name]
        assert listing(away) == [link.name]
        overwrite = True


def test_links_of_a_pair_that_lead_apart(tmp_path):
    away = tmp_path / "away"
    away.mkdir()
    export(away, "openvino", False, "old")
    (tmp_path / "model.xml").symlink_to(away / "model.xml")
    with pytest.raises(ValueError, match="read together"):
        export(tmp_path, "openvino", True, "new")
    (tmp_path / "model.bin").symlink_to(away / "model.bin")
    export(tmp_path, "openvino", True, "new")
    assert killed_at_each_step.found(away, "openvino") == "new"
    assert (tmp_path / "model.bin").is_symlink()


def test_a_link_that_leads_to_itself(tmp_path):
    (tmp_path / "model.keras").symlink_to(tmp_path / "model.keras")
    with pytest.raises(OSError, match="leads to itself"):
        export(tmp_path, "keras", True, "new")


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_the_longest_names(tmp_path, format):
    suffix = FORMATS[format].suffix
    folder = tmp_path / "x"
    folder.mkdir()
    stem = "é" * ((255 - len(suffix)) // 2)
    with staging(folder / f"{stem}{suffix}") as stage:
        assert stage.exists()
        assert len(listing(folder)) == 1
    assert listing(folder) == []


@pytest.mark.parametrize(
    "path",
    [
        "gs://bucket/model.keras",
        "hf://me/model",
        "s3://bucket/model",
        "file:///tmp/model",
        Path("gs://bucket/model.keras"),
        "/gcs/bucket/model",
    ],
)
def test_paths_elsewhere(path):
    if os.path.isdir("/gcs"):
        pytest.skip("there is a folder /gcs here")
    with pytest.raises(ValueError, match=r"this machine's.*Received: path="):
        check_local(path)


@pytest.mark.parametrize(
    "path", ["model.keras", "C:/model", "/tmp/a:b/c", "a/b://c", "gcs/model"]
)
def test_paths_here(path):
    check_local(path)
