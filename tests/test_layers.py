"""Every layer against the Keras layer it stands for."""

import inspect
import json

import keras
import numpy as np
import pytest

from keras_mk import layers
from keras_mk.mixing import reference
from tests.backends import BACKEND
from tests.backends import to_numpy
from tests.keras_testing import run_layer_test
from tests.layer_cases import CASES
from tests.layer_cases import IDS

every_layer = pytest.mark.parametrize("case", CASES, ids=IDS)


def copies(layer, name="kernel"):
    return [to_numpy(w) for w in getattr(layer, f"{name}s")]


def biases(layer):
    return [] if layer.bias is None else [to_numpy(layer.bias)]


def counter(layer):
    return int(to_numpy(layer.mixing_seed_generator.state)[1])


def mixed_by_hand(layer, name, step, stream=0):
    """A loop over the copies, in numpy."""
    kernels = copies(layer, name)
    seed = layer.seed + stream * 0x632BE5AB
    p = reference.mixing_weights(
        [seed & 0xFFFFFFFF, step], len(kernels), kernels[0].shape
    )
    mixed = np.zeros_like(kernels[0])
    for kernel, weight in zip(kernels, p, strict=True):
        mixed += kernel * weight
    return mixed


def randomize(layer):
    random = np.random.default_rng(1)
    layer.set_weights(
        [random.normal(size=w.shape).astype("float32") for w in layer.weights]
    )


@every_layer
def test_training_uses_a_new_mixture_at_each_step(case):
    layer = case.build(seed=17)
    randomize(layer)
    x = case.inputs()
    outputs = []
    for step in range(3):
        kernels = [
            mixed_by_hand(layer, name, step, stream)
            for stream, name in enumerate(case.kernels)
        ]
        expected = case.plain(kernels, biases(layer))(x)
        outputs.append(to_numpy(layer(x, training=True)))
        np.testing.assert_allclose(
            outputs[-1], to_numpy(expected), rtol=1e-5, atol=2e-5
        )
        assert counter(layer) == step + 1
    assert np.abs(outputs[0] - outputs[1]).max() > 0.01


@every_layer
@pytest.mark.parametrize("training", [False, None])
def test_inference_uses_the_average_and_draws_nothing(case, training):
    layer = case.build()
    randomize(layer)
    x = case.inputs()
    kernels = [np.mean(copies(layer, name), axis=0) for name in case.kernels]
    expected = case.plain(kernels, biases(layer))(x)
    output = layer(x) if training is None else layer(x, training=False)
    np.testing.assert_allclose(
        to_numpy(output), to_numpy(expected), rtol=1e-5, atol=1e-5
    )
    assert counter(layer) == 0


@every_layer
def test_one_copy_is_the_plain_layer(case):
    layer = case.build(expansion=1)
    kernels = [copies(layer, name)[0] for name in case.kernels]
    plain = case.plain(kernels, biases(layer))
    x = case.inputs()
    for training in (True, False):
        np.testing.assert_array_equal(
            to_numpy(layer(x, training=training)), to_numpy(plain(x))
        )
    assert counter(layer) == 0


@every_layer
def test_first_copy_starts_as_the_plain_kernel_and_the_others_differ(case):
    initializers = {
        argument: keras.initializers.HeNormal(seed=5)
        for argument in ("kernel_initializer", "depthwise_initializer")
        if argument in case.mk_class.__signature__.parameters
    }
    layer = case.build(**initializers)
    plain = case.plain_class(**case.arguments, **initializers)
    plain.build(case.input_shape)
    kernels = copies(layer, case.kernels[0])
    np.testing.assert_array_equal(kernels[0], to_numpy(plain.weights[0]))
    assert all(w.shape == plain.weights[0].shape for w in kernels)
    for i in range(3):
        for j in range(i):
            assert np.abs(kernels[i] - kernels[j]).max() > 0.05


