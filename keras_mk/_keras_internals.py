"""Everything that touches `keras.src` or a private name of Keras."""

import inspect
import random
from collections.abc import Iterable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import get_autocast_scope
from keras.src.export import export_utils
from keras.src.losses.loss import unscale_loss_for_distribution
from keras.src.models.functional import Functional
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.random.seed_generator import global_seed_generator
from keras.src.saving import object_registration
from keras.src.saving import saving_lib
from keras.src.saving import serialization_lib
from keras.src.trainers import data_adapters
from keras.src.utils import tracking


@contextmanager
def unlocked(layer: Any) -> Iterator[None]:
    """Lets variables be added to a layer that is built already."""
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()


def own_variables(layer: Any) -> list[Any]:
    """The variables that belong to the layer itself, in Keras's order."""
    variables = layer._trainable_variables + layer._non_trainable_variables
    return list(variables)


def variables_to_train(layer: Any) -> list[Any]:
    """Those of the layer itself that are trained unless they are frozen."""
    return list(layer._trainable_variables)


def replace_variables(
    layer: Any, old: tuple[Any, ...], new: tuple[Any, ...]
) -> None:
    """Puts variables just added in the place of others of the same layer.

    The order matters: optimizers save their slots by it.
    """
    variables = layer._trainable_variables
    at = next(i for i, v in enumerate(variables) if v is old[0])
    for variable in old:
        layer._untrack_variable(variable)
    added = {id(variable) for variable in new}
    rest = [v for v in variables if id(v) not in added]
    variables[:] = [*rest[:at], *new, *rest[at:]]


def set_trainable(layer: Any, trainable: bool) -> None:
    """Of the layer itself: not of its variables, nor of layers in it."""
    layer._trainable = trainable


def trainables(layer: Any) -> list[Any]:
    """The layer's own variables that training can change, frozen or not."""
    return list(layer._trainable_variables)


def seed_generators(layer: Any) -> list[Any]:
    return list(layer._seed_generators)


def untrack(layer: Any, value: Any) -> None:
    """Takes a seed generator from a layer."""
    layer._tracker.untrack(value)


def set_path(variable: Any, path: str) -> None:
    """Names a variable by its place in the model, as `build` does."""
    variable._path = path


def forget_attribute(layer: Any, name: str) -> None:
    """Takes an attribute away, also where TensorFlow keeps it alive."""
    vars(layer).pop(name, None)
    if keras.config.backend() == "tensorflow":
        layer._maybe_initialize_trackable()
        kept = layer._self_unconditional_checkpoint_dependencies
        kept[:] = [d for d in kept if d.name != name]
        layer._self_unconditional_dependency_names.pop(name, None)


def forget_arguments(layer: Any, names: Iterable[str]) -> None:
    """Takes arguments from the config that Keras makes of a constructor call.

    It stands for `get_config` on layers that do not define one.
    """
    config = getattr(layer, "_auto_config", None)
    if config is not None:
        for name in names:
            config.config.pop(name, None)


def change_class(layer: Any, cls: type) -> None:
    """Makes a layer an instance of another class, in place."""
    layer.__class__ = cls
    signature = inspect.signature(layer.call)
    names = list(signature.parameters)
    layer._call_signature = signature
    layer.call_signature_parameters = names
    layer._call_has_training_arg = "training" in names
    layer._call_has_mask_arg = "mask" in names
    layer._call_has_context_arg = {
        name: name in names for name in layer._call_context_args
    }


def refresh_tracking(model: Any) -> None:
    """torch keeps parameters a second time, in each layer that holds them."""
    if keras.config.backend() != "torch":
        return
    for layer in model._flatten_layers():
        layer._track_variables()
        if isinstance(layer, keras.Sequential) and layer._functional:
            layer._functional._track_variables()


def sublayers(layer: Any) -> list[Any]:
    return list(layer._layers)


def flatten_layers(layer: Any) -> list[Any]:
    """The layer and all layers below it, each once."""
    return list(layer._flatten_layers())


def is_container(layer: Any) -> bool:
    """Whether the layer is a Sequential or Functional model."""
    return isinstance(layer, (Functional, keras.Sequential))


def shows_its_layers(layer: Any) -> bool:
    """Whether the layer's config holds the configs of its sublayers."""
    if type(layer) in (Functional, keras.Sequential, keras.Model):
        return is_container(layer)
    wrappers = (keras.layers.TimeDistributed, keras.layers.Bidirectional)
    return type(layer) in wrappers


