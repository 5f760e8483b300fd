"""A pretrained T5 on GLUE, fine-tuned with majority kernels.

    python examples/t5_glue.py train --task rte --method majority \
        --output-dir runs/rte-majority
    python examples/t5_glue.py table examples/results/t5_glue.csv
    python examples/t5_glue.py plot runs/rte-baseline runs/rte-majority

`train` loads a KerasHub preset (`t5_small_multi`, or a folder), copies its
kernels, fine-tunes on one task in T5's text-to-text form, and evaluates every
`--evaluate-every` steps. It goes on where it was stopped, with the state of
the optimizer: the weights are written after each evaluation. At the end the
model is collapsed and saved as a preset, which `from_preset` opens without
keras_mk, and exported as a SavedModel.

Evaluation decodes: the model answers with the most likely token at each step,
among those that go on with one of the task's labels. So each answer is a
label; where the labels differ in their first token, as most do, it takes one
step of the decoder. All of it is done in batches, with the averaged kernels.

Needs `pip install keras-mk[jax,hub,examples]` (or another backend).
"""

import argparse
import json
import os
import shutil
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bookkeeping
import glue_data
import keras
import numpy as np

import keras_mk
from keras_mk import baselines

# Training examples that nothing is trained on, to choose rates and soups by.
HELD_OUT = 250
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
METHODS = (
    "baseline",
    "majority",
    "adv-majority",
    "soup-uniform",
    "soup-greedy",
)


# Models.


def keras_hub():
    try:
        import keras_hub
    except ImportError as error:
        raise SystemExit(
            "This needs KerasHub: pip install keras-mk[hub]"
        ) from error
    return keras_hub


def load_preset(args):
    """The pretrained model, and what turns text into tokens."""
    hub = keras_hub()
    try:
        preprocessor = hub.models.T5Seq2SeqLMPreprocessor.from_preset(
            args.preset
        )
        lm = load_lm(args.preset, args.dtype)
    except Exception as error:
        raise SystemExit(
            f"The preset '{args.preset}' could not be loaded. `--preset` must "
            "be a name that KerasHub knows, which it downloads, or a folder "
            f"written by `save_to_preset`.\n{type(error).__name__}: "
            f"{str(error)[:300]}"
        ) from error
    return lm, preprocessor


def load_lm(preset, dtype="float32"):
    return keras_hub().models.T5Seq2SeqLM.from_preset(
        preset, preprocessor=None, dtype=dtype
    )


def expanded(args, lm):
    return keras_mk.expand(
        lm,
        args.expansion,
        copies=args.copies,
        scale=bookkeeping.scale_of(args),
        include=args.include,
        seed=args.seed,
    )


def in_float32(args, method, lm):
    """What ships: KerasHub does not open a preset in mixed precision."""
    if args.dtype == "float32":
        return lm
    result = load_lm(args.preset)
    if method != "baseline":
        result = expanded(args, result)
    result.set_weights(lm.get_weights())
    return result


def compile_model(args, model):
    optimizers = {
        # With its own epsilon_1 of 1e-30 the second moment of a weight that
        # has no gradient, as most relative positions have not, underflows to
        # 0, and the weight becomes NaN.
        "adafactor": lambda: keras.optimizers.Adafactor(
            args.rate, relative_step=False, epsilon_1=1e-20
        ),
        "adamw": lambda: keras.optimizers.AdamW(args.rate, weight_decay=0.0),
    }
    model.compile(
        optimizer=optimizers[args.optimizer](),
        loss=LOSS,
        weighted_metrics=[],
    )


class Reader:
    """Answers with one of the labels, step by step."""

    def __init__(self, lm, answers, pad):
        ins, outs = lm.backbone.input, lm.backbone.output
        self.encoder = keras.Model(
            [ins["encoder_token_ids"], ins["encoder_padding_mask"]],
            outs["encoder_sequence_output"],
        )
        logits = lm.backbone.token_embedding(
            outs["decoder_sequence_output"], reverse=True
        )
        self.decoder = keras.Model(
            [
                outs["encoder_sequence_output"],
                ins["encoder_padding_mask"],
                ins["decoder_token_ids"],
                ins["decoder_padding_mask"],
            ],
            logits,
        )
        self.answers, self.pad = answers, pad
        self.length = max(map(len, answers))

    def read(self, texts, batch):
        """The number of the label that the model answers each text with."""
        found = np.zeros(len(texts), int)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for bucket, chosen in glue_data.in_batches(texts, order, batch):
            # The last batch is filled up: one shape per bucket.
            filled = (chosen * batch)[:batch]
            answers = self._answer([texts[i] for i in filled], bucket)
            found[chosen] = answers[: len(chosen)]
        return found

    def _answer(self, texts, bucket):
        left = [list(range(len(self.answers))) for _ in texts]
        so_far = [[self.pad] * self.length for _ in texts]
        x = glue_data.inputs_for(texts, bucket, so_far, self.pad)
        mask = x["encoder_padding_mask"]
        encoded = self.encoder.predict_on_batch([x["encoder_token_ids"], mask])
        for step in range(self.length):
            if all(len(labels) == 1 for labels in left):
                break
            before = np.array(so_far, "int32")
            logits = self.decoder.predict_on_batch(
                [encoded, mask, before, np.ones_like(before)]
            )
            for row, labels in enumerate(left):
                if len(labels) == 1:
                    continue
                tokens = {self.answers[k][step] for k in labels}
                best = max(tokens, key=lambda t: logits[row, step, t])
                left[row] = [k for k in labels if self.answers[k][step] == best]
                if step + 1 < self.length:
                    so_far[row][step + 1] = best
        return np.array([labels[0] for labels in left])


