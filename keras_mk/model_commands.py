"""The commands of `keras-mk` that work on model files."""

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import keras

from keras_mk.collapse import collapse as collapse_model
from keras_mk.expand import expand as expand_model
from keras_mk.export import export_collapsed
from keras_mk.export import runtimes
from keras_mk.export import signature as signatures
from keras_mk.export.formats import FORMATS
from keras_mk.export.place import check_target
from keras_mk.initial_copies import check_copies
from keras_mk.plan import plan
from keras_mk.plan import summarize
from keras_mk.staging import staging


def load(path: str, modules: list[str], safe: bool = True) -> keras.Model:
    """Loads a `.keras` file, after importing the modules of its classes."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file '{path}'.")
    if "" not in sys.path:
        # A console script does not look where it is started.
        sys.path.insert(0, "")
    for module in modules:
        importlib.import_module(module)
    return keras.saving.load_model(path, compile=False, safe_mode=safe)


def inspect(args: Any) -> None:
    found = summarize(load(args.model, args.modules, not args.unsafe))
    if not args.json:
        print(found)
        return
    report = {
        "layers": [dataclasses.asdict(row) for row in found.rows],
        "parameters": found.parameters,
        "optimizer_bytes": found.optimizer_bytes,
    }
    print(json.dumps(report, indent=2))


def expand(args: Any) -> None:
    check_copies(args.copies, args.scale)
    target = Path(args.output)
    if not args.dry_run:
        check_target(target, FORMATS["keras"], args.overwrite)
    model = load(args.model, args.modules, not args.unsafe)
    chosen = {
        "include": args.include or None,
        "exclude": args.exclude or None,
    }
    print(plan(model, args.expansion, **chosen))
    if args.dry_run:
        return
    expanded = expand_model(
        model,
        args.expansion,
        copies=args.copies,
        scale=args.scale,
        seed=args.seed,
        **chosen,
    )
    _save(expanded, target)


def collapse(args: Any) -> None:
    target = Path(args.output)
    check_target(target, FORMATS["keras"], args.overwrite)
    model = load(args.model, args.modules, not args.unsafe)
    batch = None
    if args.verify:
        signature = signatures.encoded_signature(model)
        batch = runtimes.fill(
            signature, signatures.random_inputs(signature, batch=3)
        )[0]
    _save(collapse_model(model, verify=batch), target)


def export(args: Any) -> None:
    report = export_collapsed(
        load(args.model, args.modules, not args.unsafe),
        args.output,
        args.format,
        verify=args.verify,
        overwrite=args.overwrite,
        quantize=args.quantize,
        tolerance=args.tolerance,
        modules=args.modules,
    )
    print(report)


def _save(model: keras.Model, target: Path) -> None:
    with staging(target) as folder:
        written = folder / "model.keras"
        model.save(written)
        os.replace(written, target)
    print(f"{target}: {model.count_params():,} parameters")
