"""The tables of `plan` and `summary`."""

import keras
import pytest
from keras import layers

import keras_mk
from keras_mk.layers import MajorityKernel
from keras_mk.plan import Plan
from keras_mk.plan_rows import Row
from keras_mk.plan_table import LONG
from keras_mk.plan_table import memory
from tests import conversion_cases as cases


def two_dense():
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(6, name="hidden"),
            layers.Dense(2, name="head"),
        ]
    )


def deep(blocks=20):
    """Blocks of three layers, of which one is smaller."""
    inputs = x = keras.Input((8,), name="pixels")
    for i in range(blocks):
        x = layers.Dense(4 if i == 3 else 6, name=f"block{i}_dense_1")(x)
        x = layers.BatchNormalization(name=f"block{i}_norm")(x)
        x = layers.ReLU(name=f"block{i}_relu")(x)
    return keras.Model(inputs, layers.Dense(2, name="head")(x))


def test_summary_prints_the_table_it_returns(capsys):
    model = keras_mk.expand(two_dense())
    found = keras_mk.summary(model)
    assert capsys.readouterr().out == f"{found}\n"
    assert "2 of 2 layers converted" in str(found)


def test_summary_of_something_else():
    with pytest.raises(ValueError, match="must be a Keras model"):
        keras_mk.summary("model")


def test_summary_of_a_layer_that_is_not_built():
    model = keras.Sequential([keras_mk.layers.MKDense(2, name="head")])
    [row] = keras_mk.summary(model).rows
    assert (row.path, row.expansion, row.training) == ("head", 3, 0)


def test_a_plan_is_short_where_python_shows_it():
    planned = keras_mk.plan(two_dense())
    assert repr(planned) == (
        "<Plan: 2 of 2 layers converted; parameters 68 before, "
        "188 in training, 68 deployed>"
    )


def test_frozen_layers_are_marked():
    plain = two_dense()
    assert "frozen" not in str(keras_mk.plan(plain))
    plain.layers[0].trainable = False
    model = keras_mk.expand(plain)
    plain.layers[1].kernel.trainable = False
    for kernel in model.layers[1].kernels:
        kernel.trainable = False
    for found in (keras_mk.plan(plain), keras_mk.summary(model)):
        hidden, head = found.rows[-2:]
        assert (hidden.frozen, hidden.trainable) == (3 * 48 + 6, 0)
        assert (head.frozen, head.trainable) == (3 * 12, 2)
        assert "frozen" in str(found).splitlines()[1]
        assert "186 of them frozen" in str(found)
        assert found.optimizer_bytes["Adam"] == 2 * 4 * 2


def test_a_frozen_model_trains_nothing():
    plain = two_dense()
    plain.trainable = False
    plain.layers[1].trainable = True
    assert plain.trainable_variables == []
    assert keras_mk.plan(plain).optimizer_bytes["Adam"] == 0


def test_statistics_are_not_frozen():
    plain = keras.Sequential(
        [keras.Input((4,)), layers.BatchNormalization(), layers.Dense(1)]
    )
    row = keras_mk.plan(plain).rows[-2]
    assert (row.plain, row.trainable, row.frozen) == (16, 8, 0)


def test_a_long_table_has_one_line_for_rows_that_are_alike():
    plain = deep()
    plain.get_layer("block7_norm").trainable = False
    planned = keras_mk.plan(plain, exclude="block1_dense")
    assert len(planned.rows) == 62
    lines = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in str(planned).splitlines()
        if line.startswith("│")
    ]
    assert [cells[:4] for cells in lines] == [
        ["(without weights)", "", "21", "-"],
        ["block*_dense_*", "Dense", "19", "3"],
        ["block*_norm", "BatchNormalization", "19", "-"],
        ["block1_dense_1", "Dense", "1", "-"],
        ["block7_norm", "BatchNormalization", "1", "-"],
        ["head", "Dense", "1", "3"],
    ]
    rows = [r for r in planned.converted if r.path.startswith("block")]
    assert lines[1][4:6] == [
        f"{sum(r.plain for r in rows):,}",
        f"{sum(r.training for r in rows):,}",
    ]
    assert "20 of 62 layers converted" in str(planned)


