"""The CIFAR-10 example, on digits: every method, and a study that resumes."""

import numpy as np
import pytest

from tests import example_script


@pytest.fixture
def example(monkeypatch):
    module = example_script.load("mlp_cifar10")
    monkeypatch.setattr(
        module, "load_cifar10", lambda data_dir: module.load_digits()
    )
    small = {"a1": (8,), "a2": (8, 4)}
    monkeypatch.setattr(module.mlp_methods, "ARCHITECTURES", small)
    return module


@pytest.mark.slow
def test_every_method(example, capsys):
    for method in example.mlp_methods.METHODS:
        options = ["--rate", "0.01", "--epochs", "2", "--batch", "100"]
        example.main(["run", "--method", method, *options])
        output = capsys.readouterr().out
        assert f"method {method}" in output
        # What ships has the size of the plain network; an ensemble does not.
        size = 64 * 8 + 8 + 8 * 10 + 10
        size *= example.mlp_methods.EXPANSION if method == "ensemble" else 1
        assert f"parameters {size}" in output


def test_quick_takes_digits_where_cifar10_is_not(capsys, monkeypatch, tmp_path):
    module = example_script.load("mlp_cifar10")
    methods = {
        name: module.mlp_methods.METHODS[name]
        for name in ("baseline", "majority")
    }
    monkeypatch.setattr(module.mlp_methods, "METHODS", methods)
    module.main(["quick", "--data-dir", str(tmp_path / "none")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("On digits: CIFAR-10 is not there")
    found = {
        name: float(test) for name, _, test, _ in map(str.split, lines[2:])
    }
    assert found.keys() == methods.keys()
    assert min(found.values()) > 0.5
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_study_resumes(example, capsys, tmp_path, monkeypatch):
    path = tmp_path / "study.csv"
    arguments = ["study", "--output", str(path), "--epochs", "2"]
    arguments += ["--architectures", "a1", "--optimizers", "adam"]
    arguments += ["--methods", "baseline,majority", "--grid", "4,5"]
    # 4 may be best, and 3 is next then.
    monkeypatch.setattr(example, "GRID", range(4, 6))
    arguments += ["--seeds", "0,1", "--batch", "100"]
    run, runs = example.run, []

    def stopped(args, data):
        if len(runs) == 3:
            raise KeyboardInterrupt
        runs.append(args)
        return run(args, data)

    monkeypatch.setattr(example, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        example.main(arguments)
    before = path.read_text()
    assert len(example.read_rows(path)) == 3
    monkeypatch.setattr(example, "run", lambda *a: runs.append(a) or run(*a))
    example.main(arguments)
    assert path.read_text().startswith(before)
    rows = example.read_rows(path)
    assert len(rows) == len(runs) == 6
    chosen = [row for row in rows if row["method"] == "baseline"]
    best = max(chosen[:2], key=lambda row: float(row["validation"]))
    assert chosen[2]["rate"] == best["rate"]
    assert chosen[2]["seed"] == "1"
    # An ensemble's first member is the baseline, which is not trained again.
    trained = []
    monkeypatch.setattr(example, "run", run)
    fit = example.mlp_methods.Cell.fit
    monkeypatch.setattr(
        example.mlp_methods.Cell, "fit", lambda *a: trained.append(a) or fit(*a)
    )
    arguments[arguments.index("baseline,majority")] = "baseline,ensemble"
    arguments[arguments.index("0,1")] = "2,3"
    example.main([*arguments, "--search", "baseline"])
    members = example.read_rows(path)[6:]
    assert [row["method"] for row in members].count("ensemble") == 2
    assert len(trained) == 3 + 2 * 2
    assert path.with_suffix(".png").exists()
    assert "majority" in capsys.readouterr().out


def test_summary_by_hand(example):
    row = {
        "dataset": "cifar10",
        "architecture": "a1",
        "optimizer": "adam",
        "method": "baseline",
        "epochs": "2",
        "seconds": "4",
        "train": "0.7",
        "last_validation": "0.5",
        "processor": "mine",
    }
    runs = [("0.1", "0", "b=1", 0.5, 0.40), ("0.2", "0", "b=1", 0.6, 0.52)]
    # What only one seed was run with is not the table's.
    runs += [("0.2", "1", "b=1", 0.4, 0.56), ("0.2", "0", "b=2", 0.7, 0.9)]
    # Of what all were run with, validation chooses.
    runs += [("0.3", "0", "b=1", 0.55, 0.1), ("0.3", "1", "b=1", 0.9, 0.1)]
    rows = [
        {**row, "rate": r, "seed": s, "option": o, "validation": v, "test": t}
        for r, s, o, v, t in runs
    ]
    (found,) = example.mlp_tables.summarise(rows)
    assert (found["rate"], found["option"]) == ("0.2", "b=1")
    assert found["seeds"] == 2
    assert found["test"] == pytest.approx(54)
    assert found["spread"] == pytest.approx(np.std([52, 56], ddof=1))


def test_times_on_two_machines_are_not_compared(example, capsys):
    row = {
        **dict.fromkeys(("dataset", "option", "epochs", "rate", "seed"), ""),
        **{"architecture": "a1", "optimizer": "adam", "processor": "mine"},
        **dict.fromkeys(("train", "test", "validation"), "0.5"),
        "last_validation": "",
    }
    ways = [("baseline", "2", "mine"), ("majority", "3", "mine")]
    ways += [("ensemble", "6", "other")]
    names = ("method", "seconds", "processor")
    example.mlp_tables.print_table(
        [{**row, **dict(zip(names, way))} for way in ways]
    )
    cost = capsys.readouterr().out.split("as a multiple")[1]
    assert "| A1, adam | 1.00 | 1.50 |  |" in cost


def test_the_grid_is_the_papers(example):
    assert example.rate_of("adam", -2) == "0.000444444"
    assert example.rate_of("sgd", 1) == "0.0375"


def test_the_grid_goes_on_where_an_end_is_best(example):
    assert example.beyond([-2, 0, 2], 2) == 4
    assert example.beyond([-2, 0, 2], -2) == -4
    assert example.beyond([-2, 0, 2], 0) is None
    # The paper's grid ends at 5.
    assert example.beyond([0, 2, 4], 4) is None