# Training, and going on with it.


class Evaluation(keras.callbacks.Callback):
    """Adds GLUE's metrics to the logs."""

    def __init__(self, evaluate):
        super().__init__()
        self.evaluate = evaluate

    def on_epoch_end(self, epoch, logs=None):
        if keras.config.backend() == "jax":
            self.model.jax_state_sync()
        logs.update(self.evaluate())


class Run:
    """What the runs of one task share."""

    def __init__(self, args):
        self.args = args
        self.task = glue_data.TASKS[args.task]
        self.preprocessor = load_preset(args)[1]
        tokenizer = self.preprocessor.tokenizer
        self.pad = tokenizer.pad_token_id
        words = glue_data.tokens_of(tokenizer, list(self.task.labels))
        self.answers = [[*word, tokenizer.end_token_id] for word in words]

        def load(split, limit):
            return glue_data.load_examples(
                args, self.task, tokenizer, split, limit
            )

        known = load("train", args.train_examples)
        # By what is added to the name of a metric: MNLI has two.
        self.test = {
            split.removeprefix("validation"): load(split, args.test_examples)
            for split in self.task.validation
        }
        size = len(known.texts)
        kept = size - min(HELD_OUT, max(1, size // 10))
        self.train = known.part(0, kept)
        self.held_out = known.part(kept, None)
        if len(self.train.texts) < args.batch:
            raise SystemExit(
                "There must be at least one batch of training examples. "
                f"Received: {len(self.train.texts)} examples and --batch "
                f"{args.batch}"
            )
        if args.steps < args.evaluate_every:
            raise SystemExit(
                "`--steps` must be at least `--evaluate-every`. Received: "
                f"--steps {args.steps} --evaluate-every {args.evaluate_every}"
            )

    def evaluation(self, lm, sets):
        """A function that gives a model's figures as it is then.

        The metrics on each of the sets, and the average of all as `score`.
        """
        reader = Reader(lm, self.answers, self.pad)

        def evaluate():
            values = {}
            for name, examples in sets.items():
                found = reader.read(examples.texts, self.args.batch)
                expected = examples.labels
                if self.task.is_regression:
                    found, expected = found / 5, examples.values
                metrics = glue_data.figures(self.task, expected, found)
                values |= {f"{m}{name}": v for m, v in metrics.items()}
            return {**values, "score": float(np.mean([*values.values()]))}

        return evaluate

    def held_out_score(self, lm):
        return self.evaluation(lm, {"": self.held_out})()["score"]

    def figures(self, plain):
        """What a model comes to, on GLUE's examples and those held out."""
        metrics = self.evaluation(plain, self.test)()
        score = metrics.pop("score")
        return {
            "score": round(score, 3),
            "metrics": " ".join(f"{k}={v:.2f}" for k, v in metrics.items()),
            "held_out": round(self.held_out_score(plain), 3),
        }

    def losses(self, lm):
        """On what is held out, of the averaged kernels and of mixtures."""
        data = glue_data.one_pass(
            self.args, self.held_out, self.answers, self.pad
        )
        found = keras_mk.diagnostics.sharpness(lm, data, loss=LOSS, draws=5)
        return {
            "mean_loss": round(found.mean_loss, 5),
            "mixed_loss": round(found.mixed_loss, 5),
        }

    def fit(self, method, folder, seed):
        """Fine-tunes a copy of the preset, from its checkpoint on."""
        args = argparse.Namespace(**{**vars(self.args), "seed": seed})
        folder.mkdir(parents=True, exist_ok=True)
        keras.utils.set_random_seed(seed + 1)
        lm = model = load_preset(args)[0]
        if method != "baseline":
            lm = model = expanded(args, lm)
        if method == "adv-majority":
            model = keras_mk.training.AdversarialMK(lm, args.epsilon)
        compile_model(args, model)
        resume = keras_mk.callbacks.Resume(folder / "training", seed)
        start = resume.restore(model)
        rounds = args.steps // args.evaluate_every
        if start > rounds:
            raise SystemExit(
                f"The run in {folder} is at step {start * args.evaluate_every}"
                f" already. Received: --steps {args.steps}"
            )
        bookkeeping.keep_rows(folder / "log.csv", start)
        print(f"{folder}: {method}, from step {start * args.evaluate_every}")
        if start < rounds:
            model.fit(
                glue_data.training_data(
                    args,
                    self.train,
                    self.answers,
                    self.pad,
                    start * args.evaluate_every,
                ),
                steps_per_epoch=args.evaluate_every,
                initial_epoch=start,
                shuffle=False,
                epochs=min(args.until or rounds, rounds),
                callbacks=[
                    bookkeeping.Seconds(),
                    Evaluation(self.evaluation(lm, self.test)),
                    keras_mk.diagnostics.Diagnostics(),
                    keras.callbacks.CSVLogger(folder / "log.csv", append=True),
                    *bookkeeping.tensorboard(folder),
                    keras.callbacks.TerminateOnNaN(raise_error=True),
                    resume,
                ],
                verbose=args.verbose,
            )
        return in_float32(args, method, lm)


def train(args):
    folder = Path(args.output_dir)
    run = Run(args)
    bookkeeping.claim(folder, args)
    is_soup = args.method.startswith("soup")
    if is_soup:
        models = ingredients(args, run)
    else:
        model = run.fit(args.method, folder, args.seed)
    if args.until and args.until < args.steps // args.evaluate_every:
        return
    if is_soup:
        plain = soup(args, run, models)
        found = run.figures(plain)
    elif args.method == "baseline":
        plain = model
        found = run.figures(plain) | logged(args, folder)
    else:
        plain = keras_mk.collapse(model)
        found = run.figures(plain) | logged(args, folder) | run.losses(model)
    # First of all: what comes after may fail, and the training was long.
    record(args, folder, found)
    save_preset(plain, run.preprocessor, folder / "preset")
    if "majority" in args.method and args.export:
        report = keras_mk.export_collapsed(
            model, folder / "saved_model", overwrite=True
        )
        print(report)


def logged(args, folder):
    """What was seen in training."""
    rows = bookkeeping.read_rows(folder / "log.csv")
    seconds = bookkeeping.median_seconds(rows) / args.evaluate_every
    found = {
        "best": round(max(float(row["score"]) for row in rows), 3),
        "step_seconds": round(seconds, 4),
    }
    if "mk_spread" in rows[-1]:
        found["spread"] = round(float(rows[-1]["mk_spread"]), 5)
    return found


def soup(args, run, models):
    if args.method == "soup-uniform":
        return baselines.uniform_soup(models)
    return baselines.greedy_soup(models, run.held_out_score)


def ingredients(args, run):
    """The models of a soup: those of finished runs, or new ones."""
    if not args.members:
        return [
            run.fit(
                "baseline",
                Path(args.output_dir) / f"member-{k}",
                args.seed + 1000 * k,
            )
            for k in range(args.expansion)
        ]
    presets = [str(folder / "preset") for folder in args.members]
    for preset in presets:
        if not Path(preset).is_dir():
            raise SystemExit(
                "`--members` must be folders of finished runs. Received: "
                f"--members with {preset} missing"
            )
    args.expansion = len(presets)
    return [load_lm(preset) for preset in presets]


def save_preset(plain, preprocessor, target):
    """As a KerasHub preset, beside its place and then moved there."""
    plain.preprocessor = preprocessor
    written = target.with_name(f"writing.{target.name}")
    shutil.rmtree(written, ignore_errors=True)
    plain.save_to_preset(str(written))
    shutil.rmtree(target, ignore_errors=True)
    os.replace(written, target)
    print(f"{target}: {plain.count_params():,} parameters")


def record(args, folder, found):
    copies = bookkeeping.copies_of(args, args.method)
    row = {
        "task": args.task,
        "method": args.method,
        "preset": Path(args.preset).name,
        "optimizer": args.optimizer,
        "rate": args.rate,
        "steps": args.steps,
        "batch": args.batch,
        "dtype": args.dtype,
        **copies,
        "include": (args.include or "") if copies["copies"] else "",
        "seed": args.seed,
        **{name: found.get(name, "") for name in FIGURES},
        **bookkeeping.where(),
    }
    print("  ".join(f"{key} {value}" for key, value in row.items()))
    (folder / "result.json").write_text(json.dumps(row, indent=2) + "\n")
    if args.results:
        bookkeeping.append_row(Path(args.results), row)


# What runs have come to.


FIGURES = ("score", "best", "held_out", "metrics", "spread", "mean_loss")
FIGURES += ("mixed_loss", "step_seconds")
SETTING = ("preset", "optimizer", "rate", "steps", "batch", "dtype")
SETTING += ("expansion", "copies", "scale", "include", "backend")


def table(args):
    """Every setting, and then the best of each method, task by task."""
    path = Path(args.results)
    scales = {name: 1 for name in FIGURES if name != "metrics"}
    bookkeeping.print_table(path, ("task", "method", *SETTING), scales)
    rows = bookkeeping.read_rows(path)
    tasks = [name for name in glue_data.TASKS if name in column(rows, "task")]
    print("\n| method | " + " | ".join(tasks) + " | average |")
    print("|" + "---|" * (len(tasks) + 2))
    for method in (m for m in METHODS if m in column(rows, "method")):
        scores = [chosen_scores(rows, task, method) for task in tasks]
        cells = [bookkeeping.mean_and_spread(found) for found in scores]
        whole = f"{np.mean([*map(np.mean, scores)]):.2f}" if all(scores) else ""
        print("| " + " | ".join([method, *cells, whole]) + " |")


def column(rows, name):
    return {row[name] for row in rows}


def chosen_scores(rows, task, method):
    """The scores of a task's runs with what the held-out examples prefer.

    Of what as many seeds as possible were run with.
    """
    ways = {}
    for row in rows:
        if (row["task"], row["method"]) == (task, method):
            ways.setdefault(tuple(row[k] for k in SETTING), []).append(row)
    if not ways:
        return []
    best = max(
        ways.values(),
        key=lambda way: (
            len(way),
            np.mean([float(r["held_out"]) for r in way]),
        ),
    )
    return [float(row["score"]) for row in best]


def plot(args):
    """The score as training goes on, a plot per task, a color per method."""
    panels = {}
    for folder in map(Path, args.folders):
        rows = bookkeeping.read_log(folder)
        result = folder / "result.json"
        if not result.exists():
            raise SystemExit(
                f"There is no result.json in {folder}: `plot` takes finished "
                "runs. TensorBoard shows the others."
            )
        run = json.loads(result.read_text())
        method, curves = run["method"], panels.setdefault(run["task"], [])
        curves.append(
            bookkeeping.Curve(
                [float(row["score"]) for row in rows],
                f"C{METHODS.index(method)}",
                # Of several seeds, only the first.
                None if method in {c.label for c in curves} else method,
                run["steps"] // len(rows),
            )
        )
    bookkeeping.draw(panels, args.output, "step")


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_train(commands.add_parser("train"))
    bookkeeping.add_reports(commands)
    return parser.parse_args(arguments)


def add_train(command):
    command.add_argument("--task", choices=glue_data.TASKS, required=True)
    command.add_argument("--method", choices=METHODS, default="majority")
    command.add_argument("--preset", default="t5_small_multi")
    command.add_argument("--data-dir", help="of tensorflow-datasets")
    command.add_argument("--output-dir", default="runs/t5")
    command.add_argument("--results", help="a CSV file to add a row to")
    command.add_argument(
        "--optimizer", choices=["adafactor", "adamw"], default="adafactor"
    )
    command.add_argument("--rate", type=float, default=1e-3, help="constant")
    command.add_argument("--steps", type=int, default=2000)
    command.add_argument("--batch", type=int, default=32)
    command.add_argument("--evaluate-every", type=int, default=200)
    command.add_argument(
        "--until", type=int, help="stop after this evaluation, to go on later"
    )
    bookkeeping.add_copies(command, "replicate")
    command.add_argument(
        "--include", help="convert only layers in whose path this is found"
    )
    command.add_argument(
        "--members",
        type=Path,
        nargs="+",
        help="folders of finished runs to make a soup of, not new ones",
    )
    command.add_argument("--train-examples", type=int, help="only so many")
    command.add_argument("--test-examples", type=int, help="only so many")
    command.add_argument(
        "--export", action=argparse.BooleanOptionalAction, default=True
    )
    command.add_argument(
        "--dtype", choices=["float32", "mixed_bfloat16"], default="float32"
    )
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--verbose", type=int, default=1)


def main(arguments=None):
    args = parse(arguments)
    {"train": train, "plot": plot, "table": table}[args.command](args)


if __name__ == "__main__":
    main()
