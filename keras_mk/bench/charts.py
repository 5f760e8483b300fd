"""Ratios to the plain model as bars, or as curves over what grows."""

from pathlib import Path
from typing import Any

from keras_mk.bench.reports import Row
from keras_mk.bench.reports import varying


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def bars(rows: list[Row], path: Path) -> None:
    """A group of bars per configuration, a bar per variant, with quartiles."""
    pyplot = _pyplot()
    varied = varying(rows)
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        label = "\n".join(str(row[key]) for key in varied) or row["workload"]
        groups.setdefault(label, {})[row["variant"]] = row
    names = list(dict.fromkeys(row["variant"] for row in rows))
    figure, axis = pyplot.subplots(figsize=(max(6, 1.6 * len(groups)), 4))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        found = [
            (at + i * width, group[name])
            for at, group in enumerate(groups.values())
            if name in group and group[name]["to_plain_median"] is not None
        ]
        _points(axis.bar, found, name, width=width)
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


def curves(rows: list[Row], path: Path) -> None:
    """A panel per `sweep`: the ratio over what it varies, and the forecast."""
    pyplot = _pyplot()
    sweeps = list(dict.fromkeys(row["sweep"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(sweeps), figsize=(4 * len(sweeps), 3.6), squeeze=False
    )
    for axis, sweep in zip(axes[0], sweeps):
        mine = [row for row in rows if row["sweep"] == sweep]
        for name in dict.fromkeys(row["variant"] for row in mine):
            found = [
                (row[sweep], row) for row in mine if row["variant"] == name
            ]
            _points(axis.errorbar, found, name, marker="o", capsize=2)
        predicted = [row for row in mine if row.get("predicted") is not None]
        axis.plot(
            [row[sweep] for row in predicted],
            [row["predicted"] for row in predicted],
            "k--",
            linewidth=1,
            label="bytes / bandwidth",
        )
        ticks = [row[sweep] for row in predicted]
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=7)
        axis.set_xlabel(sweep)
    axes[0][0].set_ylabel("step time / plain model's")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _points(
    draw: Any, found: list[tuple[float, Row]], name: str, **style: Any
) -> None:
    medians = [row["to_plain_median"] for _, row in found]
    low = [m - row["to_plain_low"] for m, (_, row) in zip(medians, found)]
    high = [row["to_plain_high"] - m for m, (_, row) in zip(medians, found)]
    places = [place for place, _ in found]
    draw(places, medians, yerr=[low, high], label=name, **style)
