"""The paper's CIFAR-10 table, done again: MLPs with Adam and with SGD.

    python examples/mlp_cifar10.py quick
    python examples/mlp_cifar10.py run --architecture a2 --optimizer adam \
        --method majority --rate 0.00044
    python examples/mlp_cifar10.py study
    python examples/mlp_cifar10.py table

`quick` takes about a minute: every method once on A1, on CIFAR-10 if it is
there and on scikit-learn's digits if not. `run` is one cell of the table.
`study` runs all of them: rates on the paper's grid with the first seed, then
the other seeds with the rate that was best on the validation split; each
finished run is a row of the CSV file, and a study that is stopped goes on
where it was. Several may run at once on one file, each on other architectures
or optimizers. `table` prints the table and draws the curves.

Every network is trained for all epochs, and evaluated as it was after the
epoch that was best on the validation split.

Needs `pip install keras-mk[jax,examples]` (or another backend).
"""

import argparse
import itertools
import json
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import mlp_methods
import mlp_tables
import numpy as np
from bookkeeping import append_row
from bookkeeping import read_rows
from bookkeeping import where
from rich.progress import BarColumn
from rich.progress import MofNCompleteColumn
from rich.progress import Progress
from rich.progress import TextColumn
from rich.progress import TimeElapsedColumn
from rich.progress import TimeRemainingColumn

# The paper's grids: a base times 1.5 ** i for i from -4 to 5.
BASE_RATES = {"adam": 0.001, "sgd": 0.025}
GRID = range(-4, 6)
# What is left open in the paper, as the validation split of A1 and A2 has it.
EPSILON = 100.0
BETA = 0.001
RESULTS = Path(__file__).parent / "results"


# Data: three pairs of arrays, for training, validation and test.


def load_cifar10(data_dir, validation=5000, download=True):
    """CIFAR-10 by tensorflow-datasets, as rows of 3072 numbers."""
    import tensorflow_datasets as tfds

    train, test = tfds.as_numpy(
        tfds.load(
            "cifar10",
            split=["train", "test"],
            data_dir=data_dir,
            download=download,
            batch_size=-1,
            as_supervised=True,
        )
    )
    mean = train[0].mean((0, 1, 2)) / 255
    std = train[0].std((0, 1, 2)) / 255

    def flat(images):
        return ((images / 255 - mean) / std).reshape(len(images), -1)

    x, x_test = (flat(images).astype("float32") for images, _ in (train, test))
    y, y_test = (labels.astype("int32") for _, labels in (train, test))
    return (
        (x[:-validation], y[:-validation]),
        (x[-validation:], y[-validation:]),
        (x_test, y_test),
    )


def load_digits():
    """scikit-learn's digits, which come with it."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order].astype("int32")
    return (
        (x[:1000], y[:1000]),
        (x[1000:1300], y[1000:1300]),
        (x[1300:], y[1300:]),
    )


# Runs: each is a row of the table.


KEY = (
    "dataset",
    "architecture",
    "optimizer",
    "method",
    "rate",
    "seed",
    "epochs",
    "option",
)


def option_of(method, args):
    """What a method has to be told beside its rate."""
    if method == "adv-majority":
        return f"epsilon={args.epsilon:g}"
    if method == "subset":
        return f"beta={args.beta:g} every={args.subset_every}"
    return ""


def run(args, data):
    """One run: a row of the table, and its curves."""
    cell = mlp_methods.Cell(args, data)
    model = mlp_methods.METHODS[args.method](cell)
    args.option = option_of(args.method, args)
    row = {key: str(getattr(args, key)) for key in KEY}
    row |= {
        "validation": round(cell.accuracy(model, cell.validation), 5),
        "test": round(cell.accuracy(model, cell.test), 5),
        "train": round(cell.accuracy(model, cell.train), 5),
        # Of a method that trains several networks there is none.
        "last_validation": round(cell.curves[0]["val_accuracy"][-1], 5)
        if len(cell.curves) == 1
        else "",
        "parameters": model.count_params(),
        "seconds": round(cell.seconds, 1),
        **where(),
    }
    return row, cell.curves


# The study: a CSV file to which each finished run adds a row.


def rate_of(optimizer, step):
    return f"{BASE_RATES[optimizer] * 1.5**step:.6g}"


def beyond(steps, best):
    """The step of the paper's grid after `best`, if that is at an end."""
    steps = sorted(steps)
    width = steps[1] - steps[0] if steps[1:] else 1
    if best == steps[-1] and best + width <= GRID[-1]:
        return best + width
    if best == steps[0] and best - width >= GRID[0]:
        return best - width
    return None


