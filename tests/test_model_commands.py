"""`keras-mk` on model files."""

import json
import zipfile
from pathlib import Path

import keras
import pytest

import keras_mk
import keras_mk_cli
from keras_mk import model_commands
from keras_mk.export.formats import FORMATS

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


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_the_suffix_says_the_format(tmp_path, capsys, monkeypatch, format):
    asked = []

    def export(model, path, format, **options):
        asked.append((path, format))

    monkeypatch.setattr(model_commands, "export_collapsed", export)
    path = str(tmp_path / f"out{FORMATS[format].suffix}")
    for options in ([], ["--format", format]):
        arguments = ["export", GOLDEN / "convnet.keras", path, *options]
        assert run(capsys, *arguments)[0] == 0
    assert asked == [(path, format)] * 2


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
        (["inspect", "gs://b/m.keras"], "model='gs://b/m.keras'"),
        (["expand", "PLAIN", "gs://b/m.keras"], "output='gs://b/m.keras'"),
        (["collapse", "PLAIN", "hf://b/m.keras"], "output='hf://b/m.keras'"),
        (["export", "PLAIN", "s3://b/m"], "output='s3://b/m'"),
        (["demo", "--output-dir", "gs://b"], "output_dir='gs://b'"),
        (["bench", "mlp", "--output-dir", "gs://b"], "output_dir='gs://b'"),
        (["export", "PLAIN", "out.h5"], "cannot be told from"),
        (["export", "MK", "out.onnx", "--format", "litert"], "'.tflite'"),
        (["export", "MK", "o.pt2", "--format", "tf_saved_model"], "'torch'"),
    ],
)
def test_errors_take_one_line(
    plain, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    places = {
        "PLAIN": plain,
        "MK": GOLDEN / "convnet.keras",
        "OUT": tmp_path / "out.keras",
    }
    arguments = [str(places.get(a, a)) for a in arguments]
    before = plain.read_bytes()
    code, _, error = run(capsys, *arguments)
    assert code == 1
    assert error.startswith("keras-mk: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert plain.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plain.keras"]


class Unknown(keras.layers.Layer):
    def call(self, x):
        return x


def unknown(x):
    return x


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Unknown, "class 'Unknown'"),
        (lambda: keras.layers.Activation(unknown), "function 'unknown'"),
    ],
)
def test_missing_classes_are_named(tmp_path, capsys, make, name):
    path = tmp_path / "model.keras"
    model = keras.Sequential([keras.Input((4,)), make(), keras.layers.Dense(2)])
    model.save(path)
    code, _, error = run(capsys, "inspect", path)
    assert code == 1
    assert f"{name}, which nothing" in error
    assert "--module NAME" in error
    assert len(error) < 1000


def test_damaged_files(plain, tmp_path, capsys):
    whole = plain.read_bytes()
    middle = len(whole) // 2
    flipped = bytes([whole[middle] ^ 255])
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("notes.txt", "hello")
    for content in (
        b"",
        b"no archive",
        whole[:-100],
        whole[:middle] + flipped + whole[middle + 1 :],
        other.read_bytes(),
    ):
        plain.write_bytes(content)
        code, _, error = run(capsys, "inspect", plain)
        assert code == 1
        assert f"'{plain}' is there, but it is not a whole" in error
        assert "not found" not in error


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
