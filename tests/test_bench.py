"""`keras-mk bench`: that it measures what it says, not how fast it is."""

import csv
import json

import keras
import numpy as np
import pytest

import keras_mk_cli
from keras_mk.bench import expand
from keras_mk.bench import growth
from keras_mk.bench import steps
from keras_mk.bench import timing
from keras_mk.bench import variants
from keras_mk.bench import workloads
from tests.backends import BACKEND
from tests.backends import to_numpy


def small_mlp():
    return workloads.mlp((5, 4), inputs=6)


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(workloads, "MLPS", {"A1": (4,), "A2": (4, 3)})


def bench(capsys, tmp_path, *arguments):
    code = keras_mk_cli.main(
        ["bench", *map(str, arguments), "--output-dir", str(tmp_path)]
    )
    output, error = capsys.readouterr()
    assert code == 0, error
    return output


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_mlp(capsys, tmp_path):
    output = bench(
        capsys,
        tmp_path,
        *["mlp", "--rounds", 2, "--steps", 2, "--batch", 4],
        *["--optimizer", "sgd", "--jit", "off"],
        *["--variants", "plain,floor,mk,log(uniform),gamma,dropout"],
    )
    name = f"bench_mlp_{BACKEND}_jit_false"
    report = json.loads((tmp_path / f"{name}.json").read_text())
    assert report["environment"]["backend"] == BACKEND
    rows = report["rows"]
    assert len(rows) == 2 * 6
    plain = rows[0]
    assert (plain["variant"], plain["to_plain_median"]) == ("plain", 1)
    assert rows[1]["variant"] == "floor"
    assert rows[1]["to_floor_median"] == 1
    with open(tmp_path / f"{name}.csv") as file:
        assert len(list(csv.DictReader(file))) == 12
    assert (tmp_path / f"{name}.png").stat().st_size > 1000
    assert "log(uniform)" in output


@pytest.mark.slow
def test_a_model_of_ones_own(capsys, tmp_path):
    model = keras.Sequential([keras.Input((2000,)), keras.layers.Dense(2000)])
    path = tmp_path / "mine.keras"
    model.save(path)
    arguments = "--rounds 1 --steps 1 --variants plain,mk"
    bench(capsys, tmp_path, path, *arguments.split(), "--memory")
    written = tmp_path / f"bench_mine_{BACKEND}_jit_auto.json"
    rows = json.loads(written.read_text())["rows"]
    assert [row["variant"] for row in rows] == ["plain", "mk"]
    # Two more copies of 15 MiB, each with two slots of Adam.
    assert rows[1]["peak_mib"] - rows[0]["peak_mib"] > 60


@pytest.mark.slow
def test_sampling_and_inference(capsys, tmp_path, monkeypatch):
    options = ["--rounds", 1, "--steps", 1]
    bench(capsys, tmp_path, "sampling", "--width", "3,4", *options)
    path = tmp_path / f"bench_sampling_{BACKEND}_jit_auto.json"
    rows = json.loads(path.read_text())["rows"]
    assert [row["variant"] for row in rows] == ["plain", "floor", "mk"] * 2
    monkeypatch.setattr(workloads, "MLPS", {"A1": (4,)})
    bench(capsys, tmp_path, "infer", "--models", "a1", "--batch", 2, *options)
    path = tmp_path / f"bench_infer_{BACKEND}_jit_auto.json"
    plain, collapsed, mk = json.loads(path.read_text())["rows"]
    assert plain["parameters"] == collapsed["parameters"]
    assert mk["parameters"] > 2 * plain["parameters"]


@pytest.mark.slow
def test_t5(capsys, tmp_path, monkeypatch):
    tiny = workloads.t5(
        length=4,
        num_layers=1,
        vocabulary_size=20,
        hidden_dim=8,
        key_value_dim=4,
        num_heads=2,
        intermediate_dim=8,
    )
    monkeypatch.setattr(workloads, "find", lambda name, width: [tiny])
    options = "--rounds 1 --steps 1 --batch 2 --optimizer adafactor"
    variants = "plain,floor,mk"
    bench(capsys, tmp_path, "t5", *options.split(), "--variants", variants)
    path = tmp_path / f"bench_t5_{BACKEND}_jit_auto.json"
    rows = json.loads(path.read_text())["rows"]
    assert [row["variant"] for row in rows] == variants.split(",")


