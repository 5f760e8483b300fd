"""BatchNorm statistics of the averaged kernels, by hand and for any feed."""

import keras
import numpy as np
import pytest

import keras_mk

X = np.random.default_rng(0).normal(2, 3, (24, 4)).astype("float32")


def network(**options):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(5),
            keras.layers.BatchNormalization(**options),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(2),
            keras.layers.BatchNormalization(),
        ]
    )


def statistics(model):
    return [
        keras.ops.convert_to_numpy(v)
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
        for v in (layer.moving_mean, layer.moving_variance)
    ]


def by_hand(model, batches):
    """The means over batches of each batch's mean and variance."""
    dense, norm, _, last, _ = model.layers
    found = []
    for x in batches:
        kernel, bias = dense.get_weights()
        y = x @ kernel + bias
        first = y.mean(0), y.var(0)
        z = (y - first[0]) / np.sqrt(first[1] + norm.epsilon)
        kernel, bias = last.get_weights()
        z = z @ kernel + bias
        found.append([*first, z.mean(0), z.var(0)])
    return [np.mean(each, axis=0) for each in zip(*found)]


def check(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_means_of_the_batches_without_dropout():
    model = network()
    before = model.get_weights()
    found = keras_mk.recalibrate_batch_norm(model, X, batch_size=8, verbose=0)
    check(statistics(found), by_hand(model, np.split(X, 3)))
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    # It is a plain model as before: inference uses the statistics.
    y = found.predict(X[:1], verbose=0)
    np.testing.assert_allclose(
        y, found.predict(X, verbose=0)[:1], rtol=1e-4, atol=1e-5
    )
    momenta = [layer.momentum for layer in (model.layers[1], found.layers[1])]
    assert momenta == [0.99, 0.99]


def test_steps_and_a_smaller_last_batch():
    model = network()
    found = keras_mk.recalibrate_batch_norm(
        model, X, steps=2, batch_size=8, verbose=0
    )
    check(statistics(found), by_hand(model, np.split(X[:16], 2)))
    # Whatever the number of steps, a batch has 32 unless told.
    twice = np.concatenate([X, X])
    found = keras_mk.recalibrate_batch_norm(model, twice, steps=1, verbose=0)
    check(statistics(found), by_hand(model, [twice[:32]]))
    found = keras_mk.recalibrate_batch_norm(model, X, batch_size=16, verbose=0)
    first, last = by_hand(model, [X[:16]]), by_hand(model, [X[16:]])
    check(statistics(found), [(2 * a + b) / 3 for a, b in zip(first, last)])


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[8 * index : 8 * index + 8], np.zeros((8, 2))


class Empty(Batches):
    def __len__(self):
        return 0


def as_tf_data():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, X[:, :2])).batch(8)


def as_data_loader():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(X))
    return torch.utils.data.DataLoader(data, batch_size=8)


def as_generator():
    return ((X[i : i + 8], X[i : i + 8]) for i in (0, 8, 16))


@pytest.mark.parametrize(
    "make", [as_tf_data, Batches, as_data_loader, as_generator]
)
def test_any_feed(make):
    model = network()
    found = keras_mk.recalibrate_batch_norm(model, make(), verbose=0)
    check(statistics(found), by_hand(model, np.split(X, 3)))


def test_dict_batches():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    norm = keras.layers.BatchNormalization()
    model = keras.Model({"a": a, "b": b}, norm(a + b))
    found = keras_mk.recalibrate_batch_norm(
        model, {"a": X, "b": X}, batch_size=24, verbose=0
    )
    check(statistics(found), [2 * X.mean(0), 4 * X.var(0)])


def test_a_layer_used_twice_gets_the_average():
    a = keras.Input((4,))
    norm = keras.layers.BatchNormalization()
    both = keras.layers.Add()([norm(a), norm(3 * a)])
    model = keras.Model(a, both)
    found = keras_mk.recalibrate_batch_norm(model, X, batch_size=24, verbose=0)
    check(statistics(found), [2 * X.mean(0), 5 * X.var(0)])


def test_frozen_layers_keep_theirs():
    model = network()
    model.layers[1].trainable = False
    found = keras_mk.recalibrate_batch_norm(model, X, verbose=0)
    check(statistics(found)[:2], [np.zeros(5), np.ones(5)])
    assert abs(statistics(found)[2]).max() > 1e-3


def test_statistics_that_are_not_finite_are_mended():
    model = network()
    model.layers[1].moving_mean.assign(np.full(5, np.nan))
    found = keras_mk.recalibrate_batch_norm(model, X, batch_size=24, verbose=0)
    check(statistics(found), by_hand(model, [X]))


def test_batch_renormalization():
    model = network(renorm=True)
    found = keras_mk.recalibrate_batch_norm(model, X, batch_size=24, verbose=0)
    check(statistics(found), by_hand(model, [X]))
    norm = found.layers[1]
    assert norm.renorm
    deviation = keras.ops.convert_to_numpy(norm.moving_stddev)
    np.testing.assert_allclose(
        deviation**2, statistics(found)[1] + norm.epsilon, rtol=1e-4
    )


def test_averaged_kernels_have_smaller_variance():
    """What the statistics of training say, and what is the case."""
    model = keras_mk.expand(network(momentum=0.95), 3, copies="independent")
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(X, X[:, :2], batch_size=24, epochs=150, verbose=0)
    plain = keras_mk.collapse(model)
    found = keras_mk.recalibrate_batch_norm(plain, X, batch_size=24, verbose=0)
    check(statistics(found), by_hand(plain, [X]))
    sampled, averaged = statistics(plain)[1], statistics(found)[1]
    assert (sampled > averaged).all()
    shift = keras_mk.diagnostics.batch_norm_shift(plain, found)
    assert [each.path for each in shift] == [
        layer.name
        for layer in plain.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    ratio = (sampled + 1e-3) / (averaged + 1e-3)
    assert shift[0].variance == pytest.approx(np.exp(np.mean(np.log(ratio))))
    # A model with copies can be calibrated as it is, for its evaluation.
    itself = keras_mk.recalibrate_batch_norm(model, X, batch_size=24, verbose=0)
    check(statistics(itself), statistics(found))


def test_export_calibrates(tmp_path):
    model = keras_mk.expand(network(), 3, copies="independent")
    path = tmp_path / "model.keras"
    report = keras_mk.export_collapsed(
        model, path, format="keras", calibration_data=X, calibration_steps=1
    )
    written = keras.saving.load_model(path)
    check(statistics(written), by_hand(keras_mk.collapse(model), [X]))
    assert report.difference < 1e-4


def test_a_quantized_export_is_compared_with_the_calibrated(tmp_path):
    model = keras_mk.expand(network(), 3, copies="independent")
    report = keras_mk.export_collapsed(
        model,
        tmp_path / "model.keras",
        format="keras",
        quantize="int8",
        calibration_data=X,
    )
    assert report.difference > 1e-6


def test_errors():
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="nothing to calibrate"):
        keras_mk.recalibrate_batch_norm(plain, X)
    with pytest.raises(ValueError, match=r"`steps` must be .*steps=0"):
        keras_mk.recalibrate_batch_norm(network(), X, steps=0)
    with pytest.raises(ValueError, match="at least one batch"):
        keras_mk.recalibrate_batch_norm(network(), Empty(), verbose=0)
    with pytest.raises(ValueError, match="not finite"):
        keras_mk.recalibrate_batch_norm(network(), X * np.nan, verbose=0)
