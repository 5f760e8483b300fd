"""Exports, each loaded in the runtime that it is meant for."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from keras import layers

import keras_mk
from keras_mk.export import child
from keras_mk.export import runtimes
from keras_mk.export import writers
from keras_mk.export.formats import FORMATS
from tests import conversion_cases
from tests.backends import BACKEND
from tests.backends import to_numpy


def mlp():
    return keras.Sequential(
        [
            keras.Input((8,), name="features"),
            layers.Dense(64, activation="gelu"),
            layers.Dense(3),
        ]
    )


def convnet():
    return keras.Sequential(
        [
            keras.Input((8, 8, 3), name="image"),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.SeparableConv2D(4, 3, strides=2),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )


def attention():
    """Named inputs and outputs, and a sequence of any length."""
    tokens = keras.Input((None, 8), name="tokens")
    mixed = layers.MultiHeadAttention(2, 4)(tokens, tokens)
    hidden = layers.LayerNormalization()(tokens + mixed)
    outputs = {"scores": layers.Dense(3)(hidden), "hidden": hidden}
    return keras.Model({"tokens": tokens}, outputs)


def t5():
    return conversion_cases.t5().model


T5_INPUTS = (
    "encoder_token_ids",
    "encoder_padding_mask",
    "decoder_token_ids",
    "decoder_padding_mask",
)


def expanded(plain):
    """With copies that differ, as after training."""
    return keras_mk.expand(plain, copies="perturb", seed=3)


@pytest.fixture
def model():
    return expanded(mlp())


def target(folder, format):
    return folder / f"model{FORMATS[format].suffix}"


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("make", [mlp, convnet, attention, t5])
@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format(make, format, tmp_path):
    plain = make()
    options = {}
    if make is t5 and format == "litert":
        # LiteRT has no operation for lengths that T5 computes with.
        spec = keras.InputSpec(shape=(None, 6), dtype="int32")
        options["input_signature"] = [dict.fromkeys(T5_INPUTS, spec)]
    path = target(tmp_path, format)
    report = keras_mk.export_collapsed(expanded(plain), path, format, **options)
    assert report.difference < 1e-5
    assert report.scale > 0.1
    assert report.parameters == plain.count_params()
    companions = [f"model{s}" for s in FORMATS[format].companions]
    assert listing(tmp_path) == sorted([path.name, *companions])
    assert report.bytes > 4 * report.parameters
    native = FORMATS[format].backend in (None, BACKEND)
    assert report.route == (
        "in process" if native else f"by a {FORMATS[format].backend} process"
    )
    assert str(path) in str(report)
    assert "\n" not in str(report)


TENSORFLOW_ALONE = """
import sys
for name in ("keras", "keras_mk", "keras_hub", "jax", "torch"):
    sys.modules[name] = None
import numpy as np
import tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
serve = loaded.signatures["serving_default"]
print(sum(int(np.prod(v.shape)) for v in serve.variables))
for batch, length in ((1, 4), (5, 9)):
    outputs = serve(tokens=tf.ones((batch, length, 8)))
    print({k: tuple(v.shape) for k, v in sorted(outputs.items())})
