import json

import keras
import numpy as np
import pytest

from keras_mk.layers import MKEinsumDense
from keras_mk.layers import MKMultiHeadAttention
from keras_mk.mixing import reference
from tests.backends import to_numpy
from tests.keras_testing import run_layer_test

PROJECTIONS = ("query", "key", "value", "attention_output")


def projections(layer):
    return [
        layer.query_dense,
        layer.key_dense,
        layer.value_dense,
        layer.output_dense,
    ]


def attention(**kwargs):
    layer = MKMultiHeadAttention(2, 4, **kwargs)
    layer.build((3, 6, 8), (3, 5, 8))
    return layer


def inputs():
    random = np.random.default_rng(0)
    query = random.normal(size=(3, 6, 8)).astype("float32")
    value = random.normal(size=(3, 5, 8)).astype("float32")
    return query, value


def test_projections_are_majority_kernel_layers():
    layer = attention(seed=7)
    assert [p.name for p in projections(layer)] == list(PROJECTIONS)
    assert all(type(p) is MKEinsumDense for p in projections(layer))
    assert len({p.seed for p in projections(layer)}) == 4
    assert len(layer.trainable_weights) == 4 * (3 + 1)


def test_inference_equals_plain_attention_with_averaged_kernels():
    layer = attention()
    plain = keras.layers.MultiHeadAttention(2, 4)
    plain.build((3, 6, 8), (3, 5, 8))
    weights = []
    for projection in projections(layer):
        weights += [to_numpy(projection.kernel), to_numpy(projection.bias)]
    plain.set_weights(weights)
    np.testing.assert_allclose(
        to_numpy(layer(*inputs())), to_numpy(plain(*inputs())), atol=1e-6
    )


def test_training_equals_plain_attention_with_mixtures_made_by_hand():
    layer = attention(seed=7)
    plain = keras.layers.MultiHeadAttention(2, 4)
    plain.build((3, 6, 8), (3, 5, 8))
    for step in range(2):
        weights = []
        for projection in projections(layer):
            kernels = [to_numpy(w) for w in projection.kernels]
            p = reference.mixing_weights(
                [projection.seed, step], 3, kernels[0].shape
            )
            mixed = np.zeros_like(kernels[0])
            for kernel, weight in zip(kernels, p, strict=True):
                mixed += kernel * weight
            weights += [mixed, to_numpy(projection.bias)]
        plain.set_weights(weights)
        np.testing.assert_allclose(
            to_numpy(layer(*inputs(), training=True)),
            to_numpy(plain(*inputs())),
            atol=2e-6,
        )


def test_config_round_trip_through_json():
    layer = attention(seed=3, dropout=0.1, name="chosen")
    # As text: Keras's own config holds a tuple, which JSON makes a list.
    config = json.dumps(layer.get_config())
    revived = MKMultiHeadAttention.from_config(json.loads(config))
    assert json.dumps(revived.get_config()) == config
    assert (revived.expansion, revived.seed) == (3, 3)
    revived.build((3, 6, 8), (3, 5, 8))
    seeds = [p.seed for p in projections(layer)]
    assert [p.seed for p in projections(revived)] == seeds


def test_training_samples_every_projection():
    layer = attention(seed=1)
    first = to_numpy(layer(*inputs(), training=True))
    second = to_numpy(layer(*inputs(), training=True))
    assert np.abs(first - second).max() > 1e-3
    for projection in projections(layer):
        assert int(to_numpy(projection.mixing_seed_generator.state)[1]) == 2


def test_gate_is_a_majority_kernel_layer():
    layer = attention(use_gate=True)
    assert type(layer._gate_dense) is MKEinsumDense
    assert len(layer.trainable_weights) == 5 * 4


def test_keras_layer_test():
    run_layer_test(
        MKMultiHeadAttention,
        init_kwargs={"num_heads": 2, "key_dim": 4, "expansion": 2, "seed": 1},
        input_shape={"query_shape": (2, 8, 16), "value_shape": (2, 4, 16)},
        expected_output_shape=(2, 8, 16),
        expected_num_trainable_weights=4 * 3,
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=4,
        expected_num_losses=0,
        supports_masking=True,
        run_training_check=False,
    )


def test_wrong_arguments_are_keras_errors():
    with pytest.raises(ValueError, match="num_heads"):
        MKMultiHeadAttention(0, 4)
