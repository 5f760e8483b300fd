"""ResNet50 with majority kernels: the paper's ImageNet recipes.

    python examples/resnet50_imagenet.py train --recipe majority \
        --dataset imagenet2012 --data-dir ~/data --output-dir runs/majority
    python examples/resnet50_imagenet.py train --recipe majority --local
    python examples/resnet50_imagenet.py plot runs/baseline-long runs/majority

`train` goes on where it was stopped: it writes a checkpoint after each epoch,
and the run that goes on equals one that was not stopped. At the end it
collapses the model, gathers its BatchNorm statistics again, evaluates it
before and after, and exports it. `--local` shrinks everything, and takes two
minutes on a laptop, on images that it makes. `plot` draws the curves of runs.

Data: `imagenet2012`, `imagenette` and `cifar10` by tensorflow-datasets, or a
folder with the images in `train/CLASS/` and `test/CLASS/`. The pipeline is
`tf.data` on every backend: it decodes and crops in threads of its own, beside
the training step, and can be told to give the same images in the same order
again. So TensorFlow has to be installed beside another backend.

Weight decay is Keras's, decoupled: a step takes `rate * 1e-4` of each kernel
away, and of each copy of a majority kernel, so that the average of the copies
decays as the plain kernel does. Biases and BatchNorm's scales do not decay.

Needs `pip install keras-mk[jax,examples]` (or another backend).
"""

import argparse
import csv
import json
import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bookkeeping
import image_data
import keras
import numpy as np
import tensorflow as tf

import keras_mk
from keras_mk import baselines


@dataclass(frozen=True)
class Recipe:
    """How long to train, where the rate drops by 0.1, and what."""

    epochs: int
    drops: tuple[int, ...]
    method: str = "plain"


LONG = (330, (90, 180, 240))
RECIPES = {
    "baseline": Recipe(90, (30, 60)),
    "baseline-long": Recipe(*LONG),
    "majority": Recipe(*LONG, "majority"),
    "adv-majority": Recipe(*LONG, "adv-majority"),
    "ensemble": Recipe(*LONG, "ensemble"),
    "distilled": Recipe(*LONG, "distilled"),
}
# What `--local` takes for what is not given.
LOCAL = {
    "dataset": "synthetic",
    "size": 32,
    "batch": 32,
    "epochs": 2,
    "rate": 0.02,
    "train_images": 256,
    "test_images": 128,
}
FULL = {
    "dataset": "imagenet2012",
    "size": 224,
    "batch": 256,
    "epochs": None,
    "rate": 0.1,
    "train_images": None,
    "test_images": None,
}


# Models.


def network(args, classes):
    """Keras's ResNet50, that predicts logits."""
    model = keras.applications.ResNet50(
        weights=None,
        input_shape=(args.size, args.size, 3),
        classes=classes,
        classifier_activation=None,
    )
    if args.stem == "small":
        model = small_stem(model)
    if args.zero_gamma:
        zero_gamma(model)
    return model


def zero_gamma(model):
    """Lets every residual block begin as the identity.

    The scale of a block's last BatchNorm starts at zero (Goyal et al., 2017).
    """
    for layer in model.layers:
        if layer.name.endswith("_3_bn"):
            layer.gamma.assign(np.zeros(layer.gamma.shape))


def small_stem(model):
    """A first convolution of 3 x 3 and no pooling, for small images.

    The stem for ImageNet makes an image of 32 x 32 one of 8 x 8.
    """
    changes = {
        "conv1_pad": {"padding": ((1, 1), (1, 1))},
        "conv1_conv": {"kernel_size": (3, 3), "strides": (1, 1)},
        "pool1_pad": {"padding": ((0, 0), (0, 0))},
        "pool1_pool": {"pool_size": (1, 1), "strides": (1, 1)},
    }
    config = model.get_config()
    for layer in config["layers"]:
        layer["config"].update(changes.get(layer["config"]["name"], {}))
        layer["build_config"] = None
    return keras.Model.from_config(config)


