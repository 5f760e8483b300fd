"""Layers and models of one's own, as users write them."""

import keras
from keras import layers
from keras import ops

registered = keras.saving.register_keras_serializable(package="soaking")


@registered
class Hidden(layers.Layer):
    """Its config says nothing of the layers in it."""

    def __init__(self, units, threshold=1.0, rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.threshold = threshold
        self.rate = rate
        self.up = layers.Dense(
            units + 2, activation="tanh", dtype=self.dtype_policy
        )
        self.downs = [
            layers.Dense(units, dtype=self.dtype_policy, name="down_a"),
            layers.Dense(units, dtype=self.dtype_policy, name="down_b"),
        ]
        self.named = {
            "norm": layers.LayerNormalization(dtype=self.dtype_policy)
        }
        self.drop = layers.Dropout(rate, seed=3, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.gate = self.add_weight(
            name="gate", shape=(self.units,), initializer="ones"
        )
        self.up.build(input_shape)
        inner = (*input_shape[:-1], self.units + 2)
        for down in self.downs:
            down.build(inner)
        self.named["norm"].build(input_shape)
        self.drop.build(input_shape)

    def call(self, x, training=None):
        hidden = self.up(x, training=training)
        y = sum(down(hidden, training=training) for down in self.downs)
        y = self.drop(
            self.named["norm"](y, training=training), training=training
        )
        # A dtype policy may be changed below.
        y = ops.cast(y, x.dtype)
        return self.threshold * x + ops.cast(self.gate, x.dtype) * y

    def get_config(self):
        config = {"units": self.units, "rate": self.rate}
        config["threshold"] = self.threshold
        return {**super().get_config(), **config}


@registered
class Attending(layers.Layer):
    """Attention on itself: a composite in a composite."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.attention = layers.MultiHeadAttention(
            2, 2, dtype=self.dtype_policy
        )
        self.around = Hidden(units, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)
        self.around.build(input_shape)

    def call(self, x, training=None):
        x = x + self.attention(x, x, training=training)
        return self.around(x, training=training)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Unsaid(layers.Layer):
    """Not registered, and without `get_config`: Keras makes one."""

    def __init__(self, units, slope=0.5, **kwargs):
        super().__init__(**kwargs)
        self.slope = slope
        self.inside = layers.Dense(units, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.inside.build(input_shape)

    def call(self, x, training=None):
        return x + self.slope * self.inside(x, training=training)


class Telling:
    """Attributes that are in the config, and a step of one's own."""

    threshold = 1.0
    labels = ()

    def tell(self, threshold=1.0, labels=()):
        self.threshold = threshold
        self.labels = list(labels)

    def train_step(self, *args, **kwargs):
        return super().train_step(*args, **kwargs)

    def compute_loss(self, *args, **kwargs):
        return self.threshold * super().compute_loss(*args, **kwargs)

    def get_config(self):
        told = {"threshold": self.threshold, "labels": list(self.labels)}
        return {**super().get_config(), **told}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        told = {k: config.pop(k) for k in ("threshold", "labels")}
        model = super().from_config(config, custom_objects)
        model.tell(**told)
        return model


@registered
class FunctionalWithStep(Telling, keras.Model):
    """A Functional model with a `train_step`."""


class SequentialWithStep(Telling, keras.Sequential):
    """A Sequential model with a `train_step`, not registered."""


@registered
class Net(keras.Model):
    """A subclassed model; its config is what its layers are made from."""

    def __init__(self, parts, threshold=1.0, **kwargs):
        super().__init__(**kwargs)
        # Not by attribute: Keras would wrap the lists of a config.
        self._parts = _Quiet(parts)
        self.threshold = threshold
        self.stem = layers.Dense(6, name="stem")
        self.zoo = [_layer_of(part) for part in parts]
        self.head = layers.Dense(2)

    def build(self, input_shape):
        for layer in (self.stem, *self.zoo):
            layer.build(input_shape)
        self.head.build(input_shape)
        self.built = True

    def call(self, x, training=None):
        x = self.stem(x, training=training)
        for layer in self.zoo:
            x = layer(x, training=training)
        x = ops.mean(x, axis=1)
        return self.threshold * self.head(x, training=training)

    def get_config(self):
        config = {"parts": self._parts.value, "threshold": self.threshold}
        return {**super().get_config(), **config}


@registered
class NetWithStep(Net):
    """A subclassed model with a `train_step`."""

    def train_step(self, *args, **kwargs):
        return super().train_step(*args, **kwargs)

    def compute_loss(self, *args, **kwargs):
        return self.threshold * super().compute_loss(*args, **kwargs)


@registered
class Backbone(keras.Model):
    """A Functional model that hides its layers, as those of KerasHub do."""

    def __init__(self, parts, threshold=1.0, **kwargs):
        inputs = keras.Input((4, 6))
        stem = layers.Dense(6, name="stem")
        x = stem(inputs)
        for part in parts:
            x = _layer_of(part)(x)
        outputs = layers.Dense(2, name="head")(
            layers.GlobalAveragePooling1D()(x)
        )
        super().__init__(inputs, outputs, **kwargs)
        self.stem = stem
        self._parts = _Quiet(parts)
        self.threshold = threshold

    def call(self, inputs, training=None, mask=None):
        y = super().call(inputs, training=training, mask=mask)
        return self.threshold * y

    def get_config(self):
        return {
            "parts": self._parts.value,
            "threshold": self.threshold,
            "name": self.name,
            "trainable": self.trainable,
            "dtype": self.dtype_policy.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


class _Quiet:
    """Holds what Keras must not track."""

    def __init__(self, value):
        self.value = value


def _layer_of(part):
    from tests.soaking.build import layer_of

    return layer_of(part)


CUSTOM_OBJECTS = {
    "Unsaid": Unsaid,
    "SequentialWithStep": SequentialWithStep,
}