"""


@pytest.mark.slow
def test_saved_model_with_tensorflow_alone(tmp_path):
    plain = attention()
    path = tmp_path / "model"
    keras_mk.export_collapsed(expanded(plain), path, verify=False)
    result = subprocess.run(
        [sys.executable, "-c", TENSORFLOW_ALONE, path],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        str(plain.count_params()),
        "{'hidden': (1, 4, 8), 'scores': (1, 4, 3)}",
        "{'hidden': (5, 9, 8), 'scores': (5, 9, 3)}",
    ]
    contents = b"".join(p.read_bytes() for p in path.rglob("*") if p.is_file())
    assert b"keras_mk" not in contents
    assert b"majority" not in contents.lower()


@pytest.mark.slow
def test_saved_model_cli(tmp_path, model):
    path = tmp_path / "model"
    keras_mk.export_collapsed(model, path, verify=False)
    x = np.random.default_rng(0).normal(size=(2, 8)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    command = [
        os.path.join(os.path.dirname(sys.executable), "saved_model_cli"),
        *f"run --dir {path} --tag_set serve".split(),
        *["--signature_def", "serving_default", "--overwrite"],
        *f"--inputs features={tmp_path / 'x.npy'}".split(),
        *f"--outdir {tmp_path}".split(),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose(
        np.load(tmp_path / "output_0.npy"), to_numpy(model(x)), atol=1e-5
    )


@pytest.mark.slow
def test_subclassed_model_with_layers_of_its_own(tmp_path):
    case = conversion_cases.subclassed()
    model = expanded(case.model)
    path = tmp_path / "model"
    report = keras_mk.export_collapsed(model, path, verify=case.inputs)
    assert report.difference < 1e-5


def test_class_that_another_process_cannot_import(tmp_path):
    class Local(layers.Layer):
        def call(self, x):
            return x

    model = expanded(
        keras.Sequential([keras.Input((4,)), Local(), layers.Dense(2)])
    )
    with pytest.raises(ValueError, match="top level of a module"):
        keras_mk.export_collapsed(model, tmp_path / "m.keras", "keras")
    assert listing(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "quantize", "size"),
    [
        ("litert", "int8", 0.5),
        ("litert", "float16", 0.7),
        ("tf_saved_model", "int8", 0.6),
        ("onnx", "int8", 0.6),
        ("keras", "int8", 0.6),
    ],
)
def test_quantized(format, quantize, size, tmp_path):
    plain = keras.Sequential(
        [keras.Input((256,)), layers.Dense(256), layers.Dense(64)]
    )
    model = expanded(plain)
    report = keras_mk.export_collapsed(
        model, target(tmp_path, format), format, quantize=quantize
    )
    assert 0 < report.difference < 0.1 * report.scale
    assert report.bytes < size * 4 * plain.count_params()
    assert quantize in str(report)


def test_quantization_that_a_format_lacks(tmp_path, model):
    with pytest.raises(ValueError, match=r"'litert': \('int8', 'float16'\)"):
        keras_mk.export_collapsed(
            model, tmp_path / "m.xml", "openvino", quantize="int8"
        )
    with pytest.raises(ValueError, match="Received: quantize='int4'"):
        keras_mk.export_collapsed(
            model, tmp_path / "m.keras", "keras", quantize="int4"
        )


def write_something_else(plain, path, signature, quantize):
    plain.set_weights([w + 0.5 for w in plain.get_weights()])
    plain.save(path)


@pytest.mark.slow
def test_verify_finds_a_difference(tmp_path, model, monkeypatch):
    path = tmp_path / "model.keras"
    keras_mk.export_collapsed(model, path, "keras", verify=False)
    before = path.read_bytes()
    monkeypatch.setitem(writers.WRITERS, "keras", write_something_else)
    with pytest.raises(ValueError, match=r"differs .* by \d\.\d+e[+-]0\d at"):
        keras_mk.export_collapsed(model, path, "keras", overwrite=True)
    assert path.read_bytes() == before
    other = tmp_path / "other.keras"
    with pytest.raises(ValueError, match="Nothing was written"):
        keras_mk.export_collapsed(model, other, "keras")
    report = keras_mk.export_collapsed(model, other, "keras", tolerance=100)
    assert report.difference > 0.1
    assert listing(tmp_path) == ["model.keras", "other.keras"]


def write_nan(plain, path, signature, quantize):
    weights = plain.get_weights()
    weights[-1][0] = np.nan
    plain.set_weights(weights)
    plain.save(path)


@pytest.mark.slow
def test_verify_finds_nan(tmp_path, model, monkeypatch):
    monkeypatch.setitem(writers.WRITERS, "keras", write_nan)
    with pytest.raises(ValueError, match="by nan at most"):
        keras_mk.export_collapsed(model, tmp_path / "model.keras", "keras")
    assert listing(tmp_path) == []


@keras.saving.register_keras_serializable(package="keras_mk_tests")
def masked(x):
    """Logits of -inf, as a mask of actions or of a vocabulary gives."""
    return keras.ops.where(x > 0, x, -np.inf)


@pytest.fixture
def check_in_this_process(monkeypatch):
    def run(script, job, folder, backend):
        (folder / "job.json").write_text(
            json.dumps({**job, "error": str(folder / "error")})
        )
        assert runtimes.main(str(folder / "job.json")) == 0

    monkeypatch.setattr(child, "run", run)


@pytest.mark.usefixtures("check_in_this_process")
def test_equal_infinities_are_no_difference(tmp_path, monkeypatch):
    model = expanded(
        keras.Sequential(
            [
                keras.Input((8,), name="features"),
                layers.Dense(3),
                layers.Activation(masked),
            ]
        )
    )
    x = np.random.default_rng(0).normal(size=(5, 8)).astype("float32")
    assert np.isneginf(to_numpy(model(x))).any()
    path = tmp_path / "m.keras"
    report = keras_mk.export_collapsed(model, path, "keras", verify=x)
    assert report.difference < 1e-5
    assert 0 < report.scale < 100

    def other_mask(plain, path, signature, quantize):
        bias = plain.weights[-1]
        bias.assign(bias - 100.0)
        plain.save(path)

    monkeypatch.setitem(writers.WRITERS, "keras", other_mask)
    with pytest.raises(ValueError, match="by inf at most"):
        keras_mk.export_collapsed(
            model, path, "keras", verify=x, overwrite=True
        )


@pytest.mark.usefixtures("check_in_this_process")
def test_a_model_that_gives_nan_cannot_be_compared(tmp_path, model):
    model.layers[-1].bias.assign([np.nan] * 3)
    with pytest.raises(ValueError, match="gives NaN on the inputs"):
        keras_mk.export_collapsed(model, tmp_path / "m.keras", "keras")
    assert listing(tmp_path) == []


def test_verify_with_the_wrong_inputs(tmp_path, model):
    for batch in ({"features": np.ones((2, 8))}, [np.ones((2, 8))] * 2):
        with pytest.raises(ValueError, match="`verify` must"):
            keras_mk.export_collapsed(
                model, tmp_path / "m.keras", "keras", verify=batch
            )


@pytest.mark.parametrize("signature", ["features", [3], [keras.InputSpec()]])
def test_wrong_input_signature(tmp_path, model, signature):
    with pytest.raises(ValueError, match=r"`input_signature`.*Received: "):
        keras_mk.export_collapsed(
            model, tmp_path / "m.keras", "keras", input_signature=signature
        )
    assert listing(tmp_path) == []


def test_plain_and_unbuilt_models(tmp_path):
    path = tmp_path / "model.keras"
    with pytest.raises(ValueError, match="plain already"):
        keras_mk.export_collapsed(mlp(), path, "keras")
    unbuilt = keras.Sequential([keras_mk.layers.MKDense(3)])
    with pytest.raises(ValueError, match="is not built"):
        keras_mk.export_collapsed(unbuilt, path, "keras")
    with pytest.raises(ValueError, match="Received: str"):
        keras_mk.export_collapsed("model", path, "keras")
    assert listing(tmp_path) == []


@pytest.mark.parametrize("format", ["tflite", "", None, "SavedModel"])
def test_unknown_format(tmp_path, model, format):
    with pytest.raises(ValueError, match=f"Received: format={format!r}"):
        keras_mk.export_collapsed(model, tmp_path / "model", format)
    assert listing(tmp_path) == []


def test_wrong_suffix(tmp_path, model):
    for format, kind in FORMATS.items():
        if kind.suffix:
            with pytest.raises(ValueError, match=rf"end in '\{kind.suffix}'"):
                keras_mk.export_collapsed(model, tmp_path / "model", format)
    assert listing(tmp_path) == []


def test_suffix_of_another_format(tmp_path, model):
    for format, kind in FORMATS.items():
        if kind.suffix:
            with pytest.raises(ValueError, match=f"the format '{format}'"):
                keras_mk.export_collapsed(model, tmp_path / f"m{kind.suffix}")
    assert listing(tmp_path) == []


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_path_on_another_machine(tmp_path, model, monkeypatch, format):
    monkeypatch.chdir(tmp_path)
    path = f"gs://bucket/model{FORMATS[format].suffix}"
    with pytest.raises(ValueError, match=f"this machine's.*path='{path}'"):
        keras_mk.export_collapsed(model, path, format)
    assert listing(tmp_path) == []


def test_report_has_the_path_that_was_given(tmp_path, model):
    path = tmp_path / "latest.keras"
    path.symlink_to(tmp_path / "first")
    report = keras_mk.export_collapsed(model, path, "keras", verify=False)
    assert report.path == path
    assert keras.saving.load_model(path).count_params() == report.parameters
    assert listing(tmp_path) == ["first", "latest.keras"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_exports_at_once(tmp_path, monkeypatch, overwrite):
    """Both have written theirs, and neither has moved it."""
    barrier = threading.Barrier(2)

    def write(plain, path, signature, quantize):
        barrier.wait(60)
        plain.save(path)
        barrier.wait(60)

    monkeypatch.setitem(writers.WRITERS, "keras", write)
    models = [expanded(mlp()), expanded(mlp())]
    path = tmp_path / "model.keras"
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(
                keras_mk.export_collapsed,
                each,
                path,
                "keras",
                verify=False,
                overwrite=overwrite,
            )
            for each in models
        ]
    raised = [type(f.exception()) for f in futures if f.exception()]
    assert raised == ([] if overwrite else [FileExistsError])
    assert listing(tmp_path) == ["model.keras"]
    found = keras.saving.load_model(path).get_weights()[0]
    averages = [keras_mk.collapse(m).get_weights()[0] for m in models]
    assert any(np.array_equal(found, average) for average in averages)


def test_missing_package_names_the_extra(tmp_path, model, monkeypatch):
    from keras_mk.export import formats

    monkeypatch.setattr(formats.importlib.util, "find_spec", lambda name: None)
    for format, extra in (
        ("tf_saved_model", "tensorflow"),
        ("torch", "torch"),
    ):
        with pytest.raises(ImportError, match=rf"keras-mk\[{extra}\]"):
            keras_mk.export_collapsed(model, target(tmp_path, format), format)
    monkeypatch.setattr(
        formats.importlib.util,
        "find_spec",
        lambda name: None if name == "tf2onnx" else name,
    )
    with pytest.raises(ImportError, match=r"tf2onnx.*keras-mk\[export\]"):
        keras_mk.export_collapsed(model, tmp_path / "model.onnx", "onnx")
    assert listing(tmp_path) == []


def test_taken_path(tmp_path, model):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "precious").write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        keras_mk.export_collapsed(model, folder)
    with pytest.raises(FileExistsError, match="not an artefact"):
        keras_mk.export_collapsed(model, folder, overwrite=True)
    path = tmp_path / "model.keras"
    path.mkdir()
    (path / "precious").write_text("mine")
    with pytest.raises(FileExistsError, match="not a file"):
        keras_mk.export_collapsed(model, path, "keras", overwrite=True)
    assert (folder / "precious").read_text() == "mine"
    assert listing(tmp_path) == ["folder", "model.keras"]


def test_path_that_cannot_be_written(tmp_path, model):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        keras_mk.export_collapsed(
            model, tmp_path / "file" / "deep" / "model.keras", "keras"
        )
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="no permission"):
        keras_mk.export_collapsed(model, closed / "model.keras", "keras")


def test_full_disk(tmp_path, model, monkeypatch):
    def write(plain, path, signature, quantize):
        with open(path, "wb") as file:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setitem(writers.WRITERS, "keras", write)
    with pytest.raises(OSError, match="No space left"):
        keras_mk.export_collapsed(model, tmp_path / "model.keras", "keras")
    assert listing(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "tensorflow", reason="it writes in the process")
def test_full_disk_in_the_other_process(tmp_path, model, monkeypatch):
    """A file-size limit stands for the disk; children inherit it."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "model"
    original = child.run

    def run(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, limits[1]))
        try:
            original(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(child, "run", run)
    with pytest.raises((OSError, RuntimeError)):
        keras_mk.export_collapsed(model, path, verify=False)
    assert listing(tmp_path) == []


def test_what_the_other_process_raised_is_raised_here(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    monkeypatch.setattr(child, "__file__", str(tmp_path / "child.py"))
    script.write_text(
        "import json, pathlib, sys\n"
        "job = json.loads(pathlib.Path(sys.argv[1]).read_text())\n"
        "if job['message']:\n"
        "    pathlib.Path(job['error']).write_text(job['message'])\n"
        "sys.exit('the end')\n"
    )
    for message, kind, found in (
        ("FileNotFoundError: no file", OSError, "no file"),
        ("ValueError: no value", RuntimeError, "no value"),
        ("", RuntimeError, "exit code 1. the end"),
    ):
        with pytest.raises(kind, match=found):
            child.run("script.py", {"message": message}, tmp_path, BACKEND)


KILLED = """
import sys, time
import keras_mk
from keras_mk.export import writers
from tests.test_export import expanded, mlp

def write(plain, path, signature, quantize):
    open(path, "wb").write(b"half a model")
    print("writing", flush=True)
    time.sleep(600)

writers.WRITERS["keras"] = write
keras_mk.export_collapsed(
    expanded(mlp()), sys.argv[1], "keras", overwrite=True
)
"""


@pytest.mark.slow
def test_killed_export_leaves_the_old_one(tmp_path, model):
    path = tmp_path / "model.keras"
    keras_mk.export_collapsed(model, path, "keras", verify=False)
    before = path.read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    with process:
        assert b"writing" in process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert path.read_bytes() == before
    assert len(listing(tmp_path)) == 2
    keras_mk.export_collapsed(
        model, path, "keras", verify=False, overwrite=True
    )
    assert listing(tmp_path) == ["model.keras"]


def test_the_model_is_not_changed(tmp_path, model):
    model.compile("adam", "mse")
    model.fit(np.ones((4, 8)), np.ones((4, 3)), verbose=0)
    weights = [to_numpy(v) for v in model.variables]
    keras_mk.export_collapsed(
        model, tmp_path / "m.keras", "keras", verify=False
    )
    for ours, theirs in zip(model.variables, weights, strict=True):
        np.testing.assert_array_equal(to_numpy(ours), theirs)
    model.fit(np.ones((4, 8)), np.ones((4, 3)), verbose=0)
