"""What majority kernels are compared with, on cases worked by hand."""

from itertools import combinations

import keras
import numpy as np
import pytest

import keras_mk
from keras_mk import baselines
from keras_mk.baselines import submodular
from keras_mk.baselines.distill import DivergenceOfLogits
from keras_mk.baselines.subset import keep_places
from tests.backends import to_numpy

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(8, 5)).astype("float32")
LABELS = RANDOM.integers(3, size=8)


def network(units=3):
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, activation="relu"),
            keras.layers.Dense(units),
        ]
    )


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def softmax(x):
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def test_ensemble_averages_probabilities():
    members = [network() for _ in range(3)]
    outputs = [to_numpy(member(X)) for member in members]
    logits = to_numpy(baselines.Ensemble(members, from_logits=True)(X))
    expected = np.mean([softmax(output) for output in outputs], axis=0)
    np.testing.assert_allclose(np.exp(logits), expected, rtol=1e-5)
    averaged = to_numpy(baselines.Ensemble(members)(X))
    np.testing.assert_allclose(averaged, np.mean(outputs, 0), atol=1e-6)


def test_ensemble_is_one_model(tmp_path):
    ensemble = baselines.Ensemble([network() for _ in range(2)])
    ensemble(X)
    ensemble.save(tmp_path / "ensemble.keras")
    loaded = keras.saving.load_model(tmp_path / "ensemble.keras")
    np.testing.assert_allclose(
        to_numpy(loaded(X)), to_numpy(ensemble(X)), atol=1e-6
    )


@pytest.mark.slow
def test_ensemble_is_exported(tmp_path):
    ensemble = baselines.Ensemble([network() for _ in range(2)])
    expected = to_numpy(ensemble(X))
    report = keras_mk.export_collapsed(ensemble, tmp_path / "ensemble")
    assert report.difference < 1e-5
    tf = pytest.importorskip("tensorflow", reason="reads the SavedModel")
    loaded = tf.saved_model.load(tmp_path / "ensemble")
    np.testing.assert_allclose(loaded.serve(X), expected, atol=1e-5)
    np.testing.assert_array_equal(to_numpy(ensemble(X)), expected)


@pytest.mark.slow
def test_ensemble_of_majority_kernels_is_exported(tmp_path):
    members = [keras_mk.expand(network(), 2) for _ in range(2)]
    ensemble = baselines.Ensemble(members)
    ensemble(X)
    keras_mk.export_collapsed(ensemble, tmp_path / "ensemble")
    assert (tmp_path / "ensemble" / "saved_model.pb").exists()


NO_MODELS = pytest.mark.parametrize(
    "wrong",
    [[], (), None, 3, "text", {}, [None], [keras.layers.Dense(2)], iter(())],
    ids=lambda value: type(value).__name__,
)


@NO_MODELS
def test_wrong_members(wrong):
    with pytest.raises(ValueError, match="`members` must be a list of one or"):
        baselines.Ensemble(wrong)


def test_one_model_is_no_list_of_members():
    with pytest.raises(ValueError, match="`members` must be a list of one or"):
        baselines.Ensemble(network())
    with pytest.raises(ValueError, match="`from_logits` must be `True` or"):
        baselines.Ensemble([network()], from_logits="no")


def test_an_ensemble_of_one_model_twice_is_saved(tmp_path):
    model = network()
    ensemble = baselines.Ensemble([model, model])
    ensemble.save(tmp_path / "ensemble.keras")
    loaded = keras.saving.load_model(tmp_path / "ensemble.keras")
    np.testing.assert_allclose(
        to_numpy(loaded(X)), to_numpy(ensemble(X)), atol=1e-6
    )


def test_members_that_share_layers_are_not_saved(tmp_path):
    inputs = keras.Input((5,))
    shared = keras.layers.Dense(4)(inputs)
    ensemble = baselines.Ensemble(
        [keras.Model(inputs, keras.layers.Dense(2)(shared)) for _ in "ab"]
    )
    ensemble.predict(X, verbose=0)
    with pytest.raises(ValueError, match="share layers cannot be saved"):
        ensemble.save(tmp_path / "ensemble.keras")
    assert not list(tmp_path.iterdir())


def test_members_of_different_outputs():
    with pytest.raises(ValueError, match="outputs of one shape"):
        baselines.Ensemble([network(3), network(4)])


