"""One layer turned into its majority-kernel class and back, in place.

As Keras's own `enable_lora` and `quantize` do: whatever holds the layer keeps
it. Only models that this package has made are changed this way.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk.layers.majority_kernel import AveragedOverCopies
from keras_mk.layers.majority_kernel import MajorityKernel

Values = Callable[[str, Any], Sequence[Any]]


def replicas(expansion: int) -> Values:
    """Every copy is the plain kernel."""
    return lambda name, kernel: [kernel] * expansion


def to_majority(
    layer: Any,
    mk_class: type[MajorityKernel],
    expansion: int,
    seed: int,
    values: Values,
) -> None:
    """Gives a built plain layer copies of its kernels.

    Args:
        layer: The layer to change.
        mk_class: Its new class.
        expansion: Number of copies.
        seed: Seed of the mixtures.
        values: From a kernel's name and value, the values of its copies.
    """
    olds = {name: plain_kernel(layer, name) for name in mk_class.kernel_names}
    internals.change_class(layer, mk_class)
    with internals.unlocked(layer):
        layer.start_majority(expansion, seed)
        for name, old in olds.items():
            kernel = ops.convert_to_numpy(old)
            copies = tuple(
                _add_variable(layer, f"{name}_{k}", value, old, autocast=False)
                for k, value in enumerate(values(name, kernel))
            )
            for copy in copies:
                if old.regularizer is not None:
                    copy.regularizer = AveragedOverCopies(
                        old.regularizer, expansion
                    )
            internals.replace_variables(layer, (old,), copies)
            _set_kernel(layer, name, copies)
            setattr(layer, f"_{name}_copies", copies)


def to_plain(layer: Any, plain_class: type) -> None:
    """Puts the average of the copies back into one kernel."""
    names = layer.kernel_names
    averages = {
        name: (
            getattr(layer, f"{name}s"),
            ops.convert_to_numpy(getattr(layer, name)),
        )
        for name in names
    }
    layer.end_majority()
    internals.change_class(layer, plain_class)
    internals.forget_arguments(layer, ("expansion", "seed"))
    with internals.unlocked(layer):
        for name, (copies, average) in averages.items():
            kernel = _add_variable(layer, name, average, copies[0])
            shared = copies[0].regularizer
            if shared is not None:
                kernel.regularizer = shared.regularizer
            internals.replace_variables(layer, copies, (kernel,))
            internals.forget_attribute(layer, f"_{name}_copies")
            _set_kernel(layer, name, kernel)


def plain_kernel(layer: Any, name: str) -> Any:
    """The variable that a plain layer has for a kernel."""
    attributes = vars(layer)
    for attribute in (f"_{name}", name):
        if attribute in attributes:
            return attributes[attribute]
    raise ValueError(
        f"Layer '{layer.name}' of class {type(layer).__name__} has no kernel "
        f"`{name}`. Received: {sorted(attributes)}"
    )


def _set_kernel(layer: Any, name: str, value: Any) -> None:
    """Assigns what `build` assigned, past properties and tracking."""
    attribute = f"_{name}" if f"_{name}" in vars(layer) else name
    internals.forget_attribute(layer, attribute)
    vars(layer)[attribute] = value


def _add_variable(
    layer: Any, name: str, value: Any, like: Any, autocast: bool = True
) -> Any:
    # A copy of the array: torch would share the memory of equal ones.
    variable = layer.add_weight(
        name=name,
        shape=like.shape,
        dtype=like.dtype,
        initializer=lambda *args, **kwargs: np.array(value),
        constraint=like.constraint,
        autocast=autocast,
        trainable=True,
    )
    variable.trainable = like.trainable
    if layer.path:
        internals.set_path(variable, f"{layer.path}/{name}")
    return variable
