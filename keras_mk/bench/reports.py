"""Figures as a table, as JSON and CSV, and as a chart."""

import csv
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from keras_mk.bench import timing

Row = dict[str, Any]
# What tells one configuration from another.
SETTING = (
    "backend",
    "workload",
    "batch",
    "expansion",
    "optimizer",
    "dtype",
    "jit_compile",
    "feed",
)


def write(name: str, rows: list[Row], folder: Path, **about: Any) -> None:
    """Writes `name.json`, `name.csv` and `name.png`, and says so."""
    folder.mkdir(parents=True, exist_ok=True)
    report = {**about, "environment": timing.environment(), "rows": rows}
    paths = [folder / f"{name}.json", folder / f"{name}.csv"]
    paths[0].write_text(json.dumps(report, indent=2) + "\n")
    with open(paths[1], "w", newline="") as file:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    chart = folder / f"{name}.png"
    try:
        _draw(rows, chart)
    except ImportError:
        print("No chart: it needs `pip install keras-mk[demo]` (matplotlib).")
    else:
        paths.append(chart)
    print(f"Written: {', '.join(str(path) for path in paths)}")


def show(rows: list[Row], title: str) -> None:
    """Prints the varying columns of some rows as a table."""
    varying = _varying(rows)
    fixed = [
        f"{key} {rows[0][key]}"
        for key in SETTING
        if key not in varying and key in rows[0]
    ]
    table = Table(title=f"{title}\n{', '.join(fixed)}")
    numbers = ("ms / step", "x plain", "quartiles", "x floor", "first step, s")
    for column in (*varying, "variant", *numbers):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            *(str(row[key]) for key in varying),
            row["variant"],
            f"{row['step_ms']:.2f}",
            _number(row["to_plain_median"]),
            f"{_number(row['to_plain_low'])} - {_number(row['to_plain_high'])}",
            _number(row["to_floor_median"]),
            f"{row['first_step_seconds']:.1f}",
        )
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)


def _varying(rows: list[Row]) -> list[str]:
    return [
        key for key in SETTING if len({str(row.get(key)) for row in rows}) > 1
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _draw(rows: list[Row], path: Path) -> None:
    """Ratios to the plain model, a group of bars per configuration."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    varying = _varying(rows)
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        label = "\n".join(str(row[key]) for key in varying) or row["workload"]
        groups.setdefault(label, {})[row["variant"]] = row
    names = list(dict.fromkeys(row["variant"] for row in rows))
    figure, axis = pyplot.subplots(figsize=(max(6, 1.6 * len(groups)), 4))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        found = [
            (at, group[name])
            for at, group in enumerate(groups.values())
            if name in group and group[name]["to_plain_median"] is not None
        ]
        heights = [row["to_plain_median"] for _, row in found]
        low = [row["to_plain_median"] - row["to_plain_low"] for _, row in found]
        high = [
            row["to_plain_high"] - row["to_plain_median"] for _, row in found
        ]
        axis.bar(
            [at + i * width for at, _ in found],
            heights,
            width,
            yerr=[low, high],
            label=name,
        )
    axis.axhline(1, color="black", linewidth=0.5)
    axis.set_xticks([at + 0.4 - width / 2 for at in range(len(groups))])
    axis.set_xticklabels(list(groups), fontsize=7)
    axis.set_ylabel("step time / plain model's")
    tallest = max(row["to_plain_median"] or 0 for row in rows)
    if tallest > 10:
        axis.set_yscale("log")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
