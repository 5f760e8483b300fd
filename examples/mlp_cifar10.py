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
where it was. `table` prints the table and draws the curves.

Needs `pip install keras-mk[jax,data,demo]` (or another backend).
"""

import argparse
import csv
import itertools
import json
import os
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from rich.progress import BarColumn
from rich.progress import MofNCompleteColumn
from rich.progress import Progress
from rich.progress import TextColumn
from rich.progress import TimeElapsedColumn
from rich.progress import TimeRemainingColumn

import keras_mk
from keras_mk import baselines

ARCHITECTURES = {"a1": (100,), "a2": (200, 100), "a3": (400, 200, 100)}
# The paper's grids: a base times 1.5 ** i for i from -4 to 5.
BASE_RATES = {"adam": 0.001, "sgd": 0.025}
EXPANSION = 3
EPSILON = 1.0
RESULTS = Path(__file__).parent / "results"


# Data: three pairs of arrays, for training, validation and test.


def load_cifar10(data_dir, validation=5000):
    """CIFAR-10 by tensorflow-datasets, as rows of 3072 numbers."""
    import tensorflow_datasets as tfds

    train, test = tfds.as_numpy(
        tfds.load(
            "cifar10",
            split=["train", "test"],
            data_dir=data_dir,
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


# Methods: each trains on a `Cell` and returns the models that are evaluated.


class Cell:
    """One run of one method: how to make a network and train it."""

    def __init__(self, args, data):
        self.args = args
        self.train, self.validation, self.test = data
        self.curves = []
        self.seconds = 0.0

    def network(self, seed):
        keras.utils.set_random_seed(seed)
        return keras.Sequential(
            [
                keras.Input(self.train[0].shape[1:]),
                *(
                    keras.layers.Dense(units, activation="relu")
                    for units in ARCHITECTURES[self.args.architecture]
                ),
                keras.layers.Dense(10),
            ]
        )

    def compile(self, model):
        optimizers = {
            "adam": keras.optimizers.Adam,
            "sgd": keras.optimizers.SGD,
        }
        model.compile(
            optimizers[self.args.optimizer](self.args.rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    def fit(self, model, seed, epochs=None, callbacks=()):
        """Trains a model; the time it takes is the run's."""
        keras.utils.set_random_seed(seed)
        start = time.perf_counter()
        history = self.compile(model).fit(
            *self.train,
            batch_size=self.args.batch,
            epochs=epochs or self.args.epochs,
            validation_data=self.validation,
            callbacks=[*callbacks, Tick(self.args.tick)],
            verbose=0,
        )
        self.seconds += time.perf_counter() - start
        self.curves.append(history.history)
        return model

    def members(self):
        """Independently trained plain networks."""
        seeds = [self.args.seed + 1000 * k for k in range(EXPANSION)]
        return [self.fit(self.network(seed), seed) for seed in seeds]

    def accuracy(self, model, data):
        logits = model.predict(data[0], batch_size=1000, verbose=0)
        return float((logits.argmax(-1) == data[1]).mean())


class Tick(keras.callbacks.Callback):
    def __init__(self, tick):
        super().__init__()
        self.tick = tick

    def on_epoch_end(self, epoch, logs=None):
        self.tick()


def baseline(cell):
    return cell.fit(cell.network(cell.args.seed), cell.args.seed)


def baseline_long(cell):
    epochs = EXPANSION * cell.args.epochs
    return cell.fit(cell.network(cell.args.seed), cell.args.seed, epochs)


def expanded(cell):
    return keras_mk.expand(
        cell.network(cell.args.seed),
        EXPANSION,
        copies="independent",
        seed=cell.args.seed,
    )


def majority(cell):
    return keras_mk.collapse(cell.fit(expanded(cell), cell.args.seed))


def adv_majority(cell):
    model = keras_mk.training.AdversarialMK(expanded(cell), EPSILON)
    return keras_mk.collapse(cell.fit(model, cell.args.seed).model)


def ensemble(cell):
    return baselines.Ensemble(cell.members(), from_logits=True)


def distilled(cell):
    student = cell.network(cell.args.seed + 5000)
    cell.fit(baselines.distiller(ensemble(cell), student), cell.args.seed)
    return student


def subset(cell):
    wide = baselines.subset_network(cell.network(cell.args.seed), EXPANSION)
    selection = baselines.SubsetSelection(every=cell.args.subset_every)
    return baselines.selected_network(
        cell.fit(wide, cell.args.seed, callbacks=[selection])
    )


def uniform_soup(cell):
    return baselines.uniform_soup(fine_tuned(cell))


def greedy_soup(cell):
    return baselines.greedy_soup(
        fine_tuned(cell), lambda m: cell.accuracy(m, cell.validation)
    )


