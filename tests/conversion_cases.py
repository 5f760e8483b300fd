"""Models that `expand` and `collapse` must take, with data for them."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


@dataclass
class Model:
    """A built model, inputs to predict on, and data to fit."""

    model: Any
    inputs: Any
    targets: Any
    converted: int
    tolerance: float = 1e-6
    # How many of the layers get a gradient that is not zero.
    moving: float = 1.0


def sequential():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, activation="relu", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.DepthwiseConv2D(3),
            layers.SeparableConv2D(4, 3),
            layers.Conv2DTranspose(3, 2),
            layers.Flatten(),
            layers.Dropout(0.1),
            layers.Dense(3, kernel_constraint="max_norm"),
        ]
    )
    return Model(model, random(4, 8, 8, 3), random(4, 3), 5)


def functional():
    """A shared layer, two inputs, two outputs, and a model in a model."""
    first, second = keras.Input((6,), name="first"), keras.Input((6,), name="b")
    inner_input = keras.Input((6,))
    inner = keras.Model(inner_input, layers.Dense(6)(inner_input), name="inner")
    shared = layers.Dense(6, activation="tanh", name="shared")
    x, y = shared(inner(first)), shared(second)
    one = layers.Dense(2, name="one")(layers.Concatenate()([x, y]))
    two = layers.EinsumDense("ab,bc->ac", 3, bias_axes="c", name="two")(x + y)
    model = keras.Model({"first": first, "b": second}, [one, two])
    inputs = {"first": random(4, 6), "b": 2 * random(4, 6)}
    return Model(model, inputs, [random(4, 2), random(4, 3)], 4)


class Block(layers.Layer):
    """A layer whose config says nothing of the layers in it."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.up = layers.Dense(2 * units, activation="relu")
        self.downs = [layers.Dense(units), layers.Dense(units)]

    def build(self, input_shape):
        self.up.build(input_shape)
        for down in self.downs:
            down.build((*input_shape[:-1], 2 * self.units))

    def call(self, x, training=None):
        hidden = self.up(x, training=training)
        return x + sum(down(hidden, training=training) for down in self.downs)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Subclassed(keras.Model):
    def __init__(self, units=6, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.blocks = [Block(units), Block(units)]
        self.head = layers.Dense(2)

    def build(self, input_shape):
        for block in self.blocks:
            block.build(input_shape)
        self.head.build(input_shape)

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(x, training=training)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def subclassed():
    model = Subclassed()
    model.build((None, 6))
    return Model(model, random(4, 6), random(4, 2), 7)


def composite_in_functional():
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(2)(Block(6)(inputs)))
    return Model(model, random(4, 6), random(4, 2), 4)


def attention():
    inputs = keras.Input((5, 8))
    x = layers.MultiHeadAttention(2, 4, dropout=0.1)(inputs, inputs)
    x = layers.LayerNormalization()(x + inputs)
    x = layers.GroupQueryAttention(4, 4, 2)(x, x)
    x = layers.TimeDistributed(layers.Dense(3))(x)
    return Model(keras.Model(inputs, x), random(4, 5, 8), random(4, 5, 3), 9)


def frozen():
    case = sequential()
    case.model.layers[0].trainable = False
    case.model.layers[-1].trainable = False
    return case


def mixed_precision():
    policy = "mixed_bfloat16"
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu", dtype=policy),
            layers.Dense(2, dtype=policy),
        ]
    )
    return Model(model, random(4, 6), random(4, 2), 2)


def recurrent_and_embedding():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(7, 4)(inputs)
    x = layers.Bidirectional(layers.LSTM(3))(x)
    model = keras.Model(inputs, layers.Dense(2)(x))
    return Model(model, np.arange(20).reshape(4, 5) % 7, random(4, 2), 1)


class Tied(layers.Layer):
    """Two Dense layers with one kernel, and one with its own."""

    def build(self, input_shape):
        self.first = layers.Dense(3, name="first")
        self.second = layers.Dense(3, name="second")
        self.free = layers.Dense(3, name="free")
        for layer in (self.first, self.second, self.free):
            layer.build(input_shape)
        self.second._tracker.unlock()
        self.second._untrack_variable(self.second._kernel)
        self.second._kernel = self.first._kernel
        self.second._tracker.lock()

    def call(self, x):
        return self.first(x) + self.second(x) + self.free(x)


