"""The soak, with small numbers; `python tests/soak.py --hub` is all of it."""

import json

import pytest

from tests import soak
from tests.soaking import kept
from tests.soaking import lifecycle
from tests.soaking import random_networks
from tests.soaking.wrong import Wrong

# A slow test may warn as its networks like: warnings have tests of their own.
quiet = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
@quiet
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