def model_for(args, method, classes, seed, teacher=None):
    keras.utils.set_random_seed(seed + 1)
    plain = network(args, classes)
    if method == "distilled":
        return baselines.distiller(teacher, plain)
    if method == "plain":
        return plain
    model = keras_mk.expand(
        plain,
        args.expansion,
        copies=args.copies,
        scale=bookkeeping.scale_of(args),
        seed=seed,
    )
    if method == "adv-majority":
        return keras_mk.training.AdversarialMK(model, args.epsilon)
    return model


def shipped(model, method):
    """The plain network that a trained model stands for."""
    if method == "distilled":
        return model.student
    if method == "adv-majority":
        model = model.model
    return model if method == "plain" else keras_mk.collapse(model)


def compile_model(args, recipe, model, steps):
    """SGD with momentum, and a rate that drops by 0.1."""
    epochs = args.epochs or recipe.epochs
    drops = args.drops or [epochs * d / recipe.epochs for d in recipe.drops]
    drops = [round(steps * epoch) for epoch in drops]
    rates = [args.rate * 0.1**k for k in range(len(drops) + 1)]
    optimizer = keras.optimizers.SGD(
        keras.optimizers.schedules.PiecewiseConstantDecay(drops, rates),
        momentum=0.9,
        weight_decay=args.weight_decay,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=args.steps_per_execution,
    )


# Training, and going on with it.


