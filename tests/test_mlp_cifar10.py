"""The CIFAR-10 example, on digits: every method, and a study that resumes."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parent.parent / "examples" / "mlp_cifar10.py"


@pytest.fixture
def example(monkeypatch):
    spec = importlib.util.spec_from_file_location("mlp_cifar10", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(
        module, "load_cifar10", lambda data_dir: module.load_digits()
    )
    monkeypatch.setattr(module, "ARCHITECTURES", {"a1": (8,), "a2": (8, 4)})
    return module


@pytest.mark.slow
def test_every_method(example, capsys):
    for method in example.METHODS:
        options = ["--rate", "0.01", "--epochs", "2", "--batch", "100"]
        example.main(["run", "--method", method, *options])
        output = capsys.readouterr().out
        assert f"method {method}" in output
        # What ships has the size of the plain network; an ensemble does not.
        size = 64 * 8 + 8 + 8 * 10 + 10
        size *= example.EXPANSION if method == "ensemble" else 1
        assert f"parameters {size}" in output


@pytest.mark.slow
def test_a_study_resumes(example, capsys, tmp_path, monkeypatch):
    path = tmp_path / "study.csv"
    arguments = ["study", "--output", str(path), "--epochs", "2"]
    arguments += ["--architectures", "a1", "--optimizers", "adam"]
    arguments += ["--methods", "baseline,majority", "--grid", "2,4"]
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
    }
    runs = [("0.1", "0", 0.5, 0.40), ("0.2", "0", 0.6, 0.52)]
    runs += [("0.2", "1", 0.4, 0.56)]
    rows = [
        {**row, "rate": r, "seed": s, "validation": v, "test": t}
        for r, s, v, t in runs
    ]
    (found,) = example.summarise(rows)
    assert (found["rate"], found["seeds"]) == ("0.2", 2)
    assert found["test"] == pytest.approx(54)
    assert found["spread"] == pytest.approx(np.std([52, 56], ddof=1))


def test_the_grid_is_the_papers(example):
    assert example.grid("adam", [-2, 0]) == ["0.000444444", "0.001"]
    assert example.grid("sgd", [1]) == ["0.0375"]