def study(args, data):
    path = Path(args.output)
    combinations = list(
        itertools.product(args.architectures, args.optimizers, args.methods)
    )
    trained = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ) as progress:
        total = sum(
            epochs_of(method, args) * runs_of(method, args)
            for *_, method in combinations
        )
        task = progress.add_task("study", total=total)

        def finish(setting):
            rows = read_rows(path)
            if any(all(row[k] == setting[k] for k in KEY) for row in rows):
                progress.advance(task, epochs_of(setting["method"], args))
                return
            progress.update(task, description=" ".join(setting.values()))
            cell = argparse.Namespace(
                **{**vars(args), **setting},
                tick=lambda: progress.advance(task, 1),
                trained=trained,
            )
            cell.rate, cell.seed = float(cell.rate), int(cell.seed)
            cell.epochs = int(cell.epochs)
            row, curves = run(cell, data)
            append_row(path, {**row, **setting})
            save_curves(path, setting, curves)

        def search(first):
            """Runs the grid, and steps beyond it while an end is best."""
            optimizer, steps = first["optimizer"], list(args.grid)
            for step in steps:
                finish({**first, "rate": rate_of(optimizer, step)})
                if step == steps[-1]:
                    rates = {rate_of(optimizer, s): s for s in steps}
                    rows = [r for r in read_rows(path) if r["rate"] in rates]
                    best = mlp_tables.best_run(rows, first)["rate"]
                    another = beyond(steps, rates[best])
                    if another is not None:
                        steps.append(another)
                        total = progress.tasks[task].total
                        total += epochs_of(first["method"], args)
                        progress.update(task, total=total)
            return best

        for architecture, optimizer, method in combinations:
            if method == args.methods[0]:
                trained.clear()
            setting = {
                "dataset": args.dataset,
                "architecture": architecture,
                "optimizer": optimizer,
                "method": method,
                "epochs": str(args.epochs),
                "option": option_of(method, args),
            }
            first = {**setting, "seed": str(args.seeds[0])}
            if method in args.search:
                rate = search(first)
            else:
                source = {
                    **first,
                    "method": mlp_methods.RATE_OF.get(method, "baseline"),
                }
                source["option"] = ""
                rate = mlp_tables.best_run(read_rows(path), source)["rate"]
            for seed in args.seeds:
                finish({**setting, "seed": str(seed), "rate": rate})


def epochs_of(method, args):
    return int(mlp_methods.EPOCHS.get(method, 1) * args.epochs)


def runs_of(method, args):
    searched = len(args.grid) if method in args.search else 0
    return len(args.seeds) + searched


def save_curves(path, setting, curves):
    """Beside the table, what it needs to draw plain against majority."""
    if setting["method"] in ("baseline", "majority"):
        line = json.dumps({**setting, "curves": curves[0]})
        with open(path.with_suffix(".curves.jsonl"), "a") as file:
            file.write(line + "\n")


def quick(args):
    """Every method once, in about a minute."""
    try:
        # A download would take longer than the rest.
        train, validation, test = load_cifar10(args.data_dir, download=False)
        data = (tuple(a[:5000] for a in train), validation, test)
        args.dataset, epochs = "cifar10", 3
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:80]}"
        print(
            f"On digits: CIFAR-10 is not there ({reason}).".replace("\n", " ")
        )
        data, args.dataset, epochs = load_digits(), "digits", 30
    print(f"{'method':15} validation   test   seconds")
    for method in mlp_methods.METHODS:
        args.method, args.rate = method, 0.001
        args.architecture, args.optimizer = "a1", "adam"
        args.seed, args.tick = 0, lambda: None
        args.epochs = args.epochs or epochs
        row, _ = run(args, data)
        print(
            f"{method:15} {row['validation']:10.3f} {row['test']:6.3f} "
            f"{row['seconds']:9.1f}",
            flush=True,
        )


def comma(kind):
    return lambda text: [kind(part) for part in text.split(",")]


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("quick", "run", "study", "table"):
        command = commands.add_parser(name)
        command.add_argument("--data-dir", help="of tensorflow-datasets")
        command.add_argument(
            "--output", default=str(RESULTS / "mlp_cifar10.csv")
        )
        command.add_argument("--batch", type=int, default=256)
        command.add_argument(
            "--subset-every",
            type=int,
            default=1,
            help="steps from one subset selection to the next",
        )
        command.add_argument(
            "--epsilon", type=float, default=EPSILON, help="of adv-majority"
        )
        command.add_argument(
            "--beta", type=float, default=BETA, help="of subset"
        )
        epochs = None if name == "quick" else 40
        command.add_argument("--epochs", type=int, default=epochs)
        if name == "run":
            command.add_argument(
                "--architecture",
                choices=mlp_methods.ARCHITECTURES,
                default="a1",
            )
            command.add_argument(
                "--optimizer", choices=BASE_RATES, default="adam"
            )
            command.add_argument(
                "--method", choices=mlp_methods.METHODS, required=True
            )
            command.add_argument("--rate", type=float, required=True)
            command.add_argument("--seed", type=int, default=0)
        if name == "study":
            command.add_argument(
                "--architectures",
                type=comma(str),
                default=[*mlp_methods.ARCHITECTURES],
            )
            command.add_argument(
                "--optimizers", type=comma(str), default=[*BASE_RATES]
            )
            command.add_argument(
                "--methods", type=comma(str), default=[*mlp_methods.METHODS]
            )
            command.add_argument(
                "--grid",
                type=comma(int),
                default=[*GRID],
                help="exponents i of the rates base * 1.5 ** i to begin with",
            )
            command.add_argument(
                "--search",
                type=comma(str),
                default=[*mlp_methods.METHODS],
                help="methods whose rate is searched for; the others take "
                "that of baseline, adv-majority that of majority",
            )
            command.add_argument("--seeds", type=comma(int), default=[0, 1, 2])
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse(arguments)
    if args.command == "quick":
        quick(args)
        return
    path = Path(args.output)
    if args.command != "table":
        args.dataset = "cifar10"
        data = load_cifar10(args.data_dir)
    if args.command == "run":
        args.tick = lambda: print(".", end="", flush=True)
        row, _ = run(args, data)
        print("\n" + "  ".join(f"{k} {v}" for k, v in row.items()))
        return
    if args.command == "study":
        study(args, data)
    rows = read_rows(path)
    if not rows:
        raise SystemExit(f"There are no runs in {path} yet: see `study`.")
    mlp_tables.print_table(rows)
    mlp_tables.draw_curves(path)


if __name__ == "__main__":
    main()
