"""The ResNet50 example: its recipes, its data, and going on after a stop."""

import csv
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests import example_script
from tests.backends import BACKEND
from tests.backends import to_numpy

tf = pytest.importorskip(
    "tensorflow", reason="the example feeds every backend by tf.data"
)


@pytest.fixture(scope="module")
def example():
    module = example_script.load("resnet50_imagenet")
    return module


def tiny_network(args, classes):
    """A network that trains in a second."""
    return keras.Sequential(
        [
            keras.Input((args.size, args.size, 3)),
            keras.layers.Conv2D(4, 3, strides=2, name="conv"),
            # On JAX the statistics are those of the whole batch as it is.
            keras.layers.BatchNormalization(
                synchronized=BACKEND == "tensorflow"
            ),
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(classes),
        ]
    )


@pytest.fixture
def tiny(example, monkeypatch):
    monkeypatch.setattr(example, "network", tiny_network)
    return example


def options(folder, *more):
    few = ["--size", "16", "--train-images", "64", "--test-images", "40"]
    quiet = ["--verbose", "0", "--output-dir", str(folder)]
    return ["train", "--local", *few, *quiet, *more]


def log(folder):
    with open(folder / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_the_papers_recipes(example):
    recipes = example.RECIPES
    assert (recipes["baseline"].epochs, recipes["baseline"].drops) == (
        90,
        (30, 60),
    )
    for name in ("baseline-long", "majority", "adv-majority", "distilled"):
        assert recipes[name].epochs == 330
        assert recipes[name].drops == (90, 180, 240)
    args = example.parse(["train", "--recipe", "baseline"])
    assert (args.batch, args.size, args.rate) == (256, 224, 0.1)
    assert args.weight_decay == 1e-4
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    example.compile_model(args, recipes["baseline"], model, steps=10)
    rate = model.optimizer._learning_rate
    rates = [float(rate(step)) for step in (0, 300, 301, 601)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.01, 0.001], rtol=1e-5)
    # Fewer epochs: the rate drops in proportion.
    args.epochs = 9
    example.compile_model(args, recipes["baseline"], model, steps=10)
    assert float(model.optimizer._learning_rate(31)) == pytest.approx(0.01)
    args = example.parse(["train", "--epochs", "9", "--drops", "7,8.5"])
    example.compile_model(args, recipes["majority"], model, steps=10)
    rate = model.optimizer._learning_rate
    rates = [float(rate(step)) for step in (70, 71, 86)]
    np.testing.assert_allclose(rates, [0.1, 0.01, 0.001], rtol=1e-5)