@every_layer
def test_config_round_trip_through_json(case):
    layer = case.build(seed=3, activation="relu", name="chosen")
    config = json.loads(json.dumps(layer.get_config()))
    revived = case.mk_class.from_config(config)
    assert revived.get_config() == layer.get_config()
    assert (revived.expansion, revived.seed) == (3, 3)
    serialized = keras.saving.serialize_keras_object(layer)
    assert serialized["registered_name"] == f"keras_mk>MK{case.name}"


@every_layer
def test_signature_is_the_keras_one_and_two_more(case):
    parameters = list(case.mk_class.__signature__.parameters)
    base = list(inspect.signature(case.plain_class).parameters)
    assert parameters == [*base[:-1], "expansion", "seed", "kwargs"]
    positional = [v for k, v in case.arguments.items()][:1]
    rest = dict(list(case.arguments.items())[1:])
    layer = case.mk_class(*positional, **rest)
    assert layer.expansion == 3


@every_layer
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
def test_keras_layer_test(case):
    plain = case.plain_class(**case.arguments)
    run_layer_test(
        case.mk_class,
        init_kwargs={**case.arguments, "expansion": 3, "seed": 1},
        input_shape=case.input_shape,
        expected_output_shape=plain.compute_output_shape(case.input_shape),
        expected_num_trainable_weights=3 * len(case.kernels)
        + (1 if case.build().bias is not None else 0),
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=1,
        expected_num_losses=0,
        supports_masking=case.name == "Dense",
    )


def test_kernels_and_kernel_need_a_built_layer():
    layer = layers.MKDense(2)
    # torch.nn.Module puts a message of its own in the place of ours.
    message = "has no attribute" if BACKEND == "torch" else "build the layer"
    with pytest.raises(AttributeError, match=message):
        _ = layer.kernels
    with pytest.raises(AttributeError, match=message):
        _ = layer.kernel


def test_kernels_are_separate_variables_of_the_plain_shape():
    layer = layers.MKDense(4, expansion=5)
    layer.build((None, 7))
    assert isinstance(layer.kernels, tuple)
    assert [tuple(w.shape) for w in layer.kernels] == [(7, 4)] * 5
    assert len({w.path for w in layer.weights}) == len(layer.weights) == 6
    np.testing.assert_allclose(
        to_numpy(layer.kernel), np.mean(copies(layer), axis=0), atol=1e-6
    )


@pytest.mark.parametrize("expansion", [0, -1, True, 2.0, "3", None])
@pytest.mark.parametrize("case", [*CASES[:1], *CASES[3:4]])
def test_wrong_expansion(case, expansion):
    with pytest.raises(ValueError, match=f"Received: expansion={expansion!r}"):
        case.mk_class(**case.arguments, expansion=expansion)
    with pytest.raises(ValueError, match="`expansion` must be a positive"):
        layers.MKMultiHeadAttention(2, 2, expansion=expansion)


@pytest.mark.parametrize("seed", [-1, 2**31, 1.5, "1", True])
def test_wrong_seed(seed):
    with pytest.raises(ValueError, match=f"Received: seed={seed!r}"):
        layers.MKDense(2, seed=seed)


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not:UserWarning")
def test_lora_and_quantization_name_the_remedy():
    remedy = "keras_mk.collapse"
    with pytest.raises(ValueError, match=remedy):
        layers.MKDense(4, lora_rank=2)
    with pytest.raises(ValueError, match=remedy):
        layers.MKDense(4, dtype="int8_from_float32")
    layer = layers.MKDense(4)
    layer.build((None, 4))
    with pytest.raises(ValueError, match=remedy):
        layer.enable_lora(2)
    with pytest.raises(ValueError, match=remedy):
        layer.quantize("int8")
    model = keras.Sequential([keras.Input((4,)), layers.MKDense(4)])
    with pytest.raises(ValueError, match=remedy):
        model.quantize("int8")