def test_a_short_table_has_a_line_for_each_row():
    text = str(keras_mk.plan(deep(5)))
    assert all(f"block{i}_dense_1" in text for i in range(5))


def numbered(names):
    rows = [Row(name, "Dense", 3, "", 1, 3, 3, 0) for name in names]
    filler = [Row(str(i), "ReLU", None, "", 0, 0, 0, 0) for i in range(LONG)]
    return [
        line.split("│")[1].strip()
        for line in str(Plan(tuple(rows + filler))).splitlines()
        if line.startswith("│")
    ][:-1]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        # Keras leaves the number of the first out.
        (["conv2d", "conv2d_1", "conv2d_2"], ["conv2d_*"]),
        (["conv_expand", "conv_1_expand"], ["conv_*_expand"]),
        (["conv1d", "conv2d_1"], ["conv*d_*"]),
        (["blocks.0/up", "blocks.1/up"], ["blocks.*/up"]),
        (["conv2_block1_0_conv", "conv2_block3_1_conv"], [
            "conv2_block*_*_conv"
        ]),
        (["dense_1_a", "dense_1_b"], ["dense_1_a", "dense_1_b"]),
        (["dense_1a", "dense_a"], ["dense_1a", "dense_a"]),
    ],
)  # fmt: skip
def test_paths_that_differ_only_in_numbers(names, shown):
    assert numbered(names) == shown


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (41_296, "40.3 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (300 * 2**20, "300.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (3000 * 2**40, "3,000.0 TiB"),
    ],
)
def test_memory_in_the_unit_that_fits(size, text):
    assert memory(size) == text


def test_memory_of_a_small_model():
    assert "Adam 1.5 KiB" in str(keras_mk.plan(two_dense()))


class Late(layers.Layer):
    """A layer whose kernels are not its first weights."""

    def build(self, input_shape):
        size = input_shape[-1]
        self.scale = self.add_weight(name="scale", shape=(size,))
        self.narrow = self.add_weight(name="narrow", shape=(size, 2))
        self.wide = self.add_weight(name="wide", shape=(size, 5))

    def call(self, x):
        x = x * self.scale
        narrow = keras.ops.matmul(x, self.narrow)
        return keras.ops.sum(narrow) + keras.ops.matmul(x, self.wide)


class MKLate(MajorityKernel, Late):
    kernel_names = ("wide", "narrow")


class MKLateWide(MajorityKernel, Late):
    kernel_names = ("wide",)


@pytest.mark.parametrize(
    ("mk_class", "training"), [(MKLate, 4 + 3 * 28), (MKLateWide, 12 + 3 * 20)]
)
def test_the_kernels_of_a_registered_layer_are_found_by_name(
    monkeypatch, mk_class, training
):
    from keras_mk import registry

    monkeypatch.setattr(registry, "_MK_CLASSES", dict(registry._MK_CLASSES))
    keras_mk.register(Late, mk_class)
    plain = keras.Sequential([keras.Input((4,)), Late()])
    assert keras_mk.plan(plain).parameters["training"] == training


def test_tied_weights_count_once_and_summary_names_them():
    plain = cases.tied().model
    assert keras_mk.plan(plain).parameters["before"] == plain.count_params()
    model = keras_mk.expand(plain)
    reasons = {row.path: row.reason for row in keras_mk.summary(model).rows}
    assert reasons["tied/first"] == "its weights are tied to tied/second"


def test_summary_names_the_random_state_that_keras_does_not_save():
    x = inputs = keras.Input((4, 8))
    for _ in range(3):
        x = layers.Dropout(0.1)(keras_mk.layers.MKDense(8)(x))
    x = keras_mk.layers.MKMultiHeadAttention(2, 4, dropout=0.1, name="mha")(
        x, x
    )
    model = keras.Model(inputs, layers.Dropout(0, name="none")(x))
    found = keras_mk.summary(model)
    assert found.unsaved[:3] == tuple(
        layer.name for layer in model.layers if "dropout" in layer.name
    )
    assert str(found).splitlines()[-1] == (
        "random state that Keras does not save, and "
        "`keras_mk.callbacks.Resume` does: "
        "dropout_* (3), mha/dropout_layer"
    )
    assert "random state" not in str(keras_mk.plan(keras_mk.collapse(model)))
