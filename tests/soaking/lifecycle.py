"""A network from `expand` through training, saving and resuming to `collapse`.

The plain network goes the same way: that is the control.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

import keras_mk
from keras_mk.layers import MajorityKernel
from tests.backends import BACKEND
from tests.backends import to_numpy
from tests.soaking import kept
from tests.soaking import wrong
from tests.soaking.places import places
from tests.soaking.state import MAJORITY
from tests.soaking.state import differences
from tests.soaking.state import field_of
from tests.soaking.state import groups
from tests.soaking.state import own_class
from tests.soaking.state import state_of
from tests.soaking.wrong import Wrong

STEPS = 2
FIT, RESUME = "fit", "save, load and resume"
# What has no plain counterpart and therefore no control.
NOT_THERE = "majority"
UNMOVED = "trainable, does not move"


@dataclass
class Case:
    """A network and how to train it; `make` makes an equal one each time."""

    make: Callable[[], Any]
    inputs: Any
    expansion: int = 2
    optimizer: str = "adam"
    options: tuple[tuple[str, Any], ...] = ()


def run(case, folder):
    """What is wrong with majority kernels, and what in plain Keras too.

    The control is run only where something is wrong.
    """
    plain = case.make()
    given = state_of(plain)
    model, wrongs = kept.expanded(plain, case.expansion, plain, folder)
    if model is not None:
        state = state_of(model)
        lost = differences(given, state)
        wrongs += kept.compared("expand", given, state)
        wrongs += _outputs("expand", case, model, plain)
        wrongs += _trained_and_resumed(case, model, folder)
        wrongs += _collapsed(case, model, given, lost)
    if not wrongs:
        return [], []
    control = _trained_and_resumed(case, case.make(), folder)
    theirs = [w for w in wrongs if _plain_too(w, control)]
    wrongs = [w for w in wrongs if w not in theirs]
    # Some weights get no gradient in any network of this architecture.
    return wrongs, [w for w in theirs if w.what != UNMOVED]


def _plain_too(found, control):
    """Whether the control has it as well, or did not come so far."""
    if found.what.startswith((MAJORITY, NOT_THERE)):
        return False
    failed = {w.operation for w in control if w.what.startswith("raises")}
    if FIT in failed and found.operation.startswith((FIT, RESUME)):
        return True
    if RESUME in failed and found.operation.startswith(RESUME):
        return True
    key = (found.operation, found.what, found.where)
    return any(key == (w.operation, w.what, w.where) for w in control)


def _outputs(operation, case, ours, theirs):
    both = [kept.outputs(model, case.inputs) for model in (ours, theirs)]
    return kept.outputs_differ(operation, *both, kept.tolerance_of(theirs))


def _trained_and_resumed(case, model, folder):
    wrongs = []
    for operation, step in ((FIT, _fit), (RESUME, _resume)):
        found, errors = kept.attempt(operation, step, case, model, folder)
        wrongs += errors or found
        if errors:
            break
    return wrongs


def _targets(case, model):
    """Noise in the shape of the outputs."""
    random = np.random.default_rng(2)
    return keras.tree.map_structure(
        lambda y: random.normal(size=y.shape).astype("float32"),
        model(case.inputs, training=False),
    )


def _losses(case, model, targets):
    sizes = {len(a) for a in keras.tree.flatten((case.inputs, targets))}
    if len(sizes) > 1:
        # Some outputs have no batch axis, which `fit` wants.
        step = model.train_on_batch
        return [float(np.sum(step(case.inputs, targets))) for _ in range(STEPS)]
    size = sizes.pop()
    history = model.fit(
        case.inputs,
        targets,
        batch_size=size,
        epochs=STEPS,
        shuffle=False,
        verbose=0,
    )
    return history.history["loss"]


def _fit(case, model, folder):
    """What is frozen must not move, and what is not must."""
    optimizer = keras.optimizers.get(case.optimizer)
    model.compile(optimizer, "mse", **dict(case.options))
    targets = _targets(case, model)
    before, counts = _values(model), _draws(model)
    losses = _losses(case, model, targets)
    wrongs = []
    if not np.all(np.isfinite(losses)):
        return [Wrong(FIT, "loss is not finite", "", str(losses))]
    after, moved = _values(model), set()
    layers = [layer for _, layer in places(model)]
    trained = {id(v) for layer in layers for v in layer._trainable_variables}
    for path, layer in places(model):
        kind = own_class(layer).__name__
        for name, variables in groups(layer).items():
            key = f"{path}:{name}"
            changed = not all(
                np.array_equal(a, b) for a, b in zip(before[key], after[key])
            )
            if changed:
                moved.add(path)
            able = {bool(v.trainable) for v in variables}
            if id(variables[0]) not in trained:
                able = {True} if layer.trainable else {False}
                if not changed:
                    continue
            if able == {changed}:
                continue
            what = "frozen, moves" if changed else UNMOVED
            wrongs.append(Wrong(FIT, what, f"{key} ({kind})", ""))
    return wrongs + _mixed(model, counts, moved)


def _values(model):
    return {
        f"{path}:{name}": [np.array(to_numpy(v)) for v in variables]
        for path, layer in places(model)
        for name, variables in groups(layer).items()
    }


def _draws(model):
    return {
        path: int(to_numpy(layer.mixing_seed_generator.state)[1])
        for path, layer in places(model)
        if isinstance(layer, MajorityKernel)
        and layer.trainable
        and layer.expansion > 1
    }


def _mixed(model, before, moved):
    """Layers that train must have mixed their copies, once a step."""
    after, kinds = _draws(model), dict(places(model))
    wrongs = []
    for path, count in before.items():
        drawn = after[path] - count
        parent = kinds.get(path.rpartition("/")[0])
        per_step = isinstance(parent, keras.layers.TimeDistributed)
        kind = own_class(kinds[path]).__name__
        if drawn == 0 and path in moved:
            what = f"{NOT_THERE}: trained without being mixed"
        elif per_step and drawn > STEPS:
            what = f"{NOT_THERE}: draws at each time step"
        else:
            continue
        wrongs.append(Wrong(FIT, what, f"{path} ({kind})", f"{drawn} draws"))
    return wrongs


def _resume(case, model, folder):
    """What is loaded must be the same, and go on in the same way."""
    operation = RESUME
    loaded = kept.saved_and_loaded(model, folder)
    before, after = _whole_state(model), _whole_state(loaded)
    found = differences(before, after)
    wrongs = _apart_from_made_up_names(
        wrong.of_differences(operation, found, (before, after))
    )
    wrongs += _outputs(operation, case, loaded, model)
    lost = {field_of(key).rpartition(".")[2] for key in found} - {"name"}
    if lost or _unsaved_seeds(model):
        return wrongs
    targets = _targets(case, model)
    ours, theirs = _losses(case, loaded, targets), _losses(case, model, targets)
    if not np.allclose(ours, theirs, rtol=1e-5, atol=0):
        text = f"{theirs} -> {ours}"
        return [*wrongs, Wrong(operation, "losses after resuming", "", text)]
    if _adds_up_in_any_order(model):
        return wrongs
    before, after = _whole_state(model), _whole_state(loaded)
    found = {
        key: value
        for key, value in differences(before, after).items()
        if not key.endswith("name")
    }
    operation = f"{operation}, after more steps"
    return wrongs + wrong.of_differences(operation, found, (before, after))


def _apart_from_made_up_names(wrongs):
    """Keras makes up names anew when it loads, also those of the slots."""
    made_up = ("automatic name", "optimizer..name")
    return [w for w in wrongs if w.what not in made_up]


def _adds_up_in_any_order(model):
    """On torch the gradient of a table of embeddings is not reproducible."""
    return BACKEND == "torch" and any(
        "Embed" in type(layer).__name__ for _, layer in places(model)
    )


def _unsaved_seeds(model):
    """Whether a layer draws what Keras does not save."""
    for _, layer in places(model):
        generators = getattr(layer, "_seed_generators", [])
        own = getattr(layer, "mixing_seed_generator", None)
        majority = isinstance(layer, MajorityKernel)
        if any(not majority or g is not own for g in generators):
            return True
    return False


def _whole_state(model):
    state = state_of(model, copies=True)
    # Fresh seeds of what Keras does not save are Keras's own.
    state = {k: v for k, v in state.items() if "generator." not in k}
    if getattr(model, "compiled", False) and model.optimizer is not None:
        state[":optimizer"] = type(model.optimizer).__name__
        for i, variable in enumerate(model.optimizer.variables):
            state[f":optimizer.{i}.name"] = variable.name
            state[f":optimizer.{i}"] = np.array(to_numpy(variable))
    return state


def _collapsed(case, model, given, lost):
    """It is the network that was given, with the weights that are trained.

    What `expand` has lost is reported already.
    """
    operation = "collapse"
    plain, wrongs = kept.attempt(operation, keras_mk.collapse, model)
    if wrongs:
        return wrongs
    wrongs = _outputs(operation, case, plain, model)
    now = state_of(plain)
    found = {
        key: value
        for key, value in differences(given, now).items()
        if not key.endswith(".value")
        and "generator." not in key
        and key not in lost
    }
    return wrongs + wrong.of_differences(operation, found, (given, now))
