"""What the runs of the CIFAR-10 study have come to: tables and curves."""

import json
from collections import defaultdict

import numpy as np
from bookkeeping import read_rows
from mlp_methods import METHODS

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


def best_run(rows, setting):
    """The run that the validation split prefers, of those of a setting."""
    found = [row for row in rows if all(row[k] == setting[k] for k in setting)]
    return max(found, key=lambda row: float(row["validation"]))


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
