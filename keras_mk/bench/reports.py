"""Figures as a table, as JSON and CSV, and as charts."""

import csv
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from keras_mk.bench import timing
from keras_mk.staging import staging

Row = dict[str, Any]
# What tells one configuration from another.
SETTING = (
    "backend",
    "target",
    "workload",
    "batch",
    "expansion",
    "optimizer",
    "dtype",
    "jit_compile",
    "feed",
)
# Columns of the table that the terminal shows: label, key and format.
TIMES = (
    ("ms / step", "step_ms", "{:.2f}"),
    ("x plain", "to_plain_median", "{:.2f}"),
    ("from", "to_plain_low", "{:.2f}"),
    ("to", "to_plain_high", "{:.2f}"),
    ("x floor", "to_floor_median", "{:.2f}"),
    ("examples / s", "examples_per_second", "{:.1f}"),
    ("first step, s", "first_step_seconds", "{:.1f}"),
    ("peak, MiB", "peak_mib", "{}"),
    ("predicted", "predicted", "{:.2f}"),
)
COMPILED = (
    ("flops", "flops", "{:.3e}"),
    ("x plain", "flops_to_plain", "{:.3f}"),
    ("bytes", "bytes", "{:.3e}"),
    ("x plain", "bytes_to_plain", "{:.3f}"),
    ("cycles", "cycles", "{:.3e}"),
    ("x plain", "cycles_to_plain", "{:.3f}"),
    ("arguments, MiB", "arguments_mib", "{:.1f}"),
    ("temporary, MiB", "temporary_mib", "{:.1f}"),
    ("lowered, bytes", "lowered_bytes", "{}"),
    ("compile, s", "compile_seconds", "{:.1f}"),
)

Columns = tuple[tuple[str, str, str], ...]


def write(
    name: str,
    rows: list[Row],
    folder: Path,
    draw: Callable[[list[Row], Path], None] | None,
    **about: Any,
) -> list[Path]:
    """Writes `name.json`, `name.csv` and the chart `name.png`.

    Returns:
        What was written; without the chart where matplotlib is missing.
    """
    report = {**about, "environment": timing.environment(), "rows": rows}
    with staging(folder / name) as stage:
        (stage / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
        with open(stage / f"{name}.csv", "w", newline="") as file:
            keys = list(dict.fromkeys(key for row in rows for key in row))
            writer = csv.DictWriter(file, keys)
            writer.writeheader()
            writer.writerows(rows)
        if draw is not None:
            with suppress(ImportError):
                draw(rows, stage / f"{name}.png")
        return [
            path.replace(folder / path.name) for path in sorted(stage.iterdir())
        ]


def show(rows: list[Row], title: str, columns: Columns = TIMES) -> None:
    """Prints some rows as a table, with what they have in common above it."""
    varied = varying(rows)
    fixed = [
        f"{key} {rows[0][key]}"
        for key in SETTING
        if key not in varied and key in rows[0]
    ]
    columns = tuple(
        column
        for column in columns
        if any(row.get(column[1]) is not None for row in rows)
    )
    table = Table(title=f"{title}\n{', '.join(fixed)}")
    for label in (*varied, "variant", *(column[0] for column in columns)):
        table.add_column(label, justify="right")
    for row in rows:
        table.add_row(
            *(str(row.get(key, "-")) for key in varied),
            row["variant"],
            *(_cell(row.get(key), form) for _, key, form in columns),
        )
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)


def varying(rows: list[Row]) -> list[str]:
    """The settings that are not the same in all rows."""
    return [
        key for key in SETTING if len({str(row.get(key)) for row in rows}) > 1
    ]


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)
