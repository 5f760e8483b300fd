"""The soak, with small numbers; `python tests/soak.py --hub` is all of it."""

import json

import keras
import pytest

import keras_mk
from keras_mk.layers import MajorityKernel
from tests import soak
from tests.backends import BACKEND
from tests.soaking import build
from tests.soaking import kept
from tests.soaking import lifecycle
from tests.soaking.classes import CUSTOM_OBJECTS

NETWORK = {
    "kind": "functional",
    "parts": [{"part": "dense"}, {"part": "hidden"}],
    "expansion": 2,
    "dtype": None,
    "before": [{"change": "layer.trainable", "at": 4, "value": 0}],
    "after": [],
}


@pytest.mark.slow
# A slow test may warn as its networks like: warnings have tests of their own.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        *(f"net-{number}" for number in range(12)),
        "BertBackbone",
        "Gemma4Backbone",
        "ResNetBackbone",
        "T5Backbone",
        "ViTImageClassifier",
    ],
)
def test_from_expand_to_collapse(name):
    if not name.startswith("net-"):
        pytest.importorskip("keras_hub")
    record = soak.record_of(name)
    assert record["outcome"] != soak.WRONG, json.dumps(record, indent=2)


def trained(folder):
    case = lifecycle.Case(
        make=lambda: kept.make(NETWORK),
        inputs=build.inputs(),
        optimizer="adam",
        options=(("run_eagerly", True),) if BACKEND == "tensorflow" else (),
    )
    with keras.saving.custom_object_scope(CUSTOM_OBJECTS):
        return {wrong.what for wrong in lifecycle.run(case, folder)[0]}


def changed(folder):
    return {wrong.what for wrong in kept.check(NETWORK, folder)}


def test_nothing_is_wrong_with_a_small_network(tmp_path):
    assert trained(tmp_path) == set()
    assert changed(tmp_path) == set()


def test_the_soak_notices_what_expand_loses(tmp_path, monkeypatch):
    expand = keras_mk.expand

    def broken(*args, **kwargs):
        model = expand(*args, **kwargs)
        model.layers[2].downs[1].trainable = True
        model.layers[2].up.name = "other"
        model.layers[2].gate.assign(0 * model.layers[2].gate)
        return model

    monkeypatch.setattr(keras_mk, "expand", broken)
    found = changed(tmp_path)
    assert {"name", "gate.value", "outputs"} <= found
    assert "kernel.trainable False -> True" in found


def test_the_soak_notices_what_collapse_loses(tmp_path, monkeypatch):
    collapse = keras_mk.collapse

    def broken(model):
        plain = collapse(model)
        plain.layers[2].downs[1].trainable = True
        kernel = plain.layers[1].kernel
        kernel.assign(model.layers[1].kernels[0] * 1.01)
        return plain

    monkeypatch.setattr(keras_mk, "collapse", broken)
    found = trained(tmp_path)
    assert {"outputs", "trainable False -> True"} <= found


def test_the_soak_notices_seeds_that_are_not_saved(tmp_path, monkeypatch):
    load = MajorityKernel.load_own_variables

    def broken(self, store):
        before = keras.ops.copy(self.mixing_seed_generator.state.value)
        load(self, store)
        self.mixing_seed_generator.state.assign(before)

    monkeypatch.setattr(MajorityKernel, "load_own_variables", broken)
    assert "mk.generator" in trained(tmp_path)


def test_the_soak_notices_that_nothing_is_mixed(tmp_path, monkeypatch):
    def average(self, training):
        values = [variable.value for variable in self.kernels]
        return {"kernel": sum(values) / self.expansion}

    monkeypatch.setattr(MajorityKernel, "_choose_kernels", average)
    assert "majority: trained without being mixed" in trained(tmp_path)