def test_distilled_student_learns_the_teacher():
    teacher, student = network(), network()
    # A teacher that prefers the first class by far.
    teacher.layers[-1].bias.assign([5.0, 0.0, 0.0])
    weights = teacher.get_weights()
    model = baselines.distiller(teacher, student, student_weight=0.0)
    model.compile(keras.optimizers.Adam(0.05), cross_entropy())
    model.fit(X, np.full(8, 2), epochs=60, verbose=0)
    assert (to_numpy(student(X)).argmax(-1) == 0).all()
    # The teacher is neither trained nor frozen.
    assert teacher.trainable
    for before, after in zip(weights, teacher.get_weights()):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(
            ({"temperature": wrong}, ValueError, "`temperature` must be a fin")
            for wrong in (0, -1, "3", True, None, float("inf"), float("nan"))
        ),
        *(
            ({"student_weight": wrong}, ValueError, "`student_weight` must be")
            for wrong in (-0.1, 1.1, "1", True, None, float("nan"))
        ),
        ({"teacher": [1]}, TypeError, "`teacher` must be a `keras.Model`"),
        ({"student": [1]}, TypeError, "`student` must be a `keras.Model`"),
    ],
)
def test_wrong_options_of_distillation(options, error, message):
    with pytest.raises(error, match=message):
        baselines.distiller(
            **{"teacher": network(), "student": network(), **options}
        )
    with pytest.raises(ValueError, match="`scale` must be a finite number"):
        DivergenceOfLogits(scale="1")


def test_divergence_by_hand():
    teacher, student = RANDOM.normal(size=(2, 4, 3)).astype("float32")
    p, q = softmax(teacher), softmax(student)
    loss = DivergenceOfLogits(scale=2.0, reduction=None)
    np.testing.assert_allclose(
        to_numpy(loss(teacher, student)),
        2 * (p * np.log(p / q)).sum(-1),
        rtol=1e-4,
    )


def with_value(value):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.set_weights([np.full((1, 1), value), np.zeros(1)])
    return model


def value_of(model):
    return float(model.get_weights()[0][0, 0])


def test_soups_by_hand():
    models = [with_value(value) for value in (1.0, 8.0, 2.0, 3.0)]
    assert value_of(baselines.uniform_soup(models)) == 3.5

    # Best are 2 and 1, whose average is better; 3 makes it as good as 2.
    def score(model):
        return -abs(value_of(model) - 1.6)

    # From the best: 2 (0.4), 1 (0.6): 1.5 is better; 3 would make it 2.
    assert value_of(baselines.greedy_soup(models, score)) == 1.5
    assert [value_of(model) for model in models] == [1, 8, 2, 3]


def test_soup_of_different_models():
    with pytest.raises(ValueError, match="weights of the same shapes"):
        baselines.uniform_soup([network(3), network(4)])


@NO_MODELS
def test_soup_of_no_models(wrong):
    for cook in (
        baselines.uniform_soup,
        lambda models: baselines.greedy_soup(models, score=value_of),
    ):
        with pytest.raises(ValueError, match="`models` must be a list of one"):
            cook(wrong)


def test_soup_of_models_without_weights_yet():
    models = [keras.Sequential([keras.layers.Dense(2)]) for _ in "ab"]
    with pytest.raises(ValueError, match="`models` must be built"):
        baselines.uniform_soup(models)


def test_soup_of_any_iterable():
    models = (with_value(value) for value in (1.0, 2.0))
    assert value_of(baselines.uniform_soup(models)) == 1.5
    assert (
        value_of(baselines.greedy_soup(map(with_value, (1.0, 2.0)), value_of))
        == 2
    )


@pytest.mark.parametrize("found", [float("nan"), None, "text", np.ones(2)])
def test_a_score_that_is_no_number(found):
    models = [with_value(1.0), with_value(2.0)]
    with pytest.raises(ValueError, match="`score` must return a number"):
        baselines.greedy_soup(models, lambda model: found)
    with pytest.raises(TypeError, match="`score` must be a function"):
        baselines.greedy_soup(models, found)


def test_similarities_by_hand():
    rows = np.array([[1.0, 0], [2, 0], [0, 1], [0, -3]])
    found = submodular.similarities(rows, neighbours=1)
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 0] = 1
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(
        submodular.utilities(rows, found), [2, 3, 2, 4], atol=1e-6
    )


def test_objective_by_hand():
    similarity = np.array([[0, 0.5, 0], [0.5, 0, 0.25], [0, 0.25, 0]])
    utility = np.array([1.0, 2.0, 4.0])
    found = submodular.objective([0, 1, 2], utility, similarity, 2.0, 3.0)
    assert found == 2 * 7 - 3 * 0.75


@pytest.mark.parametrize("seed", range(5))
def test_greedy_against_brute_force(seed):
    rows = np.random.default_rng(seed).normal(size=(9, 3))
    similarity = submodular.similarities(rows, neighbours=3)
    utility = submodular.utilities(rows, similarity)
    taken = submodular.greedy_subset(utility, similarity, size=4)
    assert len(set(taken.tolist())) == 4

    def f(subset):
        return submodular.objective(subset, utility, similarity)

    best = max(map(f, combinations(range(9), 4)))
    assert (1 - 1 / np.e) * best <= f(taken) <= best + 1e-6
    # Monotone: no row makes a subset worse.
    for row in set(range(9)) - set(taken.tolist()):
        assert f([*taken, row]) >= f(taken) - 1e-6
    # Each step takes the row that adds most.
    for k in range(4):
        gains = [
            f([*taken[:k], row]) for row in range(9) if row not in taken[:k]
        ]
        assert f(taken[: k + 1]) == pytest.approx(max(gains))


