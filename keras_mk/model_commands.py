"""The commands of `keras-mk` that work on model files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import keras

from keras_mk.collapse import collapse as collapse_model
from keras_mk.expand import expand as expand_model
from keras_mk.export import export_collapsed
from keras_mk.export import runtimes
from keras_mk.export import signature as signatures
from keras_mk.export.formats import FORMATS
from keras_mk.export.formats import format_of
from keras_mk.export.place import check_target
from keras_mk.export.place import move_into_place
from keras_mk.initial_copies import check_copies
from keras_mk.load import load
from keras_mk.plan import plan
from keras_mk.plan import summarize
from keras_mk.staging import staging


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
    if not args.dry_run:
        check_target(Path(args.output), FORMATS["keras"], args.overwrite)
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
    _save(expanded, args)


def collapse(args: Any) -> None:
    check_target(Path(args.output), FORMATS["keras"], args.overwrite)
    model = load(args.model, args.modules, not args.unsafe)
    batch = None
    if args.verify:
        signature = signatures.encoded_signature(model)
        batch = runtimes.fill(
            signature, signatures.random_inputs(signature, batch=3)
        )[0]
    _save(collapse_model(model, verify=batch), args)


def export(args: Any) -> None:
    format = args.format or format_of(Path(args.output))
    report = export_collapsed(
        load(args.model, args.modules, not args.unsafe),
        args.output,
        format,
        verify=args.verify,
        overwrite=args.overwrite,
        quantize=args.quantize,
        tolerance=args.tolerance,
        modules=args.modules,
    )
    print(report)


def _save(model: keras.Model, args: Any) -> None:
    kind, path = FORMATS["keras"], Path(args.output)
    target = check_target(path, kind, args.overwrite)
    with staging(target) as folder:
        written = folder / "model.keras"
        model.save(written)
        move_into_place(written, target, kind, args.overwrite)
    print(f"{path}: {model.count_params():,} parameters")
