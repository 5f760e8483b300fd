"""`keras-mk` on model files."""

import json
from pathlib import Path

import keras
import pytest

import keras_mk
import keras_mk_cli

GOLDEN = Path(__file__).parent / "golden"


def run(capsys, *arguments):
    code = keras_mk_cli.main([str(a) for a in arguments])
    output, error = capsys.readouterr()
    return code, output, error


@pytest.fixture
def plain(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(4, name="first"),
            keras.layers.Dense(2, name="last"),
        ]
    )
    model.compile("sgd", "mse")
    path = tmp_path / "plain.keras"
    model.save(path)
    return path


def test_inspect(capsys):
    """A file that was written on JAX."""
    code, output, _ = run(capsys, "inspect", GOLDEN / "convnet.keras")
    assert code == 0
    assert "MKSeparableConv2D" in output
    assert "3 of 4 layers converted" in output
    code, output, _ = run(capsys, "inspect", GOLDEN / "convnet.keras", "--json")
    report = json.loads(output)
    assert report["layers"][0]["frozen"] == 0
    model = keras.saving.load_model(GOLDEN / "convnet.keras", compile=False)
    assert report["parameters"]["training"] == model.count_params()
    assert report["layers"][0]["expansion"] == 3


def test_expand_and_collapse(plain, tmp_path, capsys):
    expanded, collapsed = tmp_path / "mk.keras", tmp_path / "back.keras"
    options = ["--expansion", 2, "--exclude", "last", "--seed", 1]
    code, output, _ = run(
        capsys, "expand", plain, expanded, *options, "--dry-run"
    )
    assert code == 0
    assert "1 of 2 layers converted" in output
    assert not expanded.exists()
    code, output, _ = run(capsys, "expand", plain, expanded, *options)
    assert (code, expanded.exists()) == (0, True)
    model = keras.saving.load_model(expanded)
    assert keras_mk.summary(model).parameters["training"] == 46 + 32
    code, output, _ = run(capsys, "collapse", expanded, collapsed, "--verify")
    assert code == 0
    assert "46 parameters" in output
    original = keras.saving.load_model(plain)
    for ours, theirs in zip(
        keras.saving.load_model(collapsed).get_weights(),
        original.get_weights(),
        strict=True,
    ):
        assert (ours == theirs).all()
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"plain.keras", "mk.keras", "back.keras"}


def test_export(tmp_path, capsys):
    target = tmp_path / "plain.keras"
    arguments = ["export", GOLDEN / "convnet.keras", target]
    arguments += ["--format", "keras", "--no-verify"]
    code, output, _ = run(capsys, *arguments)
    assert code == 0
    assert output.startswith(f"{target}: keras, ")
    assert output.count("\n") == 1
    code, _, error = run(capsys, *arguments)
    assert code == 1
    assert "overwrite=True" in error
    assert run(capsys, *arguments, "--overwrite")[0] == 0


@pytest.mark.slow
def test_export_of_a_saved_model(tmp_path, capsys):
    target = tmp_path / "saved_model"
    code, output, error = run(
        capsys, "export", GOLDEN / "convnet.keras", target
    )
    assert code == 0, error
    assert (target / "saved_model.pb").is_file()
    assert "largest difference" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere.keras"], "no file 'nowhere.keras'"),
        (["collapse", "PLAIN", "OUT"], "plain already"),
        (["export", "PLAIN", "OUT", "--format", "keras"], "plain already"),
        (["expand", "PLAIN", "PLAIN"], "overwrite=True"),
        (["expand", "PLAIN", "OUT", "--include", "nothing"], "nothing"),
        (["expand", "PLAIN", "out.h5"], "end in '.keras'"),
        (["expand", "PLAIN", "OUT", "--scale", "1"], "scale=1.0"),
        (["expand", "PLAIN", "OUT", "--scale", "1", "--dry-run"], "scale=1.0"),
        (["expand", "PLAIN", "OUT", "--module", "no_such"], "no_such"),
    ],
)
def test_errors_take_one_line(plain, tmp_path, capsys, arguments, message):
    places = {"PLAIN": plain, "OUT": tmp_path / "out.keras"}
    arguments = [str(places.get(a, a)) for a in arguments]
    before = plain.read_bytes()
    code, _, error = run(capsys, *arguments)
    assert code == 1
    assert error.startswith("keras-mk: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert plain.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plain.keras"]


@pytest.mark.parametrize("command", ["inspect", "expand", "collapse", "export"])
def test_each_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as stop:
        keras_mk_cli.main([command, "--help"])
    assert stop.value.code == 0
    assert "MODEL.keras" in capsys.readouterr().out


def test_lambda_layers_need_unsafe(tmp_path, capsys):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Lambda(lambda x: x + 1, output_shape=(4,)),
            keras.layers.Dense(2),
        ]
    )
    path = tmp_path / "model.keras"
    model.save(path)
    target = tmp_path / "out.keras"
    assert run(capsys, "expand", path, target)[0] == 1
    code, _, error = run(capsys, "expand", path, target, "--unsafe")
    assert (code, target.exists()) == (0, True), error
