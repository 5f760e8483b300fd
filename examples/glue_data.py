"""GLUE as T5 reads it: texts, labels, metrics, and batches of like length."""

import argparse
import itertools
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class Task:
    """A task of GLUE, as T5 reads it.

    Attributes:
        fields: What is put into the text, in order.
        labels: The word for each label.
        metrics: GLUE's.
        validation: The splits to evaluate on; GLUE keeps the answers of
            its test sets.
    """

    fields: tuple[str, ...]
    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    validation: tuple[str, ...] = ("validation",)

    def text(self, name, example):
        parts = [f"{f}: {example[f].decode()}" for f in self.fields]
        return " ".join([name, *parts])

    def label(self, value):
        """The number of an example's label; similarities are rounded."""
        return round(float(value) * 5) if self.is_regression else int(value)

    @property
    def is_regression(self):
        return "pearson" in self.metrics


PAIR = ("sentence1", "sentence2")
TASKS = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews",)),
    "sst2": Task(("sentence",), ("negative", "positive")),
    "mrpc": Task(PAIR, ("not_equivalent", "equivalent"), ("f1", "accuracy")),
    "stsb": Task(
        PAIR,
        tuple(f"{number / 5:.1f}" for number in range(26)),
        ("pearson", "spearman"),
    ),
    "rte": Task(PAIR, ("entailment", "not_entailment")),
    "qnli": Task(("question", "sentence"), ("entailment", "not_entailment")),
    "qqp": Task(
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        ("f1", "accuracy"),
    ),
    "mnli": Task(
        ("hypothesis", "premise"),
        ("entailment", "neutral", "contradiction"),
        validation=("validation_matched", "validation_mismatched"),
    ),
    "wnli": Task(PAIR, ("not_entailment", "entailment")),
}


def figures(task, expected, found):
    """GLUE's metrics, times 100."""
    from scipy import stats
    from sklearn import metrics

    functions = {
        "accuracy": metrics.accuracy_score,
        "f1": metrics.f1_score,
        "matthews": metrics.matthews_corrcoef,
        "pearson": lambda a, b: stats.pearsonr(a, b)[0],
        "spearman": lambda a, b: stats.spearmanr(a, b)[0],
    }
    constant = len(set(found)) < 2
    return {
        # The same answer to everything correlates with nothing.
        name: 0.0
        if constant and name in ("pearson", "spearman")
        else 100 * float(functions[name](expected, found))
        for name in task.metrics
    }


# Data: texts as numbers of tokens, in batches of texts of like length.


@dataclass(frozen=True)
class Examples:
    """Token numbers of texts, and the value and the label of each."""

    texts: list[list[int]]
    values: list[float]
    labels: list[int]

    def part(self, start, stop):
        fields = (self.texts, self.values, self.labels)
        return Examples(*(field[start:stop] for field in fields))


def load_rows(args, split):
    import tensorflow_datasets as tfds

    try:
        data = tfds.load(
            f"glue/{args.task}", split=split, data_dir=args.data_dir
        )
    except Exception as error:
        raise SystemExit(
            f"GLUE's '{args.task}' is not there and could not be made.\n"
            "tensorflow-datasets downloads it on first use, which needs the "
            "network; what it has prepared once is found in "
            f"{args.data_dir or '~/tensorflow_datasets'}.\nReceived: --task "
            f"{args.task} --data-dir {args.data_dir}; "
            f"{type(error).__name__}: {str(error)[:300]}"
        ) from error
    return tfds.as_numpy(data)


def load_examples(args, task, tokenizer, split, limit):
    rows = list(itertools.islice(load_rows(args, split), limit))
    texts = tokens_of(tokenizer, [task.text(args.task, row) for row in rows])
    end = tokenizer.end_token_id
    return Examples(
        [[*text[: BUCKETS[-1] - 1], end] for text in texts],
        [float(row["label"]) for row in rows],
        [task.label(row["label"]) for row in rows],
    )


def tokens_of(tokenizer, texts):
    found = tokenizer(texts)
    found = found.to_list() if hasattr(found, "to_list") else found
    return [[int(token) for token in row] for row in found]


def bucket_of(text):
    return next(size for size in BUCKETS if len(text) <= size)


def in_batches(texts, order, size):
    """Groups numbers of texts by length; those left over go with longer."""
    left = []
    for bucket in BUCKETS:
        left += [i for i in order if bucket_of(texts[i]) == bucket]
        while len(left) >= size:
            yield bucket, left[:size]
            left = left[size:]
    if left:
        yield max(bucket_of(texts[i]) for i in left), left


def padded(rows, length, pad):
    return np.array([[*row, *[pad] * (length - len(row))] for row in rows])


def inputs_for(texts, bucket, answers, pad):
    """What the model is called with: texts, and the answers so far."""
    tokens = padded(texts, bucket, pad).astype("int32")
    length = max(map(len, answers))
    before = padded(answers, length, pad).astype("int32")
    return {
        "encoder_token_ids": tokens,
        "encoder_padding_mask": padded(
            [[1] * len(text) for text in texts], bucket, 0
        ).astype("int32"),
        "decoder_token_ids": before,
        "decoder_padding_mask": np.ones_like(before),
    }


def training_data(args, examples, answers, pad, start):
    """Batches without end, shuffled anew each time, from the `start`th on.

    `answers` are the tokens of each label, with the end token. The decoder
    reads them behind a first token, the padding token, and predicts them.
    """
    length = max(map(len, answers))

    def batches():
        for epoch in itertools.count():
            random = np.random.default_rng((args.seed, epoch))
            order = random.permutation(len(examples.texts))
            found = in_batches(examples.texts, order, args.batch)
            # One shape per bucket: what is left over waits for another time.
            full = [batch for batch in found if len(batch[1]) == args.batch]
            yield from (full[i] for i in random.permutation(len(full)))

    def arrays():
        for bucket, chosen in itertools.islice(batches(), start, None):
            labels = [answers[examples.labels[i]] for i in chosen]
            y = padded(labels, length, pad).astype("int32")
            weights = padded([[1] * len(a) for a in labels], length, 0)
            x = inputs_for(
                [examples.texts[i] for i in chosen],
                bucket,
                [[pad, *row[:-1]] for row in y],
                pad,
            )
            yield x, y, weights.astype("float32")

    whole = tf.TensorSpec((args.batch, None), tf.int32)
    names = ("encoder_token_ids", "encoder_padding_mask")
    names += ("decoder_token_ids", "decoder_padding_mask")
    return tf.data.Dataset.from_generator(
        arrays,
        output_signature=(
            dict.fromkeys(names, whole),
            tf.TensorSpec((args.batch, length), tf.int32),
            tf.TensorSpec((args.batch, length), tf.float32),
        ),
    ).prefetch(2)


def one_pass(args, examples, answers, pad):
    """All full batches, once; a smaller one if there is none."""
    size = len(examples.texts)
    args = argparse.Namespace(**vars(args))
    args.batch = min(args.batch, size)
    count = size // args.batch
    data = training_data(args, examples, answers, pad, 0).take(count)
    return data.apply(tf.data.experimental.assert_cardinality(count))
