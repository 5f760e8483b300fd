"""The T5 example, on a tiny T5 with a tokenizer trained here."""

import csv
import io
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_mk
from tests import example_script

keras_hub = pytest.importorskip("keras_hub", reason="extra `hub`")
pytest.importorskip("tensorflow_text", reason="extra `hub`")
sentencepiece = pytest.importorskip("sentencepiece", reason="extra `hub`")

WORDS = ["film", "was", "good", "bad", "fine", "very", "not", "so", "it"]


def sentences(count, seed):
    random = np.random.default_rng(seed)
    for _ in range(count):
        label = int(random.integers(2))
        words = [*random.choice(WORDS, random.integers(3, 9))]
        words = [w for w in words if w not in ("good", "bad")]
        words.insert(0, ("bad", "good")[label])
        yield {"sentence": " ".join(words).encode(), "label": label}


@pytest.fixture(scope="module")
def example():
    module = example_script.load("t5_glue")
    module.glue_data.load_rows = lambda args, split: sentences(
        *((64, 0) if split == "train" else (21, 1))
    )
    module.glue_data.BUCKETS = (32,)
    return module


@pytest.fixture(scope="module")
def preset(example, tmp_path_factory):
    model = io.BytesIO()
    texts = [row["sentence"].decode() for row in sentences(200, 2)]
    texts += [
        w for task in example.glue_data.TASKS.values() for w in task.labels
    ] * 4
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*texts, "sst2 sentence:"]),
        model_writer=model,
        vocab_size=90,
        model_type="unigram",
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        pad_piece="<pad>",
        eos_piece="</s>",
        unk_piece="<unk>",
    )
    tokenizer = keras_hub.models.T5Tokenizer(proto=model.getvalue())
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.T5Backbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=0.1,
    )
    preprocessor = keras_hub.models.T5Seq2SeqLMPreprocessor(
        tokenizer, encoder_sequence_length=16, decoder_sequence_length=8
    )
    lm = keras_hub.models.T5Seq2SeqLM(backbone, preprocessor)
    folder = tmp_path_factory.mktemp("t5") / "preset"
    lm.save_to_preset(str(folder))
    return folder


def options(preset, folder, *more):
    return [
        *("train", "--task", "sst2", "--preset", str(preset)),
        *("--output-dir", str(folder), "--optimizer", "adamw"),
        *("--rate", "0.01", "--batch", "16", "--verbose", "0"),
        *more,
    ]


