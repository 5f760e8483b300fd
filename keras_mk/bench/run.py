"""What `keras-mk bench WORKLOAD` measures, and where it puts it."""

import itertools
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from keras_mk.bench import cases
from keras_mk.bench import charts
from keras_mk.bench import compile as compiling
from keras_mk.bench import expand
from keras_mk.bench import growth
from keras_mk.bench import infer
from keras_mk.bench import memory
from keras_mk.bench import reports
from keras_mk.bench import sampling
from keras_mk.bench import steps as training
from keras_mk.bench import variants
from keras_mk.bench import workloads

Rows = list[dict[str, Any]]

DEFAULT_VARIANTS = ("plain", "floor", "mk", "log(uniform)", "gamma")


def run(args: Any) -> None:
    """Runs a benchmark as the command line asks for it.

    What is measured is written as it comes, so that a run that is stopped
    leaves what it had.
    """
    folder = Path(args.output_dir)
    _require_writable(folder)
    _warn_if_busy()
    if args.workload == "expand":
        models = args.models or list(expand.MODELS)
        _check("--models", models, expand.MODELS)
        expand.run(models, args.expansion[0], args.rounds, folder)
        return
    compiled = args.workload == "compile"
    draw = charts.curves if args.workload == "growth" else charts.bars
    rows: Rows = []
    for measured in MEASURES.get(args.workload, _training)(args):
        rows += measured
        written = reports.write(
            _name(args),
            rows,
            folder,
            None if compiled else draw,
            rounds=args.rounds,
            steps_per_round=args.steps,
        )
    if rows:
        reports.show(
            rows,
            f"keras-mk bench {args.workload}",
            reports.COMPILED if compiled else reports.TIMES,
        )
        print(f"Written: {', '.join(map(str, written))}")


def _require_writable(folder: Path) -> None:
    existing = next(
        p for p in (folder, *folder.absolute().parents) if p.exists()
    )
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise PermissionError(
            "`--output-dir` must be a folder that can be written to. "
            f"Received: {folder}"
        )


def _name(args: Any) -> str:
    """A file's name that tells the runs of different settings apart."""
    parts = ["bench", Path(args.workload).stem, keras.config.backend()]
    if args.workload == "compile":
        return "_".join([*parts, *args.target])
    parts += ["jit", str(_jit(args))]
    parts += [args.feed] * (args.feed != "step")
    parts += [args.dtype] * (args.dtype != "float32")
    return "_".join(parts).lower()


def _jit(args: Any) -> bool | str:
    return "auto" if args.jit == "auto" else args.jit == "on"


def _warn_if_busy() -> None:
    """Figures taken beside other work are worth little."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        print(
            f"The machine is busy: its load was {load:.1f} on {cores} cores "
            "over the last minute. Look at the quartiles."
        )


def _sampling(args: Any) -> Iterator[Rows]:
    widths = tuple(args.width or sampling.WIDTHS)
    for expansion in args.expansion:
        yield sampling.measure(expansion, widths, args.rounds, args.steps)


def _infer(args: Any) -> Iterator[Rows]:
    found = [
        workload
        for name in args.models or ["resnet50", "t5"]
        for workload in workloads.find(name)[:1]
    ]
    for workload in found:
        for batch in args.batch or workload.batches:
            yield infer.measure(
                workload,
                batch,
                args.expansion[0],
                _jit(args),
                args.rounds,
                args.steps,
            )


def _growth(args: Any) -> Iterator[Rows]:
    optimizer = (args.optimizer or ["sgd"])[0]
    _check("--optimizer", [optimizer], growth.SLOTS)
    sweeps = dict(growth.SWEEPS)
    for sweep, given in (("width", args.width), ("batch", args.batch)):
        if given:
            sweeps[sweep] = tuple(given)
    return growth.measure(
        sweeps, optimizer, args.dtype, _jit(args), args.rounds, args.steps
    )


def _compile(args: Any) -> Iterator[Rows]:
    names = args.variants or ["plain", "floor", "mk"]
    _check("--target", args.target, compiling.TARGETS)
    _check("--variants", names, ["plain", *variants.CHOICES])
    if keras.config.backend() != "jax":
        raise ValueError(
            "`compile` needs the JAX backend: only it can compile for a "
            "device that is not there. Use `--backend jax`. Received: "
            f"{keras.config.backend()}"
        )
    compiling.prepare(args.target)
    found = [
        workload
        for name in args.models or ["layers", "a3"]
        for workload in cases.find(name)
    ]
    for target in args.target:
        reason = compiling.why_not(target)
        if reason is not None:
            print(f"Skipped {target}: {reason}.")
            continue
        for workload in found:
            for setting in _settings(args, workload):
                yield compiling.measure(setting, names, target)


def _settings(
    args: Any, workload: workloads.Workload
) -> Iterator[training.Setting]:
    for batch, expansion, optimizer in itertools.product(
        args.batch or workload.batches,
        args.expansion,
        args.optimizer or workload.optimizers,
    ):
        yield training.Setting(
            workload=workload,
            batch=batch,
            expansion=expansion,
            optimizer=optimizer,
            dtype=args.dtype,
            jit=_jit(args),
            feed=args.feed,
        )


def _training(args: Any) -> Iterator[Rows]:
    _check("--variants", args.variants or [], variants.NAMES)
    _check("--optimizer", args.optimizer or [], training.OPTIMIZERS)
    for width in args.width or [None]:
        found = workloads.find(args.workload, width)
        for index, workload in enumerate(found):
            names = _possible(args, workload)
            for setting in _settings(args, workload):
                rows = training.measure(setting, names, args.rounds, args.steps)
                for row in rows if args.memory else []:
                    row["peak_mib"] = memory.in_fresh_process(
                        memory.peak_of_training,
                        args.workload,
                        width,
                        index,
                        setting.options(),
                        row["variant"],
                    )
                yield rows


def _possible(args: Any, workload: workloads.Workload) -> list[str]:
    """The variants that can be measured; says which cannot, and why."""
    names = []
    for name in args.variants or DEFAULT_VARIANTS:
        reason = variants.why_not(name, workload, _jit(args))
        if reason is None:
            names.append(name)
        else:
            print(f"Without {name}: {reason}.")
    return names


def _check(option: str, given: list[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(
            f"`{option}` must be of {list(known)}. Received: {unknown}"
        )


MEASURES: dict[str, Callable[[Any], Iterator[Rows]]] = {
    "sampling": _sampling,
    "infer": _infer,
    "growth": _growth,
    "compile": _compile,
}
