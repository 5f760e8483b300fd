"""What the copies of a kernel start as."""

from typing import Any

import keras

from keras_mk.mixing import hashing


def initializer_of_copy(initializer: Any, k: int) -> Any:
    """The layer's initializer, drawing other numbers for each copy.

    The first copy is what the plain layer would have been.
    """
    initializer = keras.initializers.get(initializer)
    seed = getattr(initializer, "seed", None)
    if k == 0 or not isinstance(seed, int):
        return initializer
    config = initializer.get_config()
    config["seed"] = hashing.derive_seed(seed, f"copy {k}")
    return type(initializer).from_config(config)