def test_kept_neurons_keep_their_places():
    assert keep_places([4, 1, 7], [7, 0, 4]).tolist() == [4, 0, 7]


def test_subset_training():
    plain = network()
    wide = baselines.subset_network(plain, expansion=3)
    layer = wide.layers[0]
    assert tuple(layer.kernel.shape) == (5, 12)
    wide.compile("sgd", cross_entropy(), metrics=["accuracy"])
    # Neurons 8 to 11 are so large that they must be selected.
    kernel = 0.1 * RANDOM.normal(size=(5, 12))
    kernel[:, 8:] *= 1000
    layer.kernel.assign(kernel)
    wide.fit(X, LABELS, callbacks=[baselines.SubsetSelection()], verbose=0)
    assert set(to_numpy(layer.selection).tolist()) == {8, 9, 10, 11}
    # Only those were trained.
    moved = np.abs(to_numpy(layer.kernel) - kernel).max(0)
    assert moved[:8].max() < 1e-6
    shipped = baselines.selected_network(wide)
    assert [type(x) for x in shipped.layers] == [keras.layers.Dense] * 2
    np.testing.assert_allclose(
        to_numpy(shipped(X)), to_numpy(wide(X)), rtol=1e-4
    )


def test_each_group_starts_as_a_layer():
    layer = baselines.SubsetDense(
        100, kernel_initializer=keras.initializers.GlorotUniform(seed=1)
    )
    layer.build((None, 50))
    kernel = to_numpy(layer.kernel)
    groups = kernel[:, :100], kernel[:, 100:200], kernel[:, 200:]
    for group in groups:
        assert np.abs(group).max() <= np.sqrt(6 / 150)
    assert np.abs(groups[0] - groups[1]).max() > 0.1


def test_selection_needs_its_layers():
    model = network()
    model.compile("sgd", cross_entropy())
    with pytest.raises(ValueError, match="`SubsetDense` layers"):
        model.fit(X, LABELS, callbacks=[baselines.SubsetSelection()], verbose=0)
    with pytest.raises(ValueError, match="hidden `Dense` layer"):
        baselines.subset_network(with_value(1.0))


def hidden(**options):
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(4, **options),
            keras.layers.Dense(3),
        ]
    )


def test_wide_layers_are_of_the_dtype_and_frozen_as_they_were():
    plain = hidden(dtype="mixed_float16", trainable=False)
    wide = baselines.subset_network(plain)
    for network in (wide, baselines.selected_network(wide)):
        layer, last = network.layers
        assert layer.dtype_policy.name == "mixed_float16"
        assert not layer.trainable
        assert last.trainable


@pytest.mark.parametrize(
    "options",
    [
        {"use_bias": False},
        {"kernel_regularizer": "l2"},
        {"bias_initializer": "ones"},
        {"bias_constraint": "non_neg"},
    ],
)
def test_what_a_wide_layer_cannot_have(options):
    with pytest.raises(ValueError, match="and no other option"):
        baselines.subset_network(hidden(**options))


def test_wrong_options_of_subsets():
    with pytest.raises(ValueError, match="`units` must be an integer"):
        baselines.SubsetDense("4")
    with pytest.raises(ValueError, match="`every` must be an integer"):
        baselines.SubsetSelection(every="1")
    with pytest.raises(ValueError, match="`neighbours` must be an integer"):
        baselines.SubsetSelection(neighbours=0)
    with pytest.raises(ValueError, match="`beta` must be a finite number"):
        baselines.SubsetSelection(beta=float("nan"))
    with pytest.raises(TypeError, match="neighbors"):
        baselines.SubsetSelection(neighbors=3)
    for wrong in ("text", baselines.Ensemble([network()])):
        with pytest.raises(ValueError, match="Sequential or Functional"):
            baselines.subset_network(wrong)
        with pytest.raises(ValueError, match="Sequential or Functional"):
            baselines.selected_network(wrong)
    with pytest.raises(ValueError, match="`expansion` must be a positive"):
        baselines.subset_network(network(), expansion=0)
    unbuilt = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="`model` must be built"):
        baselines.selected_network(baselines.subset_network(unbuilt))
    with pytest.raises(ValueError, match="`size` must be from 0 to"):
        submodular.greedy_subset([1.0, 2.0], np.zeros((2, 2)), size=3)


def test_models_inside_of_a_model_are_not_widened():
    inside = hidden()
    plain = keras.Sequential(
        [
            keras.Input((5,)),
            inside,
            keras.layers.Dense(4),
            keras.layers.Dense(2),
        ]
    )
    wide = baselines.subset_network(plain)
    found = [type(layer).__name__ for layer in wide.layers]
    assert found == ["Sequential", "SubsetDense", "Dense"]
    with pytest.raises(ValueError, match="hidden `Dense` layer"):
        baselines.subset_network(keras.Sequential([inside]))
