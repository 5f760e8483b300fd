"""Which layers `include` and `exclude` choose, in `plan` and in `expand`."""

import keras
import pytest
from keras import layers

import keras_mk
from keras_mk.layers import MajorityKernel
from keras_mk.walk import walk
from tests import conversion_cases as cases


def transformer():
    """Attention and a Dense layer beside it, and one over time steps."""
    inputs = keras.Input((5, 8))
    x = layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    x = layers.Dense(8, name="dense")(x)
    x = layers.TimeDistributed(layers.Dense(3, name="inner"), name="steps")(x)
    return keras.Model(inputs, x)


ATTENTION = {f"attention/{n}_dense" for n in ("query", "key", "value")}
ATTENTION |= {"attention/output_dense"}
DENSE, STEPS = {"dense"}, {"steps/layer"}
ALL = ATTENTION | DENSE | STEPS


def converted(model):
    return {f.path for f in walk(model) if isinstance(f.layer, MajorityKernel)}


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (None, layers.MultiHeadAttention, DENSE | STEPS),
        (None, layers.TimeDistributed, ATTENTION | DENSE),
        (None, lambda layer: layer.name == "attention", DENSE | STEPS),
        (None, ["^attention$", "^steps$"], DENSE),
        (None, [layers.TimeDistributed, "key"], ALL - STEPS - {
            "attention/key_dense"
        }),
        (layers.MultiHeadAttention, None, ATTENTION),
        ([layers.MultiHeadAttention, layers.Dense], None, ALL),
        (lambda layer: layer.name == "steps", None, STEPS),
        (layers.MultiHeadAttention, "query", ATTENTION - {
            "attention/query_dense"
        }),
        # It fits the attention layer and some of the layers in it: their own
        # answers hold.
        (None, lambda layer: layer.name in ("attention", "key"), ALL - {
            "attention/key_dense"
        }),
        (lambda layer: layer.name != "query", None, ALL - {
            "attention/query_dense"
        }),
        # All but the attention layer: each layer in it is another layer.
        (lambda layer: layer.name != "attention", None, ALL),
    ],
)  # fmt: skip
def test_a_spec_that_fits_a_holder_alone_speaks_for_what_it_holds(
    include, exclude, expected
):
    plain = transformer()
    options = {"include": include, "exclude": exclude}
    planned = keras_mk.plan(plain, **options)
    assert {row.path for row in planned.converted} == expected
    assert converted(keras_mk.expand(plain, **options)) == expected


def test_a_holder_in_a_holder():
    plain = cases.subclassed().model
    planned = keras_mk.plan(plain, exclude=cases.Block)
    assert [row.path for row in planned.converted] == ["head"]
    planned = keras_mk.plan(plain, exclude="blocks.1$")
    assert [row.path for row in planned.converted] == [
        "blocks.0/downs.0", "blocks.0/downs.1", "blocks.0/up", "head",
    ]  # fmt: skip
    outer = keras.Sequential([keras.Input((6,)), plain, layers.Dense(1)])
    planned = keras_mk.plan(outer, exclude=cases.Subclassed)
    assert len(planned.converted) == 1


def test_the_model_itself_is_no_holder():
    inner = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="inner")], name="stack"
    )
    plain = keras.Sequential(
        [keras.Input((4,)), inner, layers.Dense(2, name="head")]
    )
    planned = keras_mk.plan(plain, include=keras.Sequential)
    assert [row.path for row in planned.converted] == ["stack/inner"]


def test_a_layer_that_two_holders_share_is_in_both():
    shared = layers.Dense(4, name="shared")
    one = keras.Sequential([keras.Input((4,)), shared], name="one")
    two = keras.Sequential(
        [keras.Input((4,)), shared, layers.Dense(4, name="own")], name="two"
    )
    inputs = keras.Input((4,))
    plain = keras.Model(inputs, layers.Add()([one(inputs), two(inputs)]))
    for exclude, expected in (("^one$", {"two/own"}), ("^two$", set())):
        planned = keras_mk.plan(plain, exclude=exclude)
        assert {row.path for row in planned.converted} == expected


@pytest.mark.parametrize(
    "wrong", [object, int, dict, [None], [("dense",)], layers.Dropout(0.1)]
)
@pytest.mark.parametrize("argument", ["include", "exclude"])
def test_what_is_no_layer_class_pattern_or_function(argument, wrong):
    with pytest.raises(ValueError, match=f"`{argument}` must be a layer class"):
        keras_mk.plan(transformer(), **{argument: wrong})


FAST = [p for p in cases.PARAMETERS if not p.marks]


@pytest.mark.parametrize("case", FAST)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expansion": 2, "exclude": layers.Dense},
        {"include": lambda layer: len(layer.weights) == 2},
    ],
    ids=["all", "class", "function"],
)
def test_plan_shows_what_expand_does(case, options):
    plain = case.make().model
    planned = keras_mk.plan(plain, **options)
    if not planned.converted:
        with pytest.raises(ValueError, match="no layer to convert"):
            keras_mk.expand(plain, **options)
        return
    model = keras_mk.expand(plain, **options)
    done = keras_mk.summary(model)
    assert [row.path for row in done.converted] == [
        row.path for row in planned.converted
    ]
    counts = [
        [(r.expansion, r.plain, r.training, r.trainable) for r in p.rows]
        for p in (planned, done)
    ]
    assert counts[0] == counts[1]
    assert planned.parameters["training"] == model.count_params()