def log(folder):
    with open(folder / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    # Keras adds columns of validation, and leaves them empty.
    left_out = ("seconds", "val_")
    return [
        {k: v for k, v in row.items() if not k.startswith(left_out)}
        for row in rows
    ]


@pytest.mark.slow
def test_trains_resumes_and_ships(example, preset, tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    results = tmp_path / "results.csv"
    steps = ["--steps", "24", "--evaluate-every", "8"]
    example.main(options(preset, whole, *steps, "--results", str(results)))
    example.main(options(preset, parts, *steps, "--until", "1"))
    assert len(log(parts)) == 1
    example.main(options(preset, parts, *steps, "--no-export"))
    for a, b in zip(log(whole), log(parts), strict=True):
        for key in a:
            assert float(a[key]) == pytest.approx(float(b[key]), rel=1e-4)
    losses = [float(row["loss"]) for row in log(whole)]
    assert losses[2] < 0.8 * losses[0]
    assert (whole / "saved_model").is_dir()
    # The preset opens where there is no keras_mk, and writes the same text.
    run = example.Run(example.parse(options(preset, whole, *steps)))
    lm = run.fit("majority", whole, 0)
    lm.preprocessor = run.preprocessor
    lm.compile(sampler="greedy")
    text = "sst2 sentence: good film"
    expected = lm.generate(text, max_length=8)
    code = (
        "import sys; sys.modules['keras_mk'] = None; import keras_hub;"
        f"lm = keras_hub.models.T5Seq2SeqLM.from_preset({str(whole)!r}"
        "+ '/preset'); lm.compile(sampler='greedy');"
        f"print('>' + lm.generate({text!r}, max_length=8))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == f">{expected}"
    with open(results, newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["method"] == "majority"
    capsys.readouterr()
    example.main(["table", str(results)])
    assert "| sst2 | majority |" in capsys.readouterr().out
    chart = tmp_path / "curves.png"
    example.main(["plot", str(whole), str(parts), "--output", str(chart)])
    assert chart.stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("method", ["baseline", "adv-majority", "soup-greedy"])
def test_other_methods(example, preset, tmp_path, method):
    steps = ["--steps", "4", "--evaluate-every", "2", "--no-export"]
    more = ["--method", method, "--expansion", "2"]
    example.main(options(preset, tmp_path, *steps, *more))
    found = json.loads((tmp_path / "result.json").read_text())
    assert 0 <= found["score"] <= 100
    assert 0 <= found["held_out"] <= 100
    several = method != "baseline"
    assert found["expansion"] == (2 if several else "")
    assert found["copies"] == ("replicate" if "majority" in method else "")
    assert (found["spread"] != "") == ("majority" in method)
    if "majority" in method:
        # Not far apart after four steps, so the losses are not either.
        assert 0 < found["spread"] < 1
        losses = found["mean_loss"], found["mixed_loss"]
        assert losses[0] == pytest.approx(losses[1], rel=0.1)
        assert losses[0] != losses[1]
    lm = keras_hub.models.T5Seq2SeqLM.from_preset(str(tmp_path / "preset"))
    plain = keras_hub.models.T5Seq2SeqLM.from_preset(str(preset))
    assert lm.count_params() == plain.count_params()


@pytest.mark.slow
def test_a_soup_of_finished_runs(example, preset, tmp_path):
    steps = ["--steps", "2", "--evaluate-every", "2", "--no-export"]
    members = [tmp_path / name for name in ("a", "b")]
    for seed, folder in enumerate(members):
        more = ["--method", "baseline", "--seed", str(seed)]
        example.main(options(preset, folder, *steps, *more))
    soup = tmp_path / "soup"
    more = ["--method", "soup-uniform", "--members", *map(str, members)]
    example.main(options(preset, soup, *steps, *more))
    assert not (soup / "member-0").exists()
    found = json.loads((soup / "result.json").read_text())
    assert found["expansion"] == 2
    a, b, both = (
        example.load_lm(str(folder / "preset")).get_weights()
        for folder in (*members, soup)
    )
    for x, y, mean in zip(a, b, both, strict=True):
        np.testing.assert_allclose(mean, (x + y) / 2, rtol=1e-5, atol=1e-7)
    assert any(np.any(x != y) for x, y in zip(a, b))
    with pytest.raises(SystemExit, match="folders of finished runs"):
        example.main(options(preset, soup, *steps, *more, str(tmp_path / "c")))


@pytest.mark.slow
def test_mixed_precision(example, preset, tmp_path):
    more = ["--steps", "2", "--evaluate-every", "1", "--no-export"]
    more += ["--dtype", "mixed_bfloat16"]
    example.main(options(preset, tmp_path, *more, "--until", "1"))
    example.main(options(preset, tmp_path, *more))
    assert all(float(row["mk_spread"]) > 0 for row in log(tmp_path))
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["dtype"] == "mixed_bfloat16"
    args = example.parse(options(preset, tmp_path, *more))
    trained = example.expanded(args, example.load_preset(args)[0])
    assert trained.backbone.compute_dtype == "bfloat16"
    example.compile_model(args, trained)
    keras_mk.callbacks.Resume(tmp_path / "training").restore(trained)
    expected = keras_mk.collapse(trained).get_weights()
    # What ships is float32, and opens without being told so.
    shipped = keras_hub.models.T5Seq2SeqLM.from_preset(str(tmp_path / "preset"))
    assert shipped.backbone.compute_dtype == "float32"
    before = example.load_lm(str(preset)).get_weights()
    for x, y in zip(shipped.get_weights(), expected, strict=True):
        assert x.dtype == y.dtype == "float32"
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)
    assert any(np.any(x != y) for x, y in zip(before, expected))


def test_only_some_layers(example, preset, tmp_path):
    more = ["--include", "cross_attention"]
    args = example.parse(options(preset, tmp_path, *more))
    expanded = example.expanded(args, example.load_preset(args)[0])
    paths = [d.path for d in keras_mk.diagnostics.diversity(expanded)]
    assert len(paths) == 4
    assert all("cross_attention" in path for path in paths)


def test_a_file_with_other_columns(example, tmp_path):
    path = tmp_path / "results.csv"
    example.bookkeeping.append_row(path, {"a": 1})
    with pytest.raises(SystemExit, match="same columns"):
        example.bookkeeping.append_row(path, {"a": 1, "b": 2})
    assert path.read_text().split() == ["a", "1"]


def test_what_is_held_out_is_not_trained_on(example, preset, tmp_path):
    args = example.parse(options(preset, tmp_path))
    run = example.Run(args)
    every = example.glue_data.load_examples(
        args, run.task, run.preprocessor.tokenizer, "train", args.train_examples
    )
    kept = len(run.train.texts)
    assert len(every.texts) // 10 == len(run.held_out.texts) > 0
    assert run.train == every.part(0, kept)
    assert run.held_out == every.part(kept, None)


def test_adafactor_leaves_weights_without_gradient_alone(example):
    args = example.parse(["train", "--task", "rte", "--optimizer", "adafactor"])
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    example.compile_model(args, model)
    kernel = model.layers[0].kernel
    before = np.array(kernel)
    gradient = np.zeros((3, 2), "float32")
    # What Keras's own epsilon_1 makes NaN of: a head that hardly matters.
    gradient[0] = 1e-4, 1e-10
    model.optimizer.apply([keras.ops.convert_to_tensor(gradient)], [kernel])
    after = np.array(kernel)
    np.testing.assert_array_equal(after[1:], before[1:])
    assert (after[0] != before[0]).all()


def test_the_reader_answers_as_generate_does(example, preset):
    """Where the model's own answers are labels, the reader's are the same."""
    lm, preprocessor = example.load_preset(
        example.parse(options(preset, "unused"))
    )
    tokenizer = preprocessor.tokenizer
    pad, end = tokenizer.pad_token_id, tokenizer.end_token_id
    texts = [[5, 9, 12, end], [7, end], [20, 21, 22, 23, 24, end]]
    sampler = keras_hub.samplers.GreedySampler()
    lm.compile(sampler=sampler)
    free = []
    for text in texts:
        x = example.glue_data.inputs_for([text], 32, [[pad] * 4], pad)
        x["decoder_padding_mask"] = np.array([[1, 0, 0, 0]], "int32")
        out = lm.generate(x, stop_token_ids=None)
        free.append([int(t) for t in np.array(out["decoder_token_ids"])[0][1:]])
    answers = [*free, [3, 4, 5], [6, 6, 6]]
    reader = example.Reader(lm, answers, pad)
    found = reader.read(texts, batch=2)
    for text, answer in zip(free, found):
        assert answers[answer] == text


def test_labels_of_different_lengths(example, preset):
    args = example.parse(options(preset, "unused"))
    lm, preprocessor = example.load_preset(args)
    pad = preprocessor.tokenizer.pad_token_id
    answers = [[3, 1], [4, 5, 1], [4, 6, 7, 8, 1]]
    texts = [[k, k + 1, 1] for k in range(3, 40)]
    found = example.Reader(lm, answers, pad).read(texts, batch=8)
    assert set(found) <= {0, 1, 2}
    # Each text by itself is answered the same.
    for k in (0, 20, 36):
        alone = example.Reader(lm, answers, pad).read([texts[k]], batch=8)
        assert alone == [found[k]]


def test_the_table_takes_what_was_held_out_to_choose(example, tmp_path, capsys):
    path = tmp_path / "results.csv"
    rows = [
        ("rte", "baseline", "0.1", 60, 50),
        ("rte", "baseline", "0.1", 64, 52),
        # Better, but the examples held out prefer the other rate.
        ("rte", "baseline", "0.2", 90, 40),
        ("rte", "baseline", "0.2", 90, 40),
        # Of one seed only.
        ("rte", "baseline", "0.3", 99, 99),
        ("cola", "baseline", "0.1", 10, 10),
        ("rte", "majority", "0.1", 70, 60),
    ]
    names = ("task", "method", "rate", "score", "held_out")
    for row in rows:
        empty = dict.fromkeys((*example.SETTING, *example.FIGURES), "")
        example.bookkeeping.append_row(path, empty | dict(zip(names, row)))
    example.main(["table", str(path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4] == "| method | cola | rte | average |"
    assert lines[-2] == "| baseline | 10.00 | 62.00 ± 2.83 | 36.00 |"
    # No average where a task is missing.
    assert lines[-1] == "| majority |  | 70.00 |  |"


def test_batches(example, monkeypatch):
    monkeypatch.setattr(example.glue_data, "BUCKETS", (16, 32))
    texts = [[3] * n for n in (4, 20, 5, 6, 30, 7)]
    found = list(example.glue_data.in_batches(texts, range(6), 2))
    assert found == [(16, [0, 2]), (16, [3, 5]), (32, [1, 4])]
    found = list(example.glue_data.in_batches(texts, range(5), 2))
    # One short text is left over, and goes with the longer ones.
    assert found == [(16, [0, 2]), (32, [3, 1]), (32, [4])]


def test_metrics_by_hand(example):
    tasks = example.glue_data.TASKS
    found = example.glue_data.figures(tasks["mrpc"], [1, 1, 0, 0], [1, 0, 0, 0])
    assert found["f1"] == pytest.approx(100 * 2 / 3)
    assert found["accuracy"] == 75
    found = example.glue_data.figures(tasks["cola"], [1, 1, 0, 0], [1, 0, 0, 1])
    assert found == {"matthews": 0}
    found = example.glue_data.figures(
        tasks["stsb"], [0, 1, 2, 5], [0, 2, 4, 10]
    )
    assert found["pearson"] == pytest.approx(100)
    assert found["spearman"] == pytest.approx(100)
    found = example.glue_data.figures(tasks["stsb"], [0, 1, 2, 5], [3, 3, 3, 3])
    assert found == {"pearson": 0, "spearman": 0}


def test_mnli_is_evaluated_on_both_of_its_sets(
    example, preset, tmp_path, monkeypatch
):
    rows = {
        "train": (48, 0),
        "validation_matched": (9, 1),
        "validation_mismatched": (11, 2),
    }

    def pairs(args, split):
        for row in sentences(*rows[split]):
            yield {
                "hypothesis": row["sentence"],
                "premise": b"it was so",
                "label": row["label"],
            }

    monkeypatch.setattr(example.glue_data, "load_rows", pairs)
    args = example.parse(options(preset, tmp_path, "--task", "mnli"))
    run = example.Run(args)
    sizes = {name: len(found.texts) for name, found in run.test.items()}
    assert sizes == {"_matched": 9, "_mismatched": 11}
    lm = example.load_preset(args)[0]
    found = run.evaluation(lm, run.test)()
    names = ["accuracy_matched", "accuracy_mismatched"]
    assert sorted(found) == [*names, "score"]
    assert found["score"] == pytest.approx(np.mean([found[n] for n in names]))
    assert 0 <= run.held_out_score(lm) <= 100


def test_texts_and_labels_are_t5s(example):
    tasks = example.glue_data.TASKS
    assert len(tasks) == 9
    row = {"sentence1": b"One.", "sentence2": b"Two."}
    assert tasks["rte"].text("rte", row) == (
        "rte sentence1: One. sentence2: Two."
    )
    stsb = tasks["stsb"]
    assert stsb.labels[stsb.label(2.57)] == "2.6"
    assert stsb.labels[stsb.label(5)] == "5.0"
    assert tasks["rte"].labels[0] == "entailment"
    assert tasks["wnli"].labels[1] == "entailment"


def test_a_folder_has_one_run(example, preset, tmp_path):
    steps = ["--steps", "2", "--evaluate-every", "1", "--no-export"]
    more = ["--method", "baseline"]
    example.main(options(preset, tmp_path, *steps, *more))
    result = (tmp_path / "result.json").read_text()
    for other in (["--seed", "1"], ["--task", "cola"]):
        with pytest.raises(SystemExit, match=f"with a run of {other[0]}"):
            example.main(options(preset, tmp_path, *steps, *more, *other))
    more += ["--steps", "1"]
    with pytest.raises(SystemExit, match="at step 2 already"):
        example.main(options(preset, tmp_path, *steps, *more))
    assert (tmp_path / "result.json").read_text() == result


def test_errors(example, preset, tmp_path):
    with pytest.raises(SystemExit, match="could not be loaded"):
        example.main(options(tmp_path / "none", tmp_path))
    with pytest.raises(SystemExit, match="at least one batch"):
        example.main(options(preset, tmp_path, "--batch", "100"))
    with pytest.raises(SystemExit, match="must be at least"):
        example.main(options(preset, tmp_path, "--steps", "10"))