def caller() -> Any:
    """The layer whose `__call__` or `build` this runs in, or `None`."""
    scopes = global_state.get_global_attribute("name_scope_stack")
    return scopes[-1].caller if scopes else None


def is_called(layer: Any) -> bool:
    """Whether the layer's `call` runs within its own `__call__`."""
    return caller() is layer


def rematerialized_caller(layer: Any) -> Any:
    """The layer around this one that is called again for its gradient."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    for scope in scopes:
        around = scope.caller
        if around is layer or not isinstance(around, keras.layers.Layer):
            continue
        mode = around._remat_mode
        if mode is None or mode.mode in (None, "activations"):
            continue
        if mode.mode != "list_of_layers" or around.name in mode.layer_names:
            return around
    return None


def in_stateless_call() -> bool:
    """Whether values are those of a stateless call, and no variable's."""
    return bool(in_stateless_scope()) and not in_symbolic_scope()


def kept_in_this_call(name: str) -> dict[Any, Any]:
    """A dict that lives as long as the outermost layer's `__call__`.

    Outside of one, and where Keras only looks for shapes, it is a new one.
    """
    context = global_state.get_global_attribute("current_call_ctx")
    if context is None or in_symbolic_scope():
        return {}
    kept: dict[Any, Any] = vars(context).setdefault(name, {})
    return kept


def training_in_this_call() -> bool | None:
    """The `training` that a layer called now would be given."""
    context = global_state.get_global_attribute("current_call_ctx")
    return None if context is None else context.get_value("training")


def autocast(value: Any) -> Any:
    """Casts as Keras casts a variable that is read in this place."""
    scope = get_autocast_scope()
    return value if scope is None else scope.maybe_cast(value)


def saved_children(layer: Any) -> Iterator[tuple[str, Any]]:
    """Attributes in the order in which Keras saves them, on any backend."""
    yield from saving_lib._walk_saveable(layer)


def config_as(layer: Any, cls: type) -> dict[str, Any]:
    """What Keras would save of a layer if it were of another class.

    Without what `compile` was told, which may hold what cannot be saved.
    """
    view: Any = object.__new__(cls)
    vars(view).update(vars(layer), compiled=False)
    inner = serialization_lib.serialize_dict(view.get_config())
    config = serialization_lib.serialize_with_public_class(cls, inner) or {
        "module": cls.__module__,
        "class_name": cls.__name__,
        "config": inner,
        "registered_name": object_registration.get_registered_name(cls),
    }
    serialization_lib.get_build_and_compile_config(view, config)
    found: dict[str, Any] = config
    return found