@every_layer
def test_regularizer_is_averaged_over_the_copies(case):
    if case.name.startswith("Depthwise"):
        argument = "depthwise_regularizer"
    elif case.name.startswith("Separable"):
        argument = "pointwise_regularizer"
    else:
        argument = "kernel_regularizer"
    layer = case.build(**{argument: keras.regularizers.L2(0.5)})
    randomize(layer)
    name = case.kernels[-1]
    expected = np.mean([0.5 * (w**2).sum() for w in copies(layer, name)])
    assert len(layer.losses) == 3
    total = sum(float(to_numpy(loss)) for loss in layer.losses)
    assert total == pytest.approx(expected, rel=1e-5)
    config = layer.get_config()[argument]
    assert config["class_name"] == "L2"


def test_constraint_applies_to_each_copy():
    layer = layers.MKDense(4, kernel_constraint="non_neg")
    model = keras.Sequential([keras.Input((5,)), layer])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(np.ones((4, 5)), -np.ones((4, 4)), verbose=0)
    assert all((w >= 0).all() for w in copies(layer))


def test_frozen_layer_uses_the_average_and_draws_nothing():
    layer = layers.MKDense(4, seed=1)
    layer.build((None, 5))
    x = np.ones((2, 5), "float32")
    average = to_numpy(layer(x))
    assert np.abs(to_numpy(layer(x, training=True)) - average).max() > 1e-3
    layer.trainable = False
    drawn = counter(layer)
    np.testing.assert_array_equal(to_numpy(layer(x, training=True)), average)
    assert counter(layer) == drawn
    assert layer.trainable_variables == []
    layer.trainable = True
    assert np.abs(to_numpy(layer(x, training=True)) - average).max() > 1e-3


def test_masks_pass_through():
    x = np.ones((2, 3, 4), "float32")
    x[:, 1:] = 0
    inputs = keras.Input((3, 4))
    hidden = layers.MKDense(2)(keras.layers.Masking()(inputs))
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    model = keras.Model(inputs, [hidden, pooled])
    hidden, pooled = model.predict(x, verbose=0)
    np.testing.assert_allclose(pooled, hidden[:, 0], rtol=1e-5)


CONVOLUTIONS = [
    ("Conv1D", {"padding": "causal", "dilation_rate": 2}, (2, 9, 4)),
    ("Conv1D", {"padding": "same", "strides": 2}, (2, 9, 4)),
    ("Conv2D", {"padding": "same", "groups": 2}, (2, 6, 6, 4)),
    ("Conv2D", {"dilation_rate": (2, 1)}, (2, 8, 8, 4)),
    ("Conv3D", {"padding": "valid", "strides": (1, 2, 1)}, (2, 5, 6, 5, 2)),
    ("DepthwiseConv2D", {"padding": "same", "strides": 2}, (2, 6, 6, 4)),
    (
        "SeparableConv2D",
        {"depth_multiplier": 2, "padding": "same"},
        (2, 6, 6, 4),
    ),
    ("Conv2DTranspose", {"strides": 2, "padding": "same"}, (2, 5, 5, 3)),
    ("Conv1DTranspose", {"strides": 2, "output_padding": 1}, (2, 5, 3)),
]


@pytest.mark.parametrize(("name", "options", "shape"), CONVOLUTIONS)
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_convolution_options(name, options, shape, data_format):
    if data_format == "channels_first":
        if BACKEND == "tensorflow":
            pytest.skip("TensorFlow convolves channels_first on GPU only")
        if options.get("padding") == "causal":
            pytest.skip("Keras has no causal padding with channels_first")
        shape = (shape[0], shape[-1], *shape[1:-1])
    arguments = {"kernel_size": 3, "data_format": data_format, **options}
    if not name.startswith("Depthwise"):
        arguments["filters"] = 4
    layer = getattr(layers, f"MK{name}")(**arguments, expansion=2)
    plain = getattr(keras.layers, name)(**arguments)
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    output = layer(x)
    plain.build(shape)
    kernels = [
        to_numpy(getattr(layer, kernel)) for kernel in layer.kernel_names
    ]
    plain.set_weights([*kernels, *biases(layer)])
    expected = plain(x)
    np.testing.assert_allclose(
        to_numpy(output), to_numpy(expected), rtol=1e-5, atol=1e-5
    )
    assert layer(x, training=True).shape == expected.shape