def tied():
    model = keras.Sequential([keras.Input((3,)), Tied(name="tied")])
    return Model(model, random(4, 3), random(4, 3), 1)


def application(name, **kwargs):
    model = getattr(keras.applications, name)(
        weights=None, include_top=False, pooling="avg", **kwargs
    )
    size = model.input_shape[1:]
    outputs = model.output_shape[-1]
    converted = sum(
        isinstance(layer, (layers.Conv2D, layers.DepthwiseConv2D))
        for layer in model.layers
    )
    # Images of noise: a mean-square loss on random features stays finite.
    return Model(model, random(2, *size), random(2, outputs), converted, 1e-5)


def resnet50():
    return application("ResNet50", input_shape=(32, 32, 3))


def mobilenet_v2():
    return application("MobileNetV2", input_shape=(32, 32, 3), alpha=0.35)


def efficientnet_b0():
    case = application("EfficientNetB0", input_shape=(32, 32, 3))
    # Its drop-connect may leave a whole residual block out of the one step.
    case.moving = 0.9
    return case


SENTENCES = ["the quick brown fox", "the lazy dog", "a quick dog", "fox dog"]


def t5_tokenizer():
    keras_hub = pytest.importorskip("keras_hub")
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=written,
        vocab_size=11,
        model_type="WORD",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=3,
        pad_piece="<pad>",
        eos_piece="</s>",
        unk_piece="<unk>",
        bos_piece="<s>",
    )
    return keras_hub.tokenizers.T5Tokenizer(proto=written.getvalue())


def t5():
    keras_hub = pytest.importorskip("keras_hub")
    tokenizer = t5_tokenizer()
    backbone = keras_hub.models.T5Backbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        key_value_dim=4,
        dropout=0.1,
    )
    preprocessor = keras_hub.models.T5Seq2SeqLMPreprocessor(
        tokenizer, encoder_sequence_length=6, decoder_sequence_length=5
    )
    model = keras_hub.models.T5Seq2SeqLM(backbone, preprocessor)
    inputs = {"encoder_text": SENTENCES, "decoder_text": SENTENCES[::-1]}
    return Model(model, inputs, None, 2 * 7 + 2 * 11)


def bert():
    keras_hub = pytest.importorskip("keras_hub")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=12,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=6,
    )
    inputs = {
        "token_ids": np.arange(24).reshape(4, 6) % 12,
        "segment_ids": np.zeros((4, 6), "int32"),
        "padding_mask": np.ones((4, 6), "int32"),
    }
    targets = {
        "sequence_output": random(4, 6, 8),
        "pooled_output": random(4, 8),
    }
    return Model(backbone, inputs, targets, 2 * 6 + 1)


@dataclass
class Case:
    make: Callable[[], Model]
    custom_objects: dict
    slow: bool = False


CASES = {
    "sequential": Case(sequential, {}),
    "functional": Case(functional, {}),
    "subclassed": Case(subclassed, {"Subclassed": Subclassed, "Block": Block}),
    "composite": Case(composite_in_functional, {"Block": Block}),
    "attention": Case(attention, {}),
    "frozen": Case(frozen, {}),
    "mixed_precision": Case(mixed_precision, {}),
    "tied": Case(tied, {"Tied": Tied}),
    "recurrent": Case(recurrent_and_embedding, {}),
    "resnet50": Case(resnet50, {}, slow=True),
    "mobilenet_v2": Case(mobilenet_v2, {}, slow=True),
    "efficientnet_b0": Case(efficientnet_b0, {}, slow=True),
    "t5": Case(t5, {}, slow=True),
    "bert": Case(bert, {}, slow=True),
}

PARAMETERS = [
    pytest.param(case, id=name, marks=[pytest.mark.slow] if case.slow else [])
    for name, case in CASES.items()
]
