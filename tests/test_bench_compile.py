"""`keras-mk bench compile`: every layer, for devices that are not here."""

import json

import pytest

import keras_mk_cli
from keras_mk import layers
from keras_mk.bench import cases
from keras_mk.bench import compile as compiling
from keras_mk.bench import steps
from tests.backends import BACKEND

needs_jax = pytest.mark.skipif(
    BACKEND != "jax", reason="only JAX compiles for a device that is not there"
)


def setting(name, batch=2):
    (workload,) = cases.find(name)
    return steps.Setting(
        workload, batch, 3, "momentum", "float32", "auto", "step"
    )


def require(target):
    reason = compiling.why_not(target)
    if reason is not None:
        pytest.skip(reason)
    compiling.prepare([target])


def test_every_layer_is_a_case():
    assert {f"MK{name}" for name in cases.LAYERS} == {
        name for name in vars(layers) if name.startswith("MK")
    }


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize("name", cases.LAYERS)
def test_compiles_for_tpu(name):
    require("tpu-v5e")
    plain, mk = compiling.measure(setting(name), ["plain", "mk"], "tpu-v5e")
    assert mk["variant"] == "mk"
    assert mk["flops"] > 0
    assert mk["cycles"] > 0
    # Three copies and their momentum instead of one.
    assert mk["arguments_mib"] > plain["arguments_mib"]


@needs_jax
@pytest.mark.slow
def test_lowers_for_cuda():
    plain, mk = compiling.measure(setting("Conv2D"), ["plain", "mk"], "cuda")
    assert mk["lowered_bytes"] > plain["lowered_bytes"] > 0


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Dense", "Conv2D"])
def test_memory_of_a_step(name):
    plain, floor, mk = compiling.measure(
        setting(name, batch=64), ["plain", "floor", "mk"], "cpu"
    )
    kernel = {"Dense": 1024 * 1024, "Conv2D": 9 * 256 * 256}[name] * 4 / 2**20
    # Two more copies, each with its momentum.
    grown = mk["arguments_mib"] - plain["arguments_mib"]
    assert grown == pytest.approx(4 * kernel, rel=0.01)
    # Nothing of the size of p is kept beside what the floor keeps.
    assert mk["temporary_mib"] - floor["temporary_mib"] < 0.5 * kernel


@needs_jax
@pytest.mark.slow
def test_command(capsys, tmp_path):
    arguments = ["bench", "compile", "--target", "cpu", "--models", "a1"]
    options = ["--batch", "2", "--output-dir", str(tmp_path)]
    assert keras_mk_cli.main([*arguments, *options]) == 0
    report = json.loads((tmp_path / "bench_compile_jax_cpu.json").read_text())
    assert [row["variant"] for row in report["rows"]] == [
        *["plain", "floor", "mk"] * 2
    ]
    assert "temporary" in capsys.readouterr().out


@needs_jax
def test_without_the_compiler(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "_has_libtpu", lambda: False)
    arguments = ["bench", "compile", "--output-dir", str(tmp_path)]
    assert keras_mk_cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert "Skipped tpu-v5e" in output
    assert "keras-mk[jax,tpu]" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(BACKEND == "jax", reason="for the other backends")
def test_other_backends_are_refused(capsys, tmp_path):
    arguments = ["bench", "compile", "--output-dir", str(tmp_path)]
    assert keras_mk_cli.main(arguments) == 1
    assert "needs the JAX backend" in capsys.readouterr().err
