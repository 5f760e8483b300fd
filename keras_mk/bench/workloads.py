"""Models to measure, with data of the right shape for them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_mk.collapse import collapse
from keras_mk.export import signature as signatures
from keras_mk.export.runtimes import fill
from keras_mk.layers.majority_kernel import MajorityKernel
from keras_mk.walk import walk

MLPS = {"A1": (100,), "A2": (200, 100), "A3": (400, 200, 100)}


@dataclass(frozen=True)
class Workload:
    """A network and one batch of data for it.

    Attributes:
        name: What reports call it.
        make: Makes the plain model.
        data: Inputs and targets of a batch of the given size.
        loss: What to train with.
        optimizers: Which optimizers to measure unless told.
        batches: Which batch sizes.
        make_dropout: Makes the model with dropout, where that is a peer.
        by_tf_data: Whether `fit` must be fed by `tf.data` on every backend.
    """

    name: str
    make: Callable[[], keras.Model]
    data: Callable[[int], tuple[Any, Any]]
    loss: Any = "mse"
    optimizers: tuple[str, ...] = ("sgd",)
    batches: tuple[int, ...] = (256,)
    make_dropout: Callable[[], keras.Model] | None = None
    by_tf_data: bool = False


def _classification() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def mlp(hidden: tuple[int, ...], inputs: int = 3072) -> Workload:
    """An MLP of the paper's, on images of CIFAR-10's size."""

    def make(dropout: float = 0.0) -> keras.Model:
        layers: list[Any] = [keras.Input((inputs,))]
        for units in hidden:
            layers.append(keras.layers.Dense(units, activation="relu"))
            if dropout:
                layers.append(keras.layers.Dropout(dropout))
        return keras.Sequential([*layers, keras.layers.Dense(10)])

    def data(batch: int) -> tuple[Any, Any]:
        random = np.random.default_rng(0)
        x = random.normal(size=(batch, inputs)).astype("float32")
        return x, random.integers(10, size=batch)

    return Workload(
        f"MLP {list(hidden)} on {inputs}",
        make,
        data,
        _classification(),
        optimizers=("sgd", "adam"),
        make_dropout=lambda: make(dropout=0.2),
    )


def resnet50(size: int = 224) -> Workload:
    def data(batch: int) -> tuple[Any, Any]:
        random = np.random.default_rng(0)
        x = random.normal(size=(batch, size, size, 3)).astype("float32")
        return x, random.integers(1000, size=batch)

    return Workload(
        f"ResNet50 at {size} x {size}",
        lambda: keras.applications.ResNet50(
            weights=None,
            input_shape=(size, size, 3),
            classifier_activation=None,
        ),
        data,
        _classification(),
        optimizers=("momentum",),
        batches=(16, 8),
    )


def t5(blocks: int = 6, length: int = 128, **sizes: Any) -> Workload:
    """T5 of the small size: `t5_small_multi` (6) or flan's (8 blocks).

    `sizes` go to `T5Backbone`, to make another one of it.
    """
    known = {
        6: {"num_heads": 8, "intermediate_dim": 2048, "activation": "relu"},
        8: {
            "num_heads": 6,
            "intermediate_dim": 1024,
            "activation": "gelu",
            "use_gated_activation": True,
            "tie_embedding_weights": False,
        },
    }

    def make() -> keras.Model:
        keras_hub = _keras_hub()
        options: dict[str, Any] = {
            "vocabulary_size": 32128,
            "num_layers": blocks,
            "hidden_dim": 512,
            "key_value_dim": 64,
            **known[blocks],
            **sizes,
        }
        backbone = keras_hub.models.T5Backbone(**options)
        return keras_hub.models.T5Seq2SeqLM(backbone)

    def data(batch: int) -> tuple[Any, Any]:
        random = np.random.default_rng(0)

        def tokens() -> Any:
            high = sizes.get("vocabulary_size", 32128)
            return random.integers(3, high, size=(batch, length), dtype="int32")

        mask = np.ones((batch, length), "int32")
        x = {
            "encoder_token_ids": tokens(),
            "encoder_padding_mask": mask,
            "decoder_token_ids": tokens(),
            "decoder_padding_mask": mask,
        }
        return x, tokens()

    return Workload(
        f"T5 {blocks}+{blocks} blocks, {length} tokens",
        make,
        data,
        _classification(),
        optimizers=("adamw", "adafactor"),
        batches=(16,),
        by_tf_data=True,
    )


def _keras_hub() -> Any:
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "This needs KerasHub. Install it with `pip install keras-mk[hub]`."
        ) from error
    return keras_hub


def model_file(path: str) -> Workload:
    """A user's own model, with majority kernels or without, on made-up data."""

    def make() -> keras.Model:
        model = keras.saving.load_model(path, compile=False)
        if any(isinstance(f.layer, MajorityKernel) for f in walk(model)):
            return collapse(model)
        return model

    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file '{path}'.")
    model = make()
    signature = signatures.encoded_signature(model)

    def data(batch: int) -> tuple[Any, Any]:
        x = fill(signature, signatures.random_inputs(signature, batch))[0]
        y = keras.tree.map_structure(
            lambda output: np.zeros(output.shape, "float32"), model(x)
        )
        return x, y

    return Workload(
        Path(path).name, make, data, optimizers=("adam",), batches=(32,)
    )


def find(name: str, width: int | None = None) -> list[Workload]:
    """The workloads that a name on the command line stands for."""
    if name == "mlp" and width is not None:
        return [mlp((width, width), inputs=width)]
    if name == "mlp":
        return [mlp(hidden) for hidden in MLPS.values()]
    if name.upper() in MLPS:
        return [mlp(MLPS[name.upper()])]
    if name == "resnet50":
        return [resnet50()]
    if name == "t5":
        return [t5(6), t5(8)]
    if name in ("t5-6", "t5-8"):
        return [t5(int(name[-1]))]
    if name.endswith(".keras"):
        return [model_file(name)]
    raise ValueError(
        "`WORKLOAD` must be mlp (or a1, a2, a3), resnet50, t5 (or t5-6, "
        "t5-8), sampling, infer, expand or the path of a .keras file. "
        f"Received: {name!r}"
    )
