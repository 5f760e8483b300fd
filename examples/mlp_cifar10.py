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
import time
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
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

import keras_mk
from keras_mk import baselines

ARCHITECTURES = {"a1": (100,), "a2": (200, 100), "a3": (400, 200, 100)}
# The paper's grids: a base times 1.5 ** i for i from -4 to 5.
BASE_RATES = {"adam": 0.001, "sgd": 0.025}
GRID = range(-4, 6)
EXPANSION = 3
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


# Methods: each trains on a `Cell` and returns the models that are evaluated.


class Cell:
    """One run of one method: how to make a network and train it."""

    def __init__(self, args, data):
        self.args = args
        self.train, self.validation, self.test = data
        self.curves = []
        self.seconds = 0.0
        # Plain networks that other runs of the same setting need again.
        self.trained = getattr(args, "trained", {})

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
        epochs = epochs or self.args.epochs
        best = keras.callbacks.EarlyStopping(
            "val_accuracy",
            mode="max",
            patience=epochs,
            restore_best_weights=True,
        )
        start = time.perf_counter()
        history = self.compile(model).fit(
            *self.train,
            batch_size=self.args.batch,
            epochs=epochs,
            validation_data=self.validation,
            callbacks=[*callbacks, best, Tick(self.args.tick)],
            verbose=0,
        )
        self.seconds += time.perf_counter() - start
        self.curves.append(history.history)
        return model

    def plain(self, seed, start=None, epochs=None):
        """A plain network, trained from its own beginning or from `start`."""
        model = self.network(self.args.seed if start else seed)
        if start:
            model.set_weights(start)
        args = self.args
        key = (args.architecture, args.optimizer, args.rate, args.seed)
        key += (seed, start is None, epochs or args.epochs)
        if key not in self.trained:
            seconds = self.seconds
            self.fit(model, seed, epochs)
            took = self.seconds - seconds
            self.trained[key] = (model.get_weights(), self.curves[-1], took)
        else:
            weights, curve, took = self.trained[key]
            model.set_weights(weights)
            self.curves.append(curve)
            self.seconds += took
            for _ in range(epochs or args.epochs):
                args.tick()
        return model

    def members(self):
        """Independently trained plain networks."""
        seeds = [self.args.seed + 1000 * k for k in range(EXPANSION)]
        return [self.plain(seed) for seed in seeds]

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
    return cell.plain(cell.args.seed)


def baseline_long(cell):
    return cell.plain(cell.args.seed, epochs=EXPANSION * cell.args.epochs)


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
    model = keras_mk.training.AdversarialMK(expanded(cell), cell.args.epsilon)
    return keras_mk.collapse(cell.fit(model, cell.args.seed).model)


def ensemble(cell):
    return baselines.Ensemble(cell.members(), from_logits=True)


def distilled(cell):
    student = cell.network(cell.args.seed + 5000)
    cell.fit(baselines.distiller(ensemble(cell), student), cell.args.seed)
    return student


def subset(cell):
    wide = baselines.subset_network(cell.network(cell.args.seed), EXPANSION)
    selection = baselines.SubsetSelection(
        every=cell.args.subset_every, beta=cell.args.beta
    )
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
    start = cell.plain(seed, epochs=half).get_weights()
    seeds = [seed + 1000 * (k + 1) for k in range(EXPANSION)]
    return [cell.plain(other, start, half) for other in seeds]


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
# The paper's table, where it has the method.
PAPER = {
    (optimizer, architecture): dict(
        zip(("baseline", "ensemble", "distilled", "subset", "majority"), row)
    )
    for optimizer, architecture, row in (
        ("adam", "a1", (51.79, 52.27, 48.68, 52.09, 52.01)),
        ("adam", "a2", (52.99, 54.36, 52.94, 53.69, 54.29)),
        ("adam", "a3", (53.79, 55.62, 55.26, 54.58, 55.04)),
        ("sgd", "a1", (51.24, 52.55, 48.69, 52.10, 51.82)),
        ("sgd", "a2", (52.64, 54.87, 51.87, 53.90, 54.21)),
        ("sgd", "a3", (53.30, 56.56, 54.21, 54.57, 54.97)),
    )
}
# How many epochs each trains, as multiples of the baseline's.
EPOCHS = {
    "ensemble": EXPANSION,
    "distilled": EXPANSION + 1,
    "soup-uniform": (1 + EXPANSION) / 2,
    "soup-greedy": (1 + EXPANSION) / 2,
    "baseline-long": EXPANSION,
}
# Whose rate a method takes when its own is not searched for.
RATE_OF = {"majority": "majority", "adv-majority": "majority"}
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
    cell = Cell(args, data)
    model = METHODS[args.method](cell)
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


def best_run(rows, setting):
    """The run that the validation split prefers, of those of a setting."""
    found = [row for row in rows if all(row[k] == setting[k] for k in setting)]
    return max(found, key=lambda row: float(row["validation"]))


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
                    best = best_run(rows, first)["rate"]
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
                source = {**first, "method": RATE_OF.get(method, "baseline")}
                source["option"] = ""
                rate = best_run(read_rows(path), source)["rate"]
            for seed in args.seeds:
                finish({**setting, "seed": str(seed), "rate": rate})