@pytest.mark.parametrize(
    "policy", ["mixed_bfloat16", "mixed_float16", "bfloat16", "float64"]
)
def test_dtype_policies(policy):
    if policy == "float64" and BACKEND == "jax":
        pytest.skip("JAX has no float64 unless jax_enable_x64 is set")
    layer = layers.MKDense(4, dtype=policy, seed=2)
    x = np.random.default_rng(0).normal(size=(2, 5))
    output = layer(x, training=True)
    expected = keras.dtype_policies.get(policy)
    assert keras.backend.standardize_dtype(output.dtype) == (
        expected.compute_dtype
    )
    for w in layer.kernels:
        dtype = keras.backend.standardize_dtype(w.dtype)
        assert dtype == expected.variable_dtype
    assert keras.backend.standardize_dtype(layer.kernel.dtype) == (
        expected.variable_dtype
    )
    # Mixed in the variable's dtype and rounded once to the compute dtype. The
    # plain layer is the judge: Keras itself multiplies float64 as float32 on
    # torch.
    kernels = [w.astype("float64") for w in copies(layer)]
    p = reference.mixing_weights([2, 0], 3, (5, 4), "float64")
    plain = keras.layers.Dense(4, dtype=policy)
    plain.build(x.shape)
    plain.set_weights([reference.mixture(kernels, p), *biases(layer)])
    tolerance = {"float64": 1e-12, "mixed_float16": 4e-3}.get(policy, 3e-2)
    np.testing.assert_allclose(
        to_numpy(output).astype("float64"),
        to_numpy(plain(x)).astype("float64"),
        rtol=0,
        atol=tolerance,
    )


def test_layers_with_other_seeds_draw_other_mixtures():
    x = np.eye(5, dtype="float32")
    outputs = []
    for seed in (1, 2, None, None):
        layer = layers.MKDense(4, seed=seed, kernel_initializer="ones")
        layer.build((None, 5))
        layer.set_weights(
            [np.full((5, 4), k, "float32") for k in range(3)] + [np.zeros(4)]
        )
        outputs.append(to_numpy(layer(x, training=True)))
    for i in range(4):
        for j in range(i):
            assert np.abs(outputs[i] - outputs[j]).max() > 0.1


def test_two_kernels_of_one_layer_draw_other_mixtures():
    layer = layers.MKSeparableConv1D(3, 1, seed=1)
    layer.build((None, 4, 3))
    kernels = layer._choose_kernels(training=True)
    assert set(kernels) == {"depthwise_kernel", "pointwise_kernel"}
    assert counter(layer) == 1
    first = mixed_by_hand(layer, "depthwise_kernel", 0)
    second = mixed_by_hand(layer, "pointwise_kernel", 0, stream=1)
    np.testing.assert_allclose(
        to_numpy(kernels["depthwise_kernel"]), first, atol=1e-6
    )
    np.testing.assert_allclose(
        to_numpy(kernels["pointwise_kernel"]), second, atol=1e-6
    )


def test_copies_are_excluded_from_weight_decay_by_a_list():
    layer = layers.MKDense(3)
    layer.build((None, 4))
    before = [to_numpy(w) for w in layer.kernels]
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=layer.kernels)
    variables = [*layer.kernels, layer.bias]
    layer.bias.assign(np.ones(3))
    optimizer.build(variables)
    optimizer.apply([keras.ops.zeros(v.shape) for v in variables], variables)
    for variable, old in zip(layer.kernels, before):
        np.testing.assert_array_equal(to_numpy(variable), old)
    assert to_numpy(layer.bias).max() < 1
