"""Every state of a model is kept by everything that makes another of it.

A plain twin of the same description goes the same way without this package:
what plain Keras loses of it is not held against the package.
"""

import copy
from pathlib import Path

import keras
import numpy as np

import keras_mk
from keras_mk.layers import MajorityKernel
from tests.backends import to_numpy
from tests.soaking import build
from tests.soaking import changes
from tests.soaking import wrong
from tests.soaking.classes import CUSTOM_OBJECTS
from tests.soaking.places import places
from tests.soaking.state import differences
from tests.soaking.state import field_of
from tests.soaking.state import state_of
from tests.soaking.state import without_copies
from tests.soaking.wrong import Refused
from tests.soaking.wrong import Wrong


class PlainFails(Exception):
    """The plain network cannot even be called."""


def outputs(model, x):
    found = keras.tree.flatten(model(x, training=False))
    return [np.asarray(to_numpy(y)).astype("float32") for y in found]


def outputs_differ(operation, ours, theirs, tolerance):
    """What to report if two lists of outputs differ."""
    for a, b in zip(ours, theirs, strict=True):
        size = max(1.0, float(np.abs(b).max(initial=0)))
        worst = float(np.abs(a - b).max(initial=0))
        if a.shape != b.shape or not worst <= tolerance * size:
            return [
                Wrong(operation, "outputs", "", f"{worst:.2e} of {size:.2e}")
            ]
    return []


def tolerance_of(model):
    short = any("16" in la.compute_dtype for _, la in places(model))
    return 5e-2 if short else 2e-5


def saved_and_loaded(model, folder, name="model"):
    path = Path(folder) / f"{name}.keras"
    model.save(path)
    return keras.saving.load_model(path)


def attempt(operation, function, *args):
    """What a function returns, or what to report of its error."""
    try:
        with keras.saving.custom_object_scope(CUSTOM_OBJECTS):
            return function(*args), []
    except Exception as error:
        return None, [wrong.of_error(operation, error)]


def expanded(plain, expansion, twin, folder):
    """The model with majority kernels, or what to report.

    Raises `Refused` if the package refuses it, unless the reason it gives
    is that Keras cannot save and load a model that Keras can.
    """
    try:
        with keras.saving.custom_object_scope(CUSTOM_OBJECTS):
            return keras_mk.expand(plain, expansion, seed=3), []
    except Exception as error:
        if not wrong.is_ours(error):
            return None, [wrong.of_error("expand", error)]
        if "cannot be copied" in str(error):
            _, failed = attempt("save", saved_and_loaded, twin, folder, "twin")
            if not failed:
                return None, [wrong.of_error("expand", error)]
        raise Refused(str(error)) from error


def make(spec):
    """A network as it is when it is given to `expand`."""
    model = build.build(spec)
    x = build.inputs()
    for item in spec["before"]:
        _change(model, item, x)
    _plain_outputs(model, x)
    return model


def _plain_outputs(model, x):
    try:
        return outputs(model, x)
    except Exception as error:
        raise PlainFails(f"{type(error).__name__}: {error}") from error


def _change(model, item, x):
    """Makes a change; tells whether plain Keras could.

    Some layers have nothing to change, and LoRA refuses some.
    """
    try:
        changes.change(model, item, x)
    except (changes.NotHere, ValueError):
        return False
    return True


def check(spec, folder, export=False):
    """Everything that is wrong with one network. Raises `Refused`."""
    x = build.inputs()
    plain, twin = make(spec), make(spec)
    given = state_of(plain)
    model, wrongs = expanded(plain, spec["expansion"], twin, folder)
    if model is None:
        return wrongs
    state = state_of(model)
    wrongs += compared("expand", given, state)
    wrongs += compared("expand, of the given model", given, state_of(plain))
    tolerance = tolerance_of(plain)
    wrongs += outputs_differ(
        "expand", outputs(model, x), outputs(plain, x), tolerance
    )
    lost = differences(given, state)
    wrongs += _changed_alike(spec, model, twin, x, lost)
    for operation, function in (
        ("save and load", saved_and_loaded),
        ("deepcopy", lambda model, folder: copy.deepcopy(model)),
    ):
        wrongs += _again(operation, function, model, twin, folder, x)
    return wrongs + _collapsed(model, twin, folder, x, export)


