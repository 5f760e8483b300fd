"""The table that a plan prints as."""

import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from keras_mk.plan_rows import Row

LONG = 40

_NUMBER = re.compile(r"\d+")
# Keras names layers `dense`, `dense_1`, `dense_2`.
_ENDING = re.compile(r"_\d+(?![^\W_])")


def table(rows: Sequence[Row]) -> str:
    """One line for a layer; where they are many, one for those alike.

    Layers are alike if their paths differ only in numbers, and they have the
    same class, the same copies and the same reason, and are both frozen or
    neither. Their parameters are added. Those without weights are all alike.
    """
    long = len(rows) > LONG
    frozen = any(row.frozen for row in rows)
    result = Table()
    result.add_column("layer", overflow="fold")
    result.add_column("class")
    if long:
        result.add_column("layers", justify="right")
    for name in ("copies", "before", "training", "deployed"):
        result.add_column(name, justify="right")
    if frozen:
        result.add_column("frozen", justify="right")
    result.add_column("why not converted")
    for group in _alike(rows) if long else [[row] for row in rows]:
        first = group[0]
        plain = sum(row.plain for row in group)
        fixed = sum(row.frozen for row in group)
        if len(group) > 1 and not first.training:
            name, kind = "(without weights)", ""
        else:
            name, kind = _common_path([r.path for r in group]), first.kind
        result.add_row(
            name,
            kind,
            *([f"{len(group):,}"] if long else []),
            str(first.expansion or "-"),
            f"{plain:,}",
            f"{sum(row.training for row in group):,}",
            f"{plain:,}",
            *([f"{fixed:,}" if fixed else ""] if frozen else []),
            first.reason,
        )
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(result)
    return capture.get()


def memory(size: int) -> str:
    """A number of bytes in the unit that fits it."""
    value, units = float(size), iter(("KiB", "MiB", "GiB", "TiB"))
    unit = "B"
    while round(value, 1) >= 1024 and (larger := next(units, None)):
        value, unit = value / 1024, larger
    return f"{value:,.{0 if unit == 'B' else 1}f} {unit}"


def names(paths: Sequence[str]) -> str:
    """Paths in one line; those that differ only in numbers as one."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(_shape(path), []).append(path)
    return ", ".join(
        _common_path(group) + (f" ({len(group)})" if len(group) > 1 else "")
        for group in groups.values()
    )


def _shape(path: str) -> str:
    return _NUMBER.sub("0", _ENDING.sub("", path))


def _alike(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        shape = _shape(row.path)
        what = (shape, row.kind, row.frozen > 0) if row.training else ()
        groups.setdefault((what, row.expansion, row.reason), []).append(row)
    return list(groups.values())


def _common_path(paths: Sequence[str]) -> str:
    """Paths that differ only in numbers, with a star where they do."""
    if len(paths) == 1:
        return paths[0]
    longest = max(paths, key=lambda path: len(_NUMBER.findall(path)))
    columns = iter(
        zip(*(_NUMBER.findall(_ENDING.sub("", path)) for path in paths))
    )
    return _NUMBER.sub(
        lambda number: number[0] if len(set(next(columns))) == 1 else "*",
        _ENDING.sub("_*", longest),
    )