@pytest.mark.slow
def test_growth(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(
        growth, "SWEEPS", {"expansion": (1, 2), "batch": (2, 4)}
    )
    monkeypatch.setattr(
        growth, "FIXED", {"expansion": 3, "batch": 4, "width": 128}
    )
    # So slow that moving memory shows, however long the step took.
    monkeypatch.setattr(growth, "measured_bandwidth", lambda size: 1e3)
    bench(capsys, tmp_path, "growth", "--rounds", 1, "--steps", 1)
    path = tmp_path / f"bench_growth_{BACKEND}_jit_auto.json"
    rows = json.loads(path.read_text())["rows"]
    mine = [row for row in rows if row["variant"] == "mk"]
    assert [(row["sweep"], row["expansion"], row["batch"]) for row in mine] == [
        *[("expansion", 1, 4), ("expansion", 2, 4)],
        *[("batch", 3, 2), ("batch", 3, 4)],
    ]
    assert mine[0]["predicted"] == 1
    assert mine[1]["predicted"] > 1
    assert path.with_suffix(".png").stat().st_size > 1000


def test_measured_bandwidth():
    # Between a floppy disk and any memory there is.
    assert 1e6 < growth.measured_bandwidth(2**16, rounds=1) < 1e14


def test_the_model_of_the_cost():
    # Reads 3 copies, writes 1 kernel; updates 2 copies more than plain.
    assert growth.words(expansion=3, slots=0) == 4 + 2 * 2
    assert growth.words(expansion=3, slots=2) == 4 + 2 * 6
    ratio = growth.predicted_ratio(
        3, 0, parameters=1000, plain_seconds=1.0, bandwidth=32_000.0
    )
    assert ratio == 2


@pytest.mark.slow
def test_expand(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(
        expand.MODELS,
        "resnet50",
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
    )
    options = ["--models", "resnet50", "--rounds", 1]
    bench(capsys, tmp_path, "expand", *options)
    path = tmp_path / f"bench_expand_{BACKEND}.json"
    result = json.loads(path.read_text())["results"][0]
    assert result["parameters"] == 8
    assert result["expand_to_build"]["median"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["nowhere.keras"],
        ["mlp", "--variants", "nonsense"],
        ["mlp", "--optimizer", "nonsense"],
        ["expand", "--models", "nonsense"],
        ["infer", "--models", "nonsense"],
        ["growth", "--optimizer", "nonsense"],
        ["compile", "--target", "nonsense"],
    ],
)
def test_wrong_arguments(capsys, tmp_path, arguments):
    code = keras_mk_cli.main(
        ["bench", *arguments, "--output-dir", str(tmp_path)]
    )
    error = capsys.readouterr().err
    assert code == 1
    assert arguments[-1] in error
    assert list(tmp_path.iterdir()) == []


def counters(model):
    return [
        int(to_numpy(layer.mixing_seed_generator.state)[1])
        for layer in model.layers
        if hasattr(layer, "mixing_seed_generator")
    ]


@pytest.mark.parametrize("name", variants.NAMES)
def test_variants(name):
    workload = small_mlp()
    models = variants.make(name, workload, expansion=2)
    assert len(models) == (2 if name == "ensemble" else 1)
    plain = workload.make()
    x, _ = workload.data(4)
    for model in models:
        copies = name in variants.CHOICES
        grown = model.count_params() - plain.count_params()
        assert (grown > 0) == copies
        first = to_numpy(model(x, training=True))
        second = to_numpy(model(x, training=True))
        if name in ("plain", "floor", "sam", "ensemble"):
            np.testing.assert_array_equal(first, second)
        if name in ("log(uniform)", "gamma", "mk"):
            assert all(count > 0 for count in counters(model))
        if name == "floor":
            assert counters(model) == [0, 0, 0]
        if name == "dropout":
            assert np.abs(first - second).max() > 0


def test_workloads_have_the_sizes_of_the_paper():
    sizes = [w.make().count_params() for w in workloads.find("mlp")]
    assert sizes == [308_310, 635_710, 1_330_510]
    assert [w.optimizers for w in workloads.find("mlp")] == [
        ("sgd", "adam")
    ] * 3


def test_settings_reach_the_models():
    setting = steps.Setting(
        small_mlp(), 4, 2, "momentum", "mixed_bfloat16", False, "arrays"
    )
    (model,) = steps.compiled_models(setting, "mk")
    assert model.optimizer.momentum == 0.9
    assert model.layers[0].compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"
    fed = steps._feed(setting)(3)
    assert len(fed["x"]) == 12
    assert fed["batch_size"] == 4


def test_interleaving_takes_turns():
    order = []
    clock = {
        name: lambda n, name=name: order.append((name, n)) for name in "ab"
    }
    seconds, first = timing.interleave(clock, rounds=2, steps=3, title="")
    assert order == [
        *[("a", 1), ("a", 1), ("b", 1), ("b", 1)],
        *[("a", 3), ("b", 3)] * 2,
    ]
    assert {name: len(times) for name, times in seconds.items()} == {
        "a": 2,
        "b": 2,
    }
    assert set(first) == {"a", "b"}


def test_ratio_is_of_rounds():
    ratio = timing.ratio([2.0, 30.0, 4.0], [1.0, 10.0, 4.0])
    assert ratio == {"median": 2.0, "low": 1.5, "high": 2.5}