def fit(args, recipe, method, images, folder, seed, teacher=None):
    """Trains a model in a folder, from its checkpoint on.

    Returns it, and whether it is trained to the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    steps = images.train_size // args.batch
    epochs = args.epochs or recipe.epochs
    resume = keras_mk.callbacks.Resume(folder / "training", seed)
    with scope():
        model = model_for(args, method, images.classes, seed, teacher)
        compile_model(args, recipe, model, steps)
        if not model.built:
            model.build((None, args.size, args.size, 3))
        start = resume.restore(model)
    until = min(args.until or epochs, epochs)
    print(f"{folder}: {method}, epochs {start} to {epochs}", flush=True)
    bookkeeping.keep_rows(folder / "log.csv", start)
    if start < until:
        model.fit(
            image_data.training_data(args, images, seed, start, epochs),
            steps_per_epoch=steps,
            initial_epoch=start,
            shuffle=False,
            epochs=until,
            validation_data=image_data.evaluation_data(
                args, images.test, images.test_size, images.small
            ),
            callbacks=[
                bookkeeping.Seconds(),
                keras.callbacks.CSVLogger(folder / "log.csv", append=True),
                *bookkeeping.tensorboard(folder),
                # An error, so that the checkpoint before it stays.
                keras.callbacks.TerminateOnNaN(raise_error=True),
                resume,
            ],
            verbose=args.verbose,
        )
    return model, max(start, until) == epochs


def scope():
    """All devices there are, each with its share of a batch."""
    devices = []
    if keras.config.backend() == "tensorflow":
        kinds = map(tf.config.list_logical_devices, ("GPU", "CPU"))
        devices = [device.name for device in next(filter(None, kinds))]
    elif keras.config.backend() == "jax":
        devices = keras.distribution.list_devices()
    if len(devices) < 2:
        return nullcontext()
    print(f"On {len(devices)} devices, each with its share of a batch.")
    if keras.config.backend() == "tensorflow":
        return tf.distribute.MirroredStrategy(devices).scope()
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=devices)
    )
    return nullcontext()


# The end of a run.


def accuracy(model, data):
    labels = np.concatenate([y for _, y in data.as_numpy_iterator()])
    return float((model.predict(data, verbose=0).argmax(-1) == labels).mean())


def finish(args, model, method, images, folder):
    """Collapses, calibrates, evaluates and exports a trained model."""
    count, small = images.test_size, images.small
    data = image_data.evaluation_data(args, images.test, count, small)
    seen = image_data.evaluation_data(
        args, images.train.take(count), count, small
    )
    # Cropped as in training: the kernels are used to that.
    crops = image_data.training_data(args, images, args.seed, 0, 1)
    plain = shipped(model, method)
    again = keras_mk.recalibrate_batch_norm(
        plain, crops, args.calibration_steps, verbose=args.verbose
    )
    figures = {
        "test": accuracy(model, data),
        "collapsed": accuracy(plain, data),
        "recalibrated": accuracy(again, data),
        "train": accuracy(plain, seen),
    }
    print(
        f"{folder}: test accuracy {figures['test']:.4f}, "
        f"collapsed {figures['collapsed']:.4f}, "
        f"with BatchNorm recalibrated {figures['recalibrated']:.4f}"
    )
    plain.save(folder / "plain.keras")
    if method in ("majority", "adv-majority") and args.export:
        report = keras_mk.export_collapsed(
            model.model if method == "adv-majority" else model,
            folder / "saved_model",
            overwrite=True,
            calibration_data=crops,
            calibration_steps=args.calibration_steps,
        )
        print(report)
    shifts = keras_mk.diagnostics.batch_norm_shift(plain, again)
    with open(folder / "batch_norm.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["layer", "mean", "variance"])
        writer.writerows((s.path, s.mean, s.variance) for s in shifts)
    return plain, figures


def train(args):
    folder = Path(args.output_dir)
    recipe = RECIPES[args.recipe]
    images = image_data.load_images(args)
    check(args, images)
    bookkeeping.claim(folder, args)

    def one(method, folder, seed, teacher=None):
        model, done = fit(args, recipe, method, images, folder, seed, teacher)
        if not done:
            return None, None
        return finish(args, model, method, images, folder)

    def ensemble(folder):
        members = [
            one("plain", folder / f"member-{k}", args.seed + 1000 * k)[0]
            for k in range(args.expansion)
        ]
        if any(member is None for member in members):
            return None
        return baselines.Ensemble(members, from_logits=True)

    figures = None
    if recipe.method == "ensemble":
        model = ensemble(folder)
        if model is not None:
            data = (args, images.test, images.test_size, images.small)
            figures = {
                "test": accuracy(model, image_data.evaluation_data(*data))
            }
    elif recipe.method == "distilled":
        teacher = ensemble(folder / "ensemble")
        if teacher is not None:
            # A student that begins as none of its teachers did.
            seed = args.seed + 1000 * args.expansion
            _, figures = one("distilled", folder, seed, teacher)
    else:
        _, figures = one(recipe.method, folder, args.seed)
    if figures is not None:
        record(args, recipe, folder, figures)


def check(args, images):
    steps = images.train_size // args.batch
    if not steps:
        raise SystemExit(
            "There must be at least one batch of training images. Received: "
            f"{images.train_size} images and --batch {args.batch}"
        )
    if steps % args.steps_per_execution:
        raise SystemExit(
            f"--steps-per-execution must divide the {steps} steps of an epoch. "
            f"Received: {args.steps_per_execution}"
        )


def record(args, recipe, folder, figures):
    """Writes the figures of a run, and adds them to a table."""
    log = bookkeeping.read_rows(folder / "log.csv")
    row = {
        "recipe": args.recipe,
        "dataset": args.dataset,
        "train_images": args.train_images or "",
        "size": args.size,
        "stem": args.stem,
        "zero_gamma": args.zero_gamma,
        "batch": args.batch,
        "epochs": args.epochs or recipe.epochs,
        "rate": args.rate,
        "drops": " ".join(f"{drop:g}" for drop in args.drops or ()),
        **bookkeeping.copies_of(args, recipe.method),
        "seed": args.seed,
        **{
            name: round(figures[name], 5) if name in figures else ""
            for name in ("test", "collapsed", "recalibrated", "train")
        },
        "epoch_seconds": round(bookkeeping.median_seconds(log), 2)
        if log
        else "",
        "dtype": args.dtype,
        **bookkeeping.where(),
    }
    (folder / "result.json").write_text(json.dumps(row, indent=2) + "\n")
    if args.results:
        bookkeeping.append_row(Path(args.results), row)


# What runs have come to.


def plot(args):
    """Accuracy and loss, in training and on the test set."""
    panels = {"accuracy": [], "loss": []}
    for k, folder in enumerate(map(Path, args.folders)):
        rows = bookkeeping.read_log(folder)
        for name, curves in panels.items():
            for key, line in ((f"val_{name}", "-"), (name, ":")):
                values = [float(row[key]) for row in rows]
                label = folder.name if line == "-" else None
                curves.append(bookkeeping.Curve(values, f"C{k}{line}", label))
    bookkeeping.draw(panels, args.output, "epoch (dotted: training)")


def table(args):
    keys = ("recipe", "dataset", "train_images", "size", "stem", "zero_gamma")
    keys += ("epochs", "batch", "rate", "expansion", "copies", "scale")
    names = ("test", "collapsed", "recalibrated", "train")
    bookkeeping.print_table(
        Path(args.results),
        (*keys, "backend"),
        {**dict.fromkeys(names, 100), "epoch_seconds": 1},
    )


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_train(commands.add_parser("train"))
    bookkeeping.add_reports(commands)
    args = parser.parse_args(arguments)
    if args.command == "train":
        defaults = LOCAL if args.local else FULL
        for name, value in defaults.items():
            if getattr(args, name) is None:
                setattr(args, name, value)
    return args


def add_train(command):
    command.add_argument("--recipe", choices=RECIPES, default="majority")
    command.add_argument(
        "--dataset", help="imagenet2012, imagenette, cifar10, or a folder"
    )
    command.add_argument("--data-dir", help="of tensorflow-datasets")
    command.add_argument("--output-dir", default="runs/resnet50")
    command.add_argument("--results", help="a CSV file to add a row to")
    command.add_argument(
        "--local", action="store_true", help="small, on images that it makes"
    )
    command.add_argument("--size", type=int, help="of images (default: 224)")
    command.add_argument(
        "--stem",
        choices=["imagenet", "small"],
        default="imagenet",
        help="small: 3 x 3 and no pooling, for images of 32 x 32",
    )
    command.add_argument(
        "--zero-gamma",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="start every residual block as the identity",
    )
    command.add_argument("--batch", type=int, help="(default: 256)")
    command.add_argument(
        "--epochs", type=int, help="of all; the rate drops in proportion"
    )
    command.add_argument(
        "--drops",
        type=lambda text: [float(part) for part in text.split(",")],
        help="epochs after which the rate drops by 0.1, if not the recipe's",
    )
    command.add_argument(
        "--until", type=int, help="stop after this epoch, to go on later"
    )
    command.add_argument("--rate", type=float, help="(default: 0.1)")
    command.add_argument("--weight-decay", type=float, default=1e-4)
    bookkeeping.add_copies(command, "independent")
    command.add_argument("--train-images", type=int, help="use only so many")
    command.add_argument("--test-images", type=int, help="use only so many")
    command.add_argument(
        "--calibration-steps",
        type=int,
        default=50,
        help="batches to gather BatchNorm's statistics on again",
    )
    command.add_argument(
        "--export", action=argparse.BooleanOptionalAction, default=True
    )
    command.add_argument("--dtype", default="float32", help="mixed_bfloat16")
    command.add_argument("--steps-per-execution", type=int, default=1)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--verbose", type=int, default=1)


def main(arguments=None):
    args = parse(arguments)
    if args.command == "train":
        keras.config.set_dtype_policy(args.dtype)
        train(args)
    else:
        {"plot": plot, "table": table}[args.command](args)


if __name__ == "__main__":
    main()