def fine_tuned(cell):
    """Soups are of models that share a beginning: the first half."""
    seed, half = cell.args.seed, max(1, cell.args.epochs // 2)
    start = cell.fit(cell.network(seed), seed, half).get_weights()
    models = []
    for k in range(EXPANSION):
        model = cell.network(seed)
        model.set_weights(start)
        models.append(cell.fit(model, seed + 1000 * (k + 1), half))
    return models


METHODS = {
    "baseline": baseline,
    "majority": majority,
    "ensemble": ensemble,
    "distilled": distilled,
    "subset": subset,
    "adv-majority": adv_majority,
    "soup-uniform": uniform_soup,
    "soup-greedy": greedy_soup,
    "baseline-long": baseline_long,
}
# How many epochs each trains, as multiples of the baseline's.
EPOCHS = {
    "ensemble": EXPANSION,
    "distilled": EXPANSION + 1,
    "soup-uniform": (1 + EXPANSION) / 2,
    "soup-greedy": (1 + EXPANSION) / 2,
    "baseline-long": EXPANSION,
}
KEY = (
    "dataset",
    "architecture",
    "optimizer",
    "method",
    "rate",
    "seed",
    "epochs",
)


def run(args, data):
    """One run: a row of the table, and its curves."""
    cell = Cell(args, data)
    model = METHODS[args.method](cell)
    row = {key: str(getattr(args, key)) for key in KEY}
    row |= {
        "validation": round(cell.accuracy(model, cell.validation), 5),
        "test": round(cell.accuracy(model, cell.test), 5),
        "train": round(cell.accuracy(model, cell.train), 5),
        "parameters": model.count_params(),
        "seconds": round(cell.seconds, 1),
        "backend": keras.config.backend(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
    }
    return row, cell.curves


# The study: a CSV file to which each finished run adds a row.


def read_rows(path):
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def append_row(path, row):
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


def grid(optimizer, steps):
    return [f"{BASE_RATES[optimizer] * 1.5**i:.6g}" for i in steps]


def best_rate(rows, setting):
    """The rate that the validation split prefers, of the first seed's runs."""
    found = [row for row in rows if all(row[k] == setting[k] for k in setting)]
    return max(found, key=lambda row: float(row["validation"]))["rate"]


def study(args, data):
    path = Path(args.output)
    combinations = list(
        itertools.product(args.architectures, args.optimizers, args.methods)
    )
    per_method = [EPOCHS.get(method, 1) for *_, method in combinations]
    runs = len(args.grid) + len(args.seeds) - 1
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ) as progress:
        task = progress.add_task(
            "study", total=int(args.epochs * sum(per_method) * runs)
        )

        def finish(setting):
            rows = read_rows(path)
            if any(all(row[k] == setting[k] for k in KEY) for row in rows):
                epochs = EPOCHS.get(setting["method"], 1) * args.epochs
                progress.advance(task, epochs)
                return
            progress.update(task, description=" ".join(setting.values()))
            cell = argparse.Namespace(
                **{**vars(args), **setting},
                tick=lambda: progress.advance(task, 1),
            )
            cell.rate, cell.seed = float(cell.rate), int(cell.seed)
            cell.epochs = int(cell.epochs)
            row, curves = run(cell, data)
            append_row(path, {**row, **setting})
            save_curves(path, setting, curves)

        for architecture, optimizer, method in combinations:
            setting = {
                "dataset": args.dataset,
                "architecture": architecture,
                "optimizer": optimizer,
                "method": method,
                "epochs": str(args.epochs),
            }
            first = {**setting, "seed": str(args.seeds[0])}
            for rate in grid(optimizer, args.grid):
                finish({**first, "rate": rate})
            rate = best_rate(read_rows(path), first)
            for seed in args.seeds[1:]:
                finish({**setting, "seed": str(seed), "rate": rate})


def save_curves(path, setting, curves):
    """Beside the table, what it needs to draw plain against majority."""
    if setting["method"] in ("baseline", "majority"):
        line = json.dumps({**setting, "curves": curves[0]})
        with open(path.with_suffix(".curves.jsonl"), "a") as file:
            file.write(line + "\n")


# The table.


def summarise(rows):
    """Mean and spread over the seeds, at the rate that validation chose."""
    found = []
    keys = ("dataset", "architecture", "optimizer", "method", "epochs")
    for setting in dict.fromkeys(tuple(row[k] for k in keys) for row in rows):
        mine = [row for row in rows if tuple(row[k] for k in keys) == setting]
        seed = mine[0]["seed"]
        rate = best_rate(
            [row for row in mine if row["seed"] == seed],
            dict(zip(keys, setting)),
        )
        chosen = [row for row in mine if row["rate"] == rate]
        tests = [100 * float(row["test"]) for row in chosen]
        found.append(
            {
                **dict(zip(keys, setting)),
                "rate": rate,
                "seeds": len(tests),
                "test": float(np.mean(tests)),
                "spread": float(np.std(tests, ddof=1)) if tests[1:] else 0.0,
                "seconds": float(
                    np.mean([float(r["seconds"]) for r in chosen])
                ),
            }
        )
    return found


def print_table(rows):
    from rich.console import Console
    from rich.table import Table

    summary = summarise(rows)
    plain = {
        (row["architecture"], row["optimizer"]): row["seconds"]
        for row in summary
        if row["method"] == "baseline"
    }
    table = Table(title="test accuracy, mean and spread over seeds")
    for column in ("model", "optimizer", "method", "rate", "seeds"):
        table.add_column(column)
    table.add_column("test accuracy", justify="right")
    table.add_column("cost / baseline", justify="right")
    for row in summary:
        base = plain.get((row["architecture"], row["optimizer"]))
        table.add_row(
            row["architecture"].upper(),
            row["optimizer"],
            row["method"],
            row["rate"],
            str(row["seeds"]),
            f"{row['test']:.2f} ± {row['spread']:.2f}",
            f"{row['seconds'] / base:.2f}" if base else "-",
        )
    Console().print(table)


def draw_curves(path):
    """Accuracy and loss on the validation split, plain against majority."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    source = path.with_suffix(".curves.jsonl")
    if not source.exists():
        return
    runs = [json.loads(line) for line in source.read_text().splitlines()]
    chosen = {
        (row["architecture"], row["optimizer"], row["method"]): row["rate"]
        for row in summarise(read_rows(path))
    }
    settings = list(
        dict.fromkeys((run["architecture"], run["optimizer"]) for run in runs)
    )
    figure, axes = pyplot.subplots(
        2, len(settings), figsize=(3.2 * len(settings), 5), squeeze=False
    )
    for column, setting in enumerate(settings):
        for run in runs:
            mine = (run["architecture"], run["optimizer"])
            key = (*mine, run["method"])
            if mine != setting or run["rate"] != chosen.get(key):
                continue
            color = {"baseline": "C0", "majority": "C1"}[run["method"]]
            for axis, name in zip(axes[:, column], ("accuracy", "loss")):
                curve = run["curves"]
                epochs = range(1, len(curve[name]) + 1)
                label = f"{run['method']}, seed {run['seed']}"
                axis.plot(epochs, curve[f"val_{name}"], color, label=label)
                axis.plot(epochs, curve[name], color, linestyle=":")
                axis.set_ylabel(name)
        axes[0, column].set_title(" ".join(setting))
        axes[1, column].set_xlabel("epoch (dotted: training)")
        axes[1, column].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=120)
    pyplot.close(figure)
    print(f"Written: {path.with_suffix('.png')}")


def quick(args):
    """Every method once, in about a minute."""
    try:
        train, validation, test = load_cifar10(args.data_dir)
        data = (tuple(a[:5000] for a in train), validation, test)
        args.dataset = "cifar10"
    except Exception as error:
        print(f"On digits: CIFAR-10 could not be loaded ({error}).")
        data, args.dataset = load_digits(), "digits"
    print(f"{'method':15} validation   test   seconds")
    for method in METHODS:
        args.method, args.rate = method, 0.001
        args.architecture, args.optimizer = "a1", "adam"
        args.seed, args.epochs, args.tick = 0, args.epochs or 5, lambda: None
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
        epochs = None if name == "quick" else 40
        command.add_argument("--epochs", type=int, default=epochs)
        if name == "run":
            command.add_argument(
                "--architecture", choices=ARCHITECTURES, default="a1"
            )
            command.add_argument(
                "--optimizer", choices=BASE_RATES, default="adam"
            )
            command.add_argument("--method", choices=METHODS, required=True)
            command.add_argument("--rate", type=float, required=True)
            command.add_argument("--seed", type=int, default=0)
        if name == "study":
            command.add_argument(
                "--architectures", type=comma(str), default=[*ARCHITECTURES]
            )
            command.add_argument(
                "--optimizers", type=comma(str), default=[*BASE_RATES]
            )
            command.add_argument(
                "--methods", type=comma(str), default=[*METHODS]
            )
            command.add_argument(
                "--grid",
                type=comma(int),
                default=list(range(-4, 6)),
                help="exponents i of the rates base * 1.5 ** i",
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
    print_table(rows)
    draw_curves(path)


if __name__ == "__main__":
    main()