def compared(operation, before, after, tolerance=0.0):
    found = differences(before, after, tolerance)
    return wrong.of_differences(operation, found, (before, after))


def _changed_alike(spec, model, twin, x, lost):
    """Changes both; what is changed must then be the same in both.

    What `expand` has lost is reported already.
    """
    operation = "change after expand"
    names = {}
    for item in spec["after"]:
        if not _change(twin, item, x):
            continue
        names[item["change"]] = None
        try:
            changes.change(model, item, x)
        except Exception as error:
            return [wrong.of_error(f"{operation}, {item['change']}", error)]
    expected = _plain_outputs(twin, x)
    found = differences(state_of(twin), state_of(model), 1e-6)
    # Not names, which Keras makes up anew for the twin; and BatchNorm has
    # seen other values where a call in training mixes.
    loose = {"name"} | ({"value"} if "forward" in names else set())
    found = {
        key: value
        for key, value in found.items()
        if field_of(key).rpartition(".")[2] not in loose and key not in lost
    }
    wrongs = wrong.of_differences(
        operation, found, (state_of(twin), state_of(model))
    )
    if "forward" not in names and not wrongs and not lost:
        tolerance = tolerance_of(twin)
        wrongs += outputs_differ(
            operation, outputs(model, x), expected, tolerance
        )
    return wrongs


def _again(operation, function, model, twin, folder, x):
    """A model made once more by Keras; and its plain twin likewise."""
    control, failed = attempt(operation, function, twin, folder)
    if failed:
        return []
    result, wrongs = attempt(operation, function, model, folder)
    if wrongs:
        return wrongs
    lost = _lost(twin, control)
    before, after = state_of(model, True), state_of(result, True)
    found = differences(before, after)
    found = {k: v for k, v in found.items() if k not in lost}
    wrongs = wrong.of_differences(operation, found, (before, after))
    tolerance = tolerance_of(twin)
    if not outputs_differ("", outputs(control, x), outputs(twin, x), tolerance):
        wrongs += outputs_differ(
            operation, outputs(result, x), outputs(model, x), tolerance
        )
    return wrongs


def _lost(before, after):
    return differences(state_of(before), state_of(after))


def _collapsed(model, twin, folder, x, export):
    plain, wrongs = attempt("collapse", keras_mk.collapse, model)
    if wrongs:
        return wrongs
    before = without_copies(state_of(model))
    wrongs = compared("collapse", before, state_of(plain), 1e-6)
    if any(isinstance(layer, MajorityKernel) for _, layer in places(plain)):
        wrongs.append(Wrong("collapse", "majority kernels are left", "", ""))
    tolerance = tolerance_of(twin)
    expected = outputs(model, x)
    wrongs += outputs_differ("collapse", outputs(plain, x), expected, tolerance)
    if export:
        wrongs += _exported(model, twin, folder, expected, x)
    return wrongs


def _exported(model, twin, folder, expected, x):
    control, failed = attempt("save", saved_and_loaded, twin, folder, "twin")
    if failed:
        return []

    def exported(model, folder):
        path = Path(folder) / "exported.keras"
        keras_mk.export_collapsed(
            model, path, format="keras", verify=False, overwrite=True
        )
        return keras.saving.load_model(path)

    result, wrongs = attempt("export", exported, model, folder)
    if wrongs:
        return wrongs
    before, after = without_copies(state_of(model)), state_of(result)
    lost = _lost(twin, control)
    found = differences(before, after, 1e-6)
    found = {k: v for k, v in found.items() if k not in lost}
    wrongs = wrong.of_differences("export", found, (before, after))
    if not outputs_differ("", outputs(control, x), outputs(twin, x), 1e-5):
        wrongs += outputs_differ(
            "export", outputs(result, x), expected, tolerance_of(twin)
        )
    return wrongs
