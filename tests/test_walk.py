"""The names and the keys of the layers of a model."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_mk
from keras_mk.walk import walk
from tests import conversion_cases as cases
from tests.backends import to_numpy


class Network(keras.Model):
    """Attributes on both sides of `layers` in the order of the alphabet."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.head = layers.Dense(2)
        self.stem = layers.Dense(4)
        self.stages = [layers.Dense(4), layers.Dense(4)]
        self._tail = layers.Dense(2)

    def build(self, input_shape):
        for layer in (self.stem, *self.stages, self.head):
            layer.build((None, 4))
        self._tail.build((None, 2))

    def call(self, x):
        for layer in (self.stem, *self.stages, self.head, self._tail):
            x = layer(x)
        return x


def network():
    model = Network()
    model.build((None, 4))
    return model


def test_attributes_give_the_names_and_keys_stay_as_saved():
    assert {f.path: f.key for f in walk(network())} == {
        "head": "head",
        # Keras lists the layers of a model before what sorts after `layers`,
        # and so do the files that there are.
        "stem": "layers.1",
        "stages.0": "layers.2",
        "stages.1": "layers.3",
        "tail": "layers.4",
    }


def test_a_pattern_finds_an_attribute_that_sorts_after_layers():
    planned = keras_mk.plan(network(), exclude="stem")
    assert [row.path for row in planned.converted] == [
        "head", "stages.0", "stages.1", "tail",
    ]  # fmt: skip


class Named(layers.Layer):
    """Layers in a dict, whose keys alone do not tell them apart."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = {
            "a.b": layers.Dense(3, name="first"),
            "a": {"b": layers.Dense(3, name="second")},
            "a/kernel": layers.Dense(3, name="third"),
        }

    def build(self, input_shape):
        for layer in self.all_parts():
            layer.build(input_shape)

    def all_parts(self):
        return (
            self.parts["a.b"], self.parts["a"]["b"], self.parts["a/kernel"],
        )  # fmt: skip

    def call(self, x):
        return sum(part(x) for part in self.all_parts())


def test_layers_in_a_dict_have_a_key_each(tmp_path):
    plain = keras.Sequential([keras.Input((4,)), Named(name="named")])
    found = walk(plain)
    assert len({f.key for f in found}) == len({f.path for f in found}) == 4
    assert found[1].key == "layers.0/parts.a.b"
    model = keras_mk.expand(plain, exclude=lambda layer: layer.name == "second")
    assert [type(part).__name__ for part in model.layers[0].all_parts()] == [
        "MKDense",
        "Dense",
        "MKDense",
    ]
    path = tmp_path / "model.keras"
    model.save(path)
    x = cases.random(2, 4)
    with keras.saving.custom_object_scope({"Named": Named}):
        loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
    collapsed = keras_mk.collapse(model, verify=x)
    np.testing.assert_allclose(
        to_numpy(collapsed(x)), to_numpy(plain(x)), atol=1e-6
    )


class Twins(layers.Layer):
    """Two attributes that read alike."""

    def build(self, input_shape):
        self.part = layers.Dense(3)
        self._part = layers.Dense(3)
        for layer in (self.part, self._part):
            layer.build(input_shape)

    def call(self, x):
        return self.part(x) + self._part(x)


@pytest.mark.parametrize("pattern", ["part$", "part~2"])
def test_no_two_layers_have_one_path(pattern):
    plain = keras.Sequential([keras.Input((4,)), Twins(name="twins")])
    planned = keras_mk.plan(plain, exclude=pattern)
    assert [row.path for row in planned.rows[-2:]] == [
        "twins/part", "twins/part~2",
    ]  # fmt: skip
    assert len(planned.converted) == 1
