"""`keras-mk demo`: a plain and a majority-kernel network side by side."""

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.table import Table

from keras_mk.collapse import collapse
from keras_mk.expand import expand
from keras_mk.export import export_collapsed
from keras_mk.plan import summarize

HIDDEN = (128, 64)
EXPANSION = 3
BATCH = 64
TRAINING_IMAGES = 900
WRONG_LABELS = 0.2
# An epoch of `fit` runs over the few images several times.
PASSES = 4


def run(output_dir: str, epochs: int = 10, seeds: int = 3) -> None:
    """Trains both networks for each seed, and compares them.

    Writes `curves.png`, and of the last seed `majority.keras`, the network as
    it was trained, `model.keras`, its plain model, and `saved_model`.
    """
    x_train, y_train, x_test, y_test = _digits()
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[dict[str, Any]]] = {"plain": [], "majority": []}
    for seed in range(seeds):
        for method in runs:
            print(f"\n{method}, seed {seed + 1} of {seeds}")
            keras.utils.set_random_seed(seed)
            model = build(method)
            model.compile(
                keras.optimizers.Adam(2e-3),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )
            start = time.perf_counter()
            history = model.fit(
                x_train,
                y_train,
                validation_data=(x_test, y_test),
                batch_size=BATCH,
                epochs=epochs,
            )
            seconds = time.perf_counter() - start
            runs[method].append(
                {"model": model, "seconds": seconds, **history.history}
            )
    Console().print(_table(runs))
    _plot(runs, folder / "curves.png")
    _deploy(runs["majority"][-1]["model"], x_test, folder)


def _deploy(trained: keras.Model, x_test: Any, folder: Path) -> None:
    """Writes the trained model, the plain one, and a SavedModel of it."""
    training = folder / "majority.keras"
    trained.save(training)
    collapse(trained, verify=x_test).save(folder / "model.keras")
    print(f"\nWrote {folder / 'curves.png'}: the curves of both networks.")
    print(f"Wrote {training}, to go on training: {_megabytes(training)}.")
    plain = folder / "model.keras"
    print(f"Wrote {plain}, the plain model: {_megabytes(plain)}.")
    print("Writing a SavedModel, and loading it in a fresh process ...")
    try:
        report = export_collapsed(
            trained, folder / "saved_model", verify=x_test, overwrite=True
        )
    except ImportError as error:
        print(f"No SavedModel: {error}")
    else:
        print(f"Wrote {report}.")


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.2f} MB"


def build(method: str) -> keras.Model:
    """An MLP for the 8 x 8 digits, plain or with majority kernels."""
    hidden = [keras.layers.Dense(n, activation="relu") for n in HIDDEN]
    plain = keras.Sequential(
        [keras.Input((64,), name="pixels"), *hidden, keras.layers.Dense(10)]
    )
    if method == "plain":
        return plain
    return expand(plain, EXPANSION, copies="independent")


def _digits() -> tuple[Any, ...]:
    """Training images of which a fifth have a random label, and test images.

    Clean digits are too easy to tell methods apart; with wrong labels a
    network that fits its training data too closely pays for it.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "The demo needs scikit-learn and matplotlib. Install them with "
            "`pip install keras-mk[demo]`."
        ) from error
    x, y = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    order = random.permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order].astype("int32")
    train, test = slice(TRAINING_IMAGES), slice(TRAINING_IMAGES, None)
    x_train, y_train = x[train], y[train]
    wrong = random.random(TRAINING_IMAGES) < WRONG_LABELS
    y_train = np.where(wrong, random.integers(10, size=wrong.shape), y_train)
    x_train = np.tile(x_train, (PASSES, 1))
    return x_train, np.tile(y_train, PASSES), x[test], y[test]


def _table(runs: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(
        title=f"scikit-learn digits, {TRAINING_IMAGES} training images, "
        f"{WRONG_LABELS:.0%} of their labels random"
    )
    for column in (
        "method",
        "training parameters",
        "deployed parameters",
        "test accuracy",
        "seconds",
    ):
        table.add_column(column, justify="right")
    for method, results in runs.items():
        accuracy = [100 * result["val_accuracy"][-1] for result in results]
        model = results[0]["model"]
        table.add_row(
            method,
            f"{model.count_params():,}",
            f"{summarize(model).parameters['deployed']:,}",
            f"{np.mean(accuracy):.2f} ± {np.std(accuracy):.2f} %",
            f"{np.mean([result['seconds'] for result in results]):.1f}",
        )
    return table


def _plot(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5))
    for axis, key in zip(axes, ("val_accuracy", "val_loss")):
        for method, results in runs.items():
            curves = np.array([result[key] for result in results])
            epochs = np.arange(1, curves.shape[1] + 1)
            axis.plot(epochs, curves.mean(axis=0), label=method)
            axis.fill_between(
                epochs, curves.min(axis=0), curves.max(axis=0), alpha=0.2
            )
        axis.set_xlabel("epoch")
        axis.set_title(key.replace("val_", "test "))
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