@pytest.mark.parametrize("recipe", ["majority", "adv-majority", "distilled"])
def test_a_resumed_run_equals_the_uninterrupted(tiny, recipe, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = ["--recipe", recipe, "--epochs", "3", "--expansion", "2"]
    more.append("--no-export")
    tiny.main(options(whole, *more))
    tiny.main(options(parts, *more, "--until", "1"))
    folder = parts / "ensemble" / "member-1" if recipe == "distilled" else parts
    assert len(log(folder)) == 1
    assert not (parts / "result.json").exists()
    # A row of an epoch that has no checkpoint is dropped.
    with open(folder / "log.csv", "a") as file:
        file.write("1" + ",0" * (len(log(folder)[0]) - 1) + ",0\n")
    tiny.main(options(parts, *more))
    for a, b in zip(log(whole), log(parts), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert float(a[key]) == pytest.approx(float(b[key]), rel=1e-5)
    models = [
        keras.saving.load_model(folder / "plain.keras", compile=False)
        for folder in (whole, parts)
    ]
    for a, b in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# Devices are made before anything else, so in a process of its own.
ON_TWO_DEVICES = """
import sys
import keras
import tensorflow as tf
if keras.config.backend() == "tensorflow":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
from tests import example_script
from tests import test_resnet50_imagenet
example = example_script.load("resnet50_imagenet")
example.network = test_resnet50_imagenet.tiny_network
example.main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.skipif(BACKEND == "torch", reason="torch trains on one device")
def test_two_devices(tiny, tmp_path):
    more = ["--epochs", "2", "--no-export", "--rate", "0.1"]
    tiny.main(options(tmp_path / "one", *more))
    devices = "--xla_force_host_platform_device_count=2"
    arguments = options(tmp_path / "two", *more)
    for stop in (["--until", "1"], []):
        child = subprocess.run(
            [sys.executable, "-c", ON_TWO_DEVICES, *arguments, *stop],
            capture_output=True,
            text=True,
            env={**os.environ, "XLA_FLAGS": devices},
        )
        assert child.returncode == 0, child.stderr
        assert "On 2 devices" in child.stdout
    assert "epochs 1 to 2" in child.stdout
    one, two = log(tmp_path / "one"), log(tmp_path / "two")
    for a, b in zip(one, two, strict=True):
        assert float(a["val_loss"]) == pytest.approx(
            float(b["val_loss"]), rel=1e-4
        )
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-4)


def test_ensemble_and_table(tiny, tmp_path, capsys):
    results = tmp_path / "results.csv"
    for recipe, seed in (("ensemble", 0), ("baseline", 0), ("baseline", 1)):
        folder = tmp_path / f"{recipe}-{seed}"
        more = ["--epochs", "1", "--results", str(results), "--recipe", recipe]
        tiny.main(options(folder, *more, "--seed", str(seed)))
    with open(results, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["recipe"] for row in rows] == [
        "ensemble",
        "baseline",
        "baseline",
    ]
    found = json.loads((tmp_path / "baseline-0" / "result.json").read_text())
    assert 0 <= found["test"] == found["collapsed"] <= 1
    assert (tmp_path / "ensemble-0" / "member-2" / "plain.keras").exists()
    capsys.readouterr()
    tiny.main(["table", str(results)])
    output = capsys.readouterr().out
    mean = 50 * sum(float(row["test"]) for row in rows[1:])
    assert f"| 2 | {mean:.2f} ±" in output
    chart = tmp_path / "curves.png"
    folders = [str(tmp_path / f"baseline-{seed}") for seed in (0, 1)]
    tiny.main(["plot", *folders, "--output", str(chart)])
    assert chart.stat().st_size > 1000


def test_every_epoch_has_its_own_images(example):
    args = example.parse(options("unused"))
    images = example.image_data.load_images(args)
    both = list(
        example.image_data.training_data(
            args, images, 0, 0, 2
        ).as_numpy_iterator()
    )
    later = list(
        example.image_data.training_data(
            args, images, 0, 1, 2
        ).as_numpy_iterator()
    )
    assert (len(both), len(later)) == (4, 2)
    for (x, y), (other_x, other_y) in zip(both[2:], later, strict=True):
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(y, other_y)
    assert abs(both[0][0] - both[2][0]).max() > 0.1
    # An epoch has each image once.
    labels = [
        np.sort(np.concatenate([b[1] for b in both[k : k + 2]])) for k in (0, 2)
    ]
    np.testing.assert_array_equal(*labels)
    other = next(iter(example.image_data.training_data(args, images, 1, 0, 2)))
    assert abs(other[0].numpy() - both[0][0]).max() > 0.1


def test_the_evaluation_crop_is_the_middle(example):
    image = np.zeros((80, 160, 3), "uint8")
    image[5:75, 45:115] = 255
    found = example.image_data.for_evaluation(
        tf.constant(image), 14, small=False
    )
    white = (1 - np.array(example.image_data.MEAN)) / np.array(
        example.image_data.STD
    )
    np.testing.assert_allclose(
        found, np.broadcast_to(white, (14, 14, 3)), rtol=1e-5
    )


def test_a_folder_of_images(tiny, tmp_path, capsys):
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("cats", "dogs"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for k in range(20):
                image = random.integers(0, 255, (20 + k, 30, 3))
                keras.utils.save_img(folder / f"{k}.png", image)
    dataset = str(tmp_path / "images")
    more = ["--dataset", dataset, "--epochs", "1", "--recipe", "baseline"]
    tiny.main(options(tmp_path / "run", *more))
    assert "test accuracy" in capsys.readouterr().out


def test_missing_data_says_what_to_do(example, tmp_path):
    with pytest.raises(SystemExit, match="There are no images in"):
        example.main(options(tmp_path, "--dataset", str(tmp_path / "none")))
    with pytest.raises(SystemExit, match="at least one batch"):
        example.main(options(tmp_path, "--batch", "1000"))
    pytest.importorskip("tensorflow_datasets", reason="extra `data`")
    more = ["--dataset", "imagenet2012", "--data-dir", str(tmp_path)]
    with pytest.raises(SystemExit, match="downloaded by hand"):
        example.main(options(tmp_path, *more))


def test_batches_that_several_devices_can_share(example):
    assert example.image_data.evaluation_batch(256, 10000, 1) == 256
    assert example.image_data.evaluation_batch(256, 10000, 8) == 200
    with pytest.raises(SystemExit, match="cannot be shared out"):
        example.image_data.evaluation_batch(256, 10001, 8)


def test_going_on_before_the_first_checkpoint(tiny, tmp_path):
    """A run that was killed in its first epoch leaves an empty log."""
    (tmp_path / "log.csv").touch()
    tiny.main(options(tmp_path, "--recipe", "baseline", "--epochs", "1"))
    assert len(log(tmp_path)) == 1


def test_the_small_stem_keeps_the_resolution(example):
    args = example.parse(options("unused", "--size", "32", "--stem", "small"))
    model = example.network(args, 10)
    assert model.get_layer("pool1_pool").output.shape[1:3] == (32, 32)
    assert model.get_layer("conv1_conv").kernel.shape == (3, 3, 3, 64)
    assert model.output.shape == (None, 10)


def test_blocks_may_begin_as_the_identity(example):
    args = example.parse(options("unused", "--size", "32", "--zero-gamma"))
    model = example.network(args, 10)
    zero = [
        layer.name
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
        and not np.any(to_numpy(layer.gamma))
    ]
    assert len(zero) == 16
    blocks = [f"conv3_block{k}_out" for k in (1, 2, 3, 4)]
    inside = keras.Model(
        model.input, [model.get_layer(name).output for name in blocks]
    )
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3))
    first, *others = inside.predict(x.astype("float32"), verbose=0)
    assert np.any(first)
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.slow
def test_resnet50_itself(example, tmp_path, capsys):
    """The whole script, as `--local` runs it."""
    folder = tmp_path / "run"
    more = ["--train-images", "64", "--test-images", "32", "--epochs", "1"]
    quiet = ["--verbose", "0", "--output-dir", str(folder)]
    example.main(["train", "--local", *more, *quiet])
    output = capsys.readouterr().out
    assert "with BatchNorm recalibrated" in output
    assert (folder / "saved_model").is_dir()
    with open(folder / "batch_norm.csv", newline="") as file:
        shifts = list(csv.DictReader(file))
    assert len(shifts) == 53
    found = json.loads((folder / "result.json").read_text())
    assert found["test"] == pytest.approx(found["collapsed"], abs=0.05)
