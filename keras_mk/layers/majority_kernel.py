"""What every majority-kernel layer shares."""

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from typing import ClassVar

import keras
import numpy as np
from keras import ops

from keras_mk import _keras_internals as internals
from keras_mk import mixing
from keras_mk.layers import kernel_attributes
from keras_mk.layers import rules
from keras_mk.layers.averaged_over_copies import AveragedOverCopies
from keras_mk.layers.in_call import InCall
from keras_mk.layers.initializing import initializer_of_copy
from keras_mk.validation import check_expansion
from keras_mk.validation import check_seed

# Each kernel of a layer draws from a seed of its own, this far from the next.
_KERNEL_STRIDE = 0x632BE5AB


class MajorityKernel(keras.layers.Layer):
    """Mixin that trains each kernel of a Keras layer as several copies.

    It stands in front of a layer that makes its kernels by `add_weight` and
    reads them as attributes. In training the attribute is a fresh random
    mixture of the copies, otherwise their average; the layer's own `call`
    does the rest.

    A subclass names its kernels in `kernel_names`.
    """

    kernel_names: ClassVar[tuple[str, ...]] = ("kernel",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in cls.kernel_names:
            # Layers read what `build` assigned under either name.
            for attribute in (name, f"_{name}"):
                effective = kernel_attributes.effective(name, attribute)
                setattr(cls, attribute, effective)
            setattr(cls, f"{name}s", kernel_attributes.copies(name))
        cls.__signature__ = extended_signature(cls)

    def __init__(
        self,
        *args: Any,
        expansion: int = 3,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_expansion(expansion)
        check_seed(seed)
        if kwargs.get("lora_rank") is not None:
            raise _unsupported(type(self).__name__, "LoRA (`lora_rank`)")
        if "seed" in inspect.signature(super().__init__).parameters:
            kwargs["seed"] = seed
        super().__init__(*args, **kwargs)
        if self.quantization_mode is not None:
            raise _unsupported(type(self).__name__, "a quantized `dtype`")
        self.start_majority(expansion, seed)

    def start_majority(self, expansion: int, seed: int | None) -> None:
        """Sets the state of this class, on a new or a converted layer.

        A layer that has a `seed` of its own keeps it.
        """
        self.expansion = expansion
        self._in_call = InCall(shares_seed="seed" in vars(self))
        if not self._in_call.shares_seed:
            self.seed = seed
        self.mixing_seed_generator = keras.random.SeedGenerator(seed)

    def end_majority(self) -> None:
        """Takes that state away again."""
        added = ["expansion", "mixing_seed_generator", "_in_call"]
        if not self._in_call.shares_seed:
            added.append("seed")
        internals.untrack(self, self.mixing_seed_generator)
        internals.forget_arguments(self, added)
        for name in added:
            delattr(self, name)

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        name = kwargs.get("name")
        if name not in self.kernel_names:
            return super().add_weight(*args, **kwargs)
        # Keras takes these three by position too.
        given = dict(zip(("shape", "initializer", "dtype"), args))
        copies = self._add_copies(**given, **kwargs)
        setattr(self, f"_{name}_copies", copies)
        return copies

    def _add_copies(
        self,
        name: str,
        initializer: Any = "glorot_uniform",
        regularizer: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        if regularizer is not None:
            regularizer = AveragedOverCopies(regularizer, self.expansion)
        return tuple(
            super(MajorityKernel, self).add_weight(
                name=f"{name}_{k}",
                initializer=initializer_of_copy(initializer, k),
                regularizer=regularizer,
                # Copies are mixed in their own dtype and cast afterwards.
                autocast=False,
                **kwargs,
            )
            for k in range(self.expansion)
        )

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        with self._effective_kernels(training):
            return super().call(inputs)

    def rematerialized_call(
        self, layer_call: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Draws before, so that the recomputation mixes as the call did."""
        training = kwargs.get("training")
        state = self._draw() if self._draws(training) else None

        def call(*args: Any) -> Any:
            with self._in_call.drawing(state):
                return layer_call(*args, **kwargs)

        rematerialized = super().rematerialized_call(call, *args, **kwargs)
        # JAX would make tensors of keywords, and TensorFlow's graphs take none.
        return lambda *args, **kwargs: rematerialized(*args)

    @contextmanager
    def _effective_kernels(self, training: bool | None) -> Iterator[None]:
        """The one place where a layer's kernels are chosen for a call."""
        # A layer may call itself.
        before = self._in_call.kernels
        self._in_call.kernels = {
            name: ops.cast(kernel, self.compute_dtype)
            if self.autocast
            else kernel
            for name, kernel in self._choose_kernels(training).items()
        }
        try:
            yield
        finally:
            self._in_call.kernels = before

    def _choose_kernels(self, training: bool | None) -> dict[str, Any]:
        copies = {name: self._copy_values(name) for name in self.kernel_names}
        if self.expansion == 1:
            return {name: mixing.mean(copies[name]) for name in copies}
        state = self._draw() if self._draws(training) else None
        # A frozen layer is right to use its average.
        why = f"it was called with `training={training}`"
        watch = partial(self._warn_never_sampled, why)
        on_gradient = watch if self.trainable else None
        rule = rules.current_rule()
        kernels = {}
        for i, (name, values) in enumerate(copies.items()):
            kernel = rule(self, name, values, _nth_state(state, i))
            if kernel is None:
                kernel = mixing.mean(values, on_gradient)
            kernels[name] = kernel
        return kernels

    def _draws(self, training: bool | None) -> bool:
        if not self.trainable or self.expansion == 1:
            return False
        if training is None or isinstance(training, (bool, int)):
            return bool(training)
        self._refuse_to_be_rematerialized()
        return bool(training)

    def _draw(self) -> Any:
        """The seed state of the mixtures of this call.

        A wrapper may run `call` several times in a step, and another layer
        may read a kernel: they get what was drawn last in the model's call.
        """
        if self._in_call.state is not None:
            return self._in_call.state
        drawn = internals.kept_in_this_call("keras_mk_drawn")
        if self in drawn and not internals.is_called(self):
            return drawn[self]
        self._refuse_to_be_rematerialized()
        drawn[self] = self.mixing_seed_generator.next()
        return drawn[self]

    def _refuse_to_be_rematerialized(self) -> None:
        """The backward pass would call it again, and draw another mixture."""
        around = internals.rematerialized_caller(self)
        if around is not None:
            raise ValueError(
                f"Layer '{self.name}' cannot mix its copies inside of "
                f"'{around.name}', which was made in a `keras.RematScope`: it "
                "would draw other mixtures when the backward pass calls "
                f"'{around.name}' again. Make '{around.name}' outside of the "
                "scope; the majority-kernel layers may be made in it."
            )

    def _kernel_read_outside(self, name: str) -> Any:
        """A kernel for who reads it outside of this layer's `call`.

        The average; but for a layer that is called with `training=True`, and
        multiplies by a kernel of another layer, what that layer would use.
        """
        caller = internals.caller()
        if caller is None or caller is self:
            # As JAX's `fit` calls a model, nothing tells that it is training.
            why = "its kernel is read in the `call` of a model, on JAX"
            watch = partial(self._warn_never_sampled, why)
            on_gradient = watch if internals.in_stateless_call() else None
            return mixing.mean(self._copy_values(name), on_gradient)
        if isinstance(caller, keras.layers.SpectralNormalization):
            raise _unsupported(f"Layer '{self.name}'", "SpectralNormalization")
        training = internals.training_in_this_call()
        return internals.autocast(self._choose_kernels(training)[name])

    def _copy_values(self, name: str) -> list[Any]:
        return [w.value for w in getattr(self, f"{name}s")]

    def _warn_never_sampled(self, why: str) -> None:
        # Once for each reason: a gradient by the inputs, in inference, must
        # not use up the warning of a training.
        if why in self._in_call.warned:
            return
        self._in_call.warned.add(why)
        warnings.warn(
            f"Layer '{self.name}' is being trained on the average of its "
            "copies, without mixing them, so Majority Kernels have no effect: "
            f"{why}. A model's `call()` must take a `training` argument and "
            "pass it on to its layers, and a custom training loop must call "
            "`model(x, training=True)`. (If nothing is being trained, and what "
            "is wanted is a gradient by the inputs, this is right as it is.)",
            stacklevel=2,
        )

    def save_own_variables(self, store: Any) -> None:
        if not self.built:
            return
        for name, variable in self._stored_variables().items():
            store[name] = variable
        state = ops.convert_to_numpy(self.mixing_seed_generator.state)
        store["seed_state"] = state.astype("int64").astype("uint32")

    def load_own_variables(self, store: Any) -> None:
        if not self.built:
            return
        variables = self._stored_variables()
        expected = {*variables, "seed_state"}
        if set(store.keys()) != expected:
            raise ValueError(
                f"Layer '{self.name}' expected the saved variables "
                f"{sorted(expected)}: the copies of its kernels, the other "
                "weights by number, and the seed state. Weights of the plain "
                "architecture are loaded with "
                "`keras_mk.load_plain_weights(model, path)`; a model with "
                "another `expansion` needs to be expanded alike. Received: "
                f"{sorted(store.keys()) or 'the weights of a plain layer'}"
            )
        for name, variable in variables.items():
            variable.assign(store[name])
        state = self.mixing_seed_generator.state
        saved = np.asarray(store["seed_state"]).astype("uint32")
        state.assign(saved.astype(keras.backend.standardize_dtype(state.dtype)))

    def _stored_variables(self) -> dict[str, Any]:
        copies = {
            f"{name}_{k}": variable
            for name in self.kernel_names
            for k, variable in enumerate(getattr(self, f"{name}s"))
        }
        taken = {id(variable) for variable in copies.values()}
        own = internals.own_variables(self)
        others = [variable for variable in own if id(variable) not in taken]
        return {**copies, **{str(i): v for i, v in enumerate(others)}}

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {**config, "expansion": self.expansion, "seed": self.seed}

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        raise _unsupported(f"Layer '{self.name}'", "LoRA")

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        raise _unsupported(f"Layer '{self.name}'", "quantization")


def _nth_state(state: Any, n: int) -> Any:
    if n == 0 or state is None:
        return state
    offset = np.array([n * _KERNEL_STRIDE & 0x7FFFFFFF, 0])
    return state + ops.convert_to_tensor(offset, dtype=state.dtype)


def extended_signature(cls: type) -> inspect.Signature:
    """The signature of the Keras layer with `expansion` and `seed` added."""
    base = next(b for b in cls.__mro__ if b.__module__.startswith("keras."))
    parameters = dict(inspect.signature(base).parameters)
    mine = inspect.signature(MajorityKernel.__init__).parameters
    added = {name: mine[name] for name in ("expansion", "seed")}
    rest = parameters.pop("kwargs", None)
    parameters = {**parameters, **added}
    if rest is not None:
        parameters["kwargs"] = rest
    return inspect.Signature(list(parameters.values()))


def _unsupported(who: str, what: str) -> ValueError:
    return ValueError(
        f"{who} does not support {what}: it would change one kernel, and a "
        "majority-kernel layer trains several copies of it. Collapse the model "
        "to its plain layers first, with `keras_mk.collapse(model)`."
    )