@contextmanager
def sharing_objects() -> Iterator[None]:
    """Serialises what is shared as shared, and revives it so."""
    with serialization_lib.ObjectSharingScope():
        yield


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Leaves the global state, which layers draw seeds from, as it was."""
    python, legacy = random.getstate(), np.random.get_state()
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    state = None if generator is None else ops.convert_to_numpy(generator.state)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        if generator is not None:
            generator.state.assign(state)
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)


def set_random_state(seed: int) -> None:
    """Sets the global generators, but TensorFlow's.

    That is read where a graph or a data set is made, which is no sooner.
    """
    # Not another one: graphs that are compiled already draw from it.
    generator = global_seed_generator()
    generator.state.assign([seed, 0])
    random.seed(seed)
    np.random.seed(seed)
    set_torch_random_state(seed)


def set_torch_random_state(seed: int) -> None:
    """On torch, whose Dropout draws from it; elsewhere nothing."""
    if keras.config.backend() == "torch":
        import torch

        torch.manual_seed(seed)


def tensorflow_seed() -> int | None:
    """The global seed of TensorFlow, on it; elsewhere `None`."""
    if keras.config.backend() != "tensorflow":
        return None
    import tensorflow as tf

    # There is no function for it, but every graph has it.
    function = tf.function(lambda: None).get_concrete_function()
    seed: int | None = function.graph.seed
    return seed


def start_fit_at(model: Any, epoch: int | None) -> None:
    """Overrules the `initial_epoch` of a `fit` that is about to begin."""
    model._initial_epoch = epoch


def register_alias(cls: type, registered_name: str) -> None:
    """Saves instances of a class under a name that revives another class."""
    object_registration.GLOBAL_CUSTOM_NAMES[cls] = registered_name


class _MemoryStore(saving_lib.NpzIOStore):
    """What a weights file holds, without the file."""

    def __init__(self) -> None:
        self.contents: dict[str, _Entry] = {}

    def make(self, path: str, metadata: Any = None) -> "_Entry":
        return self.contents.setdefault(path, _Entry())

    def get(self, path: str) -> "_Entry":
        return self.contents.get(path, _Entry())

    def has_path(self, path: str) -> bool:
        inside = f"{path}/"
        return any(p == path or p.startswith(inside) for p in self.contents)


class _Entry(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        value = ops.convert_to_numpy(value)
        if keras.config.backend() == "jax":
            # `assign` copies elsewhere; JAX may keep what it is given.
            value = np.array(value)
        super().__setitem__(key, value)


def transfer_state(source: Any, target: Any) -> None:
    """Gives a model the weights and vocabularies of another.

    As `save_weights` and `load_weights` do, but with the vocabularies, and
    whatever optimizer there is.
    """
    weights = _MemoryStore()
    assets = saving_lib.DiskIOStore("assets", mode="w")
    try:
        saving_lib._save_state(
            source, weights, assets, "", visited_saveables=set()
        )
        saved = saving_lib.DiskIOStore(assets.working_dir, mode="r")
        saving_lib._load_state(
            target, weights, saved, "", visited_saveables=set()
        )
    finally:
        assets.close()


def give_names(source: Any, target: Any) -> None:
    """Gives a layer and its variables the names and paths of another."""
    target.name, target._path = source.name, source._path
    target._parent_path = source._parent_path
    for variable, copy in zip(own_variables(source), own_variables(target)):
        copy._name, copy._path = variable.name, variable._path


def give_dtype_policy(source: Any, target: Any) -> None:
    if target._dtype_policy != source._dtype_policy:
        target._dtype_policy = source._dtype_policy


def preprocessor_of(model: Any) -> Any:
    """The preprocessor of a KerasHub task, or `None`."""
    classes = type(model).__mro__
    if not any(cls.__module__.startswith("keras_hub.") for cls in classes):
        # An attribute of that name is anything.
        return None
    return getattr(model, "preprocessor", None)


def share_preprocessor(source: Any, target: Any) -> None:
    """Gives a KerasHub task the preprocessor of another.

    It holds no weights, and KerasHub does not keep all of it in a config.
    """
    if preprocessor_of(source) is not None:
        with tracking.DotNotTrackScope():
            target.preprocessor = source.preprocessor


def uncompile(model: Any) -> None:
    """Forgets what `compile` was told; KerasHub tasks compile themselves."""
    model.compiled = False
    for name in ("_compile_config", "optimizer"):
        # As on a model that never was compiled, which has none.
        forget_attribute(model, name)
    model.train_function = None
    model.test_function = None
    model.predict_function = None


def synchronize(model: Any) -> None:
    """On JAX, `fit` holds the state of a model until it is asked for."""
    if keras.config.backend() == "jax":
        model.jax_state_sync()


def build_for_fit(model: Any, batch: Any) -> None:
    """Makes the variables that `fit` would make before its first step."""
    model._symbolic_build(data_batch=batch)


def compute_loss(
    model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any
) -> Any:
    """The loss in training, as Keras's own training step computes it."""
    return model._compute_loss(
        x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
    )


def update_loss(model: Any, loss: Any, x: Any) -> None:
    """Counts a batch in the loss that `fit` reports."""
    model._loss_tracker.update_state(
        unscale_loss_for_distribution(loss),
        sample_weight=ops.shape(keras.tree.flatten(x)[0])[0],
    )


def update_metrics(model: Any, *args: Any) -> Any:
    """On JAX, the logs and the metrics' variables after a batch."""
    return model._update_metrics_variables(*args)


def batches_of(
    data: Any, batch_size: int | None = None
) -> tuple[int | None, Iterator[Any]]:
    """The batches of anything that `fit` takes, as numpy arrays.

    With their number, where it is known.
    """
    adapter = data_adapters.get_data_adapter(x=data, batch_size=batch_size)
    return adapter.num_batches, iter(adapter.get_numpy_iterator())


def input_signature(model: Any) -> Any:
    """What a model is called with, one structure per argument."""
    if is_container(model):
        return export_utils.get_input_signature(model)
    # Keras would want a model that has been called, and copies have not been.
    signature = export_utils._infer_input_signature_from_model(model)
    if not signature:
        raise ValueError(
            f"The inputs of model '{model.name}' are not known. Give an "
            "`input_signature`."
        )
    return signature
