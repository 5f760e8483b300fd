"""What the examples share: going on after a stop, and tables of runs."""

import csv
import importlib.util
import json
import time
from dataclasses import dataclass

import keras
import numpy as np

from keras_mk.bench import timing

# Options that may differ from one part of a run to the next.
FREE = ("calibration_steps", "command", "data_dir", "export", "members")
FREE += ("output_dir", "results", "steps", "steps_per_execution", "until")
FREE += ("verbose",)


def claim(folder, args):
    """Makes a run's folder, and stops if it has another run's."""
    options = {k: str(v) for k, v in vars(args).items() if k not in FREE}
    path = folder / "options.json"
    before = json.loads(path.read_text()) if path.exists() else options
    other = [k for k in options if before.get(k, options[k]) != options[k]]
    if other:
        old, new = (
            " ".join(f"--{k.replace('_', '-')} {found[k]}" for k in other)
            for found in (before, options)
        )
        raise SystemExit(
            "`--output-dir` must be a new folder, or that of the same run, "
            f"which then goes on. Received: {folder}, with a run of {old}, "
            f"and {new}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(options, indent=2) + "\n")


def tensorboard(folder):
    """A list with the callback, if tensorboard is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        print("tensorboard is not installed: no logs for it.")
        return []
    return [keras.callbacks.TensorBoard(folder / "tensorboard")]


class Seconds(keras.callbacks.Callback):
    """Adds the time of an epoch's training steps to its logs."""

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()
        self.seconds = None

    def on_test_begin(self, logs=None):
        self.seconds = time.perf_counter() - self.start

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = self.seconds or time.perf_counter() - self.start


def keep_rows(path, count):
    """Drops what was logged of epochs after the checkpoint."""
    lines = path.read_text().splitlines() if path.exists() else []
    if lines:
        path.write_text("\n".join(lines[: count + 1]) + "\n")


def median_seconds(rows):
    """The median time of an epoch's steps, but for the first's."""
    seconds = [float(row["seconds"]) for row in rows]
    return float(np.median(seconds[1:] or seconds))


def read_rows(path):
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def where():
    """The columns that say what a run ran on, and when."""
    found = timing.environment()
    return {k: found[k] for k in ("backend", "processor", "cores", "date")}


def append_row(path, row):
    known = read_rows(path)
    if known and list(known[0]) != list(row):
        raise SystemExit(
            "A row can only be added to a file with the same columns. "
            f"Received: {path} with the columns {', '.join(known[0])}, and a "
            f"row with {', '.join(row)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)


def add_copies(command, copies):
    """What `keras_mk.expand` and `AdversarialMK` have to be told."""
    command.add_argument("--expansion", type=int, default=3)
    command.add_argument(
        "--copies", default=copies, help="as keras_mk.expand takes it"
    )
    command.add_argument(
        "--scale", type=float, default=0.1, help="as keras_mk.expand takes it"
    )
    command.add_argument(
        "--epsilon", type=float, default=1.0, help="of adv-majority"
    )


def scale_of(args):
    """The size of the noise, where there is one."""
    return args.scale if args.copies == "perturb" else None


def copies_of(args, method):
    """The columns that say what a method trained several of, if it did."""
    found = dict.fromkeys(("expansion", "copies", "scale"), "")
    if method not in ("baseline", "plain"):
        found["expansion"] = args.expansion
    if "majority" in method:
        found |= {"copies": args.copies, "scale": args.scale}
    return found


def add_reports(commands):
    """The commands `plot` and `table`."""
    plot = commands.add_parser("plot")
    plot.add_argument("folders", nargs="+")
    plot.add_argument("--output", default="curves.png")
    commands.add_parser("table").add_argument("results")


def print_table(path, keys, scales):
    """Mean and spread over the runs that agree in `keys`, as markdown.

    `scales` are the columns to average, and what to multiply them with.
    """
    rows = read_rows(path)
    if not rows:
        raise SystemExit(f"There are no runs in {path} yet.")
    print("| " + " | ".join((*keys, "seeds", *scales)) + " |")
    print("|" + "---|" * (len(keys) + 1 + len(scales)))
    for setting in dict.fromkeys(tuple(row[k] for k in keys) for row in rows):
        mine = [r for r in rows if tuple(r[k] for k in keys) == setting]
        cells = [*setting, str(len(mine))]
        for name, scale in scales.items():
            values = [scale * float(row[name]) for row in mine if row[name]]
            cells.append(mean_and_spread(values))
        print("| " + " | ".join(cells) + " |")


def mean_and_spread(values):
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


@dataclass(frozen=True)
class Curve:
    """A line of a plot: one column of a run's log."""

    values: list[float]
    style: str
    label: str | None = None
    # From one value to the next.
    step: int = 1


def read_log(folder):
    rows = read_rows(folder / "log.csv")
    if not rows:
        raise SystemExit(f"There is no log.csv in {folder}.")
    return rows


def draw(panels, output, xlabel):
    """Draws a plot per item of `panels`: its title, and its curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (max(10, 3.2 * len(panels)), 4)
    figure, axes = pyplot.subplots(1, len(panels), figsize=size, squeeze=False)
    for axis, (title, curves) in zip(axes[0], panels.items()):
        for curve in curves:
            steps = curve.step * np.arange(1, len(curve.values) + 1)
            axis.plot(steps, curve.values, curve.style, label=curve.label)
        axis.set_xlabel(xlabel)
        axis.set_title(title)
        if title == "loss":
            # The first epoch's is many times the others'.
            axis.set_yscale("log")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(output, dpi=120)
    pyplot.close(figure)
    print(f"Written: {output}")
