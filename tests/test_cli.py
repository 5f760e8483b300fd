"""The `keras-mk` command."""

import subprocess
import sys

import keras
import pytest

import keras_mk_cli


def test_help_imports_no_backend():
    code = (
        "import sys, keras_mk_cli\n"
        "try:\n"
        "    keras_mk_cli.main(['--help'])\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 0\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "demo" in result.stdout
    assert "bench" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["demo", "--epochs", "0"],
        ["bench", "mlp", "--jit"],
        ["bench", "mlp", "--expansion", "2,0"],
    ],
)
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit) as stop:
        keras_mk_cli.main(arguments)
    assert stop.value.code == 2


def test_demo(tmp_path, capsys):
    folder = tmp_path / "out"
    arguments = ["demo", "--epochs", "1", "--seeds", "2"]
    code = keras_mk_cli.main([*arguments, "--output-dir", str(folder)])
    output = capsys.readouterr().out
    assert code == 0, output
    assert "majority, seed 2 of 2" in output
    assert "51,274" in output
    assert (folder / "curves.png").stat().st_size > 1000
    model = keras.saving.load_model(folder / "model.keras")
    assert model.count_params() == 17_226
    assert {type(layer) for layer in model.layers} == {keras.layers.Dense}


def test_error_on_one_line(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    code = keras_mk_cli.main(["demo", "--output-dir", str(file)])
    error = capsys.readouterr().err
    assert code == 1
    assert error.startswith("keras-mk: error: ")
    assert error.count("\n") == 1
    with pytest.raises(FileExistsError):
        keras_mk_cli.main(["--debug", "demo", "--output-dir", str(file)])


def test_backend_that_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr(
        keras_mk_cli.importlib.util, "find_spec", lambda name: None
    )
    assert keras_mk_cli.main(["demo", "--backend", "jax"]) == 1
    assert "keras-mk[jax]" in capsys.readouterr().err