def epochs_of(method, args):
    return int(EPOCHS.get(method, 1) * args.epochs)


def runs_of(method, args):
    searched = len(args.grid) if method in args.search else 0
    return len(args.seeds) + searched


def save_curves(path, setting, curves):
    """Beside the table, what it needs to draw plain against majority."""
    if setting["method"] in ("baseline", "majority"):
        line = json.dumps({**setting, "curves": curves[0]})
        with open(path.with_suffix(".curves.jsonl"), "a") as file:
            file.write(line + "\n")


# The table.


def summarise(rows):
    """Mean and spread over the seeds of each method in each setting.

    Of several rates and options it is those that most seeds were run with,
    and of these the ones that validation prefers with the first seed.
    """

    def mean_of(rows, key, scale=100):
        values = [float(row[key]) for row in rows if row[key]]
        return scale * float(np.mean(values)) if values else None

    found = []
    keys = ("dataset", "architecture", "optimizer", "method", "epochs")
    for setting in dict.fromkeys(tuple(row[k] for k in keys) for row in rows):
        mine = [row for row in rows if tuple(row[k] for k in keys) == setting]
        ways = defaultdict(list)
        for row in mine:
            ways[row["rate"], row["option"]].append(row)
        seeds = max(map(len, ways.values()))
        first = {"seed": mine[0]["seed"]}
        best = best_run(
            [row for way in ways.values() if len(way) == seeds for row in way],
            first,
        )
        chosen = ways[best["rate"], best["option"]]
        tests = [100 * float(row["test"]) for row in chosen]
        found.append(
            {
                **dict(zip(keys, setting)),
                "rate": best["rate"],
                "option": best["option"],
                "seeds": len(tests),
                "test": float(np.mean(tests)),
                "spread": float(np.std(tests, ddof=1)) if tests[1:] else 0.0,
                "train": mean_of(chosen, "train"),
                "last": mean_of(chosen, "last_validation"),
                "seconds": mean_of(chosen, "seconds", scale=1),
                "processors": {row["processor"] for row in chosen},
            }
        )
    return found


def print_table(rows):
    """As markdown: accuracy beside the paper's, then rates and costs."""
    summary = {
        (row["optimizer"], row["architecture"], row["method"]): row
        for row in summarise(rows)
    }
    methods = [m for m in METHODS if any(m == key[2] for key in summary)]
    settings = list(dict.fromkeys(key[:2] for key in summary))

    def print_rows(title, cell):
        print(f"\n{title}\n")
        print("| | " + " | ".join(methods) + " |")
        print("|---" * (len(methods) + 1) + "|")
        for optimizer, architecture in sorted(settings):
            found = [
                cell(summary.get((optimizer, architecture, method)))
                for method in methods
            ]
            name = f"{architecture.upper()}, {optimizer}"
            print("| " + " | ".join([name, *found]) + " |")

    def accuracy(row):
        if row is None:
            return ""
        key = (row["optimizer"], row["architecture"])
        paper = PAPER[key].get(row["method"]) if key in PAPER else None
        beside = f" ({paper:.2f})" if paper else ""
        if row["seeds"] == 1:
            return f"{row['test']:.2f}, one seed{beside}"
        return f"{row['test']:.2f} ± {row['spread']:.2f}{beside}"

    def cost(row):
        if row is None:
            return ""
        plain = summary.get((row["optimizer"], row["architecture"], "baseline"))
        # Times on two machines say nothing about two methods.
        if plain is None or len(plain["processors"] | row["processors"]) > 1:
            return ""
        return f"{row['seconds'] / plain['seconds']:.2f}"

    seeds = max(row["seeds"] for row in summary.values())
    print_rows(
        f"Test accuracy, mean and spread over {seeds} seeds (the paper's)",
        accuracy,
    )
    print_rows("Accuracy on the training set, same networks", rounded("train"))
    print_rows("Validation accuracy after the last epoch", rounded("last"))
    print_rows("Rate", lambda row: row["rate"] if row else "")
    print_rows("Time to train, as a multiple of the baseline's", cost)


def rounded(name):
    return lambda row: f"{row[name]:.2f}" if row and row[name] else ""


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
    settings = sorted({(run["architecture"], run["optimizer"]) for run in runs})
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
                label = run["method"] if run["seed"] == "0" else None
                axis.plot(epochs, curve[f"val_{name}"], color, label=label)
                axis.plot(epochs, curve[name], color, linestyle=":")
                axis.set_ylabel(name)
        axes[0, column].set_title(" ".join(setting))
        axes[1, column].set_xlabel("epoch (dotted: training)")
        axes[1, column].legend()
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=120)
    pyplot.close(figure)
    print(f"Written: {path.with_suffix('.png')}")


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
    for method in METHODS:
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
                default=[*GRID],
                help="exponents i of the rates base * 1.5 ** i to begin with",
            )
            command.add_argument(
                "--search",
                type=comma(str),
                default=[*METHODS],
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
    print_table(rows)
    draw_curves(path)


if __name__ == "__main__":
    main()
