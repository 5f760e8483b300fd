"""What `keras-mk bench WORKLOAD` measures, and where it puts it."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras

from keras_mk.bench import expand
from keras_mk.bench import infer
from keras_mk.bench import memory
from keras_mk.bench import reports
from keras_mk.bench import sampling
from keras_mk.bench import steps as training
from keras_mk.bench import variants
from keras_mk.bench import workloads

DEFAULT_VARIANTS = ("plain", "floor", "mk", "log(uniform)", "gamma")


def run(args: Any) -> None:
    """Runs a benchmark as the command line asks for it."""
    jit = "auto" if args.jit == "auto" else args.jit == "on"
    folder = Path(args.output_dir)
    if args.workload == "expand":
        _check("--models", args.models, expand.MODELS)
        expand.run(args.models, args.expansion[0], args.rounds, folder)
        return
    if args.workload == "sampling":
        widths = tuple(args.width or sampling.WIDTHS)
        rows = [
            row
            for expansion in args.expansion
            for row in sampling.measure(
                expansion, widths, args.rounds, args.steps
            )
        ]
    elif args.workload == "infer":
        rows = [
            row
            for name in args.models
            for workload in workloads.find(name)[:1]
            for batch in args.batch or workload.batches
            for row in infer.measure(
                workload, batch, args.expansion[0], jit, args.rounds, args.steps
            )
        ]
    else:
        rows = _training(args, jit)
    name = Path(args.workload).stem
    reports.show(rows, f"keras-mk bench {args.workload}")
    reports.write(
        f"bench_{name}_{keras.config.backend()}_jit_{jit}".lower(),
        rows,
        folder,
        rounds=args.rounds,
        steps_per_round=args.steps,
    )


def _training(args: Any, jit: bool | str) -> list[dict[str, Any]]:
    rows = []
    _check("--variants", args.variants or [], variants.NAMES)
    _check("--optimizer", args.optimizer or [], training.OPTIMIZERS)
    for width in args.width or [None]:
        found = workloads.find(args.workload, width)
        for index, workload in enumerate(found):
            names = []
            for name in args.variants or DEFAULT_VARIANTS:
                reason = variants.why_not(name, workload, jit)
                if reason is None:
                    names.append(name)
                else:
                    print(f"Without {name}: {reason}.")
            for batch, expansion, optimizer in itertools.product(
                args.batch or workload.batches,
                args.expansion,
                args.optimizer or workload.optimizers,
            ):
                options = {
                    "batch": batch,
                    "expansion": expansion,
                    "optimizer": optimizer,
                    "dtype": args.dtype,
                    "jit": jit,
                    "feed": args.feed,
                }
                setting = training.Setting(workload, **options)
                measured = training.measure(
                    setting, names, args.rounds, args.steps
                )
                if args.memory:
                    for row in measured:
                        row["peak_mib"] = memory.in_fresh_process(
                            memory.peak_of_training,
                            args.workload,
                            width,
                            index,
                            options,
                            row["variant"],
                        )
                rows += measured
    return rows


def _check(option: str, given: list[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(
            f"`{option}` must be of {list(known)}. Received: {unknown}"
        )
