"""The `keras-mk` command.

It stands beside the package, not in it, so that `--help` and mistakes in the
arguments are answered without importing Keras and a backend.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence

BACKENDS = ("tensorflow", "jax", "torch")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-mk",
        description="Majority Kernels for Keras 3.",
    )
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error"
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND"
    )
    _add_demo(commands)
    _add_inspect(commands)
    _add_expand(commands)
    _add_collapse(commands)
    _add_export(commands)
    _add_bench(commands)
    return parser


def _add_backend(parser: argparse.ArgumentParser, several: bool) -> None:
    choices = [*BACKENDS, "all"] if several else [*BACKENDS]
    parser.add_argument(
        "--backend",
        choices=choices,
        help="Keras backend (default: KERAS_BACKEND, or one that is installed)",
    )


def _add_demo(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    demo = commands.add_parser(
        "demo",
        help="train a plain and a majority-kernel network side by side",
        description="Trains a plain network and a majority-kernel network of "
        "the same deployed size on scikit-learn's digits, compares them, and "
        "writes the averaged model.",
    )
    _add_backend(demo, several=False)
    demo.add_argument(
        "--output-dir",
        default="keras-mk-demo",
        help="folder for the plot and the model (default: %(default)s)",
    )
    demo.add_argument(
        "--epochs",
        type=_positive,
        default=10,
        help="epochs per network (default: %(default)s)",
    )
    demo.add_argument(
        "--seeds",
        type=_positive,
        default=3,
        help="repetitions with different seeds (default: %(default)s)",
    )


def _model_command(
    commands: argparse._SubParsersAction,  # type: ignore[type-arg]
    name: str,
    output: str | None,
    help: str,
    description: str,
) -> argparse.ArgumentParser:
    """A command that reads a model file and may write another."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=description
    )
    parser.add_argument("model", metavar="MODEL.keras", help="what to read")
    if output is not None:
        parser.add_argument("output", metavar=output, help="what to write")
        parser.add_argument(
            "--overwrite",
            action="store_true",
            help="replace what is there, once the new one is ready",
        )
    _add_backend(parser, several=False)
    parser.add_argument(
        "--module",
        dest="modules",
        action="append",
        default=[],
        metavar="NAME",
        help="module that registers custom layers, to be imported first",
    )
    parser.add_argument(
        "--unsafe",
        action="store_true",
        help="also load models that bring code of their own (Lambda layers)",
    )
    return parser


def _add_inspect(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    inspect = _model_command(
        commands,
        "inspect",
        None,
        help="show the layers of a model and their copies",
        description="Shows every layer of a model: copies, parameters in "
        "training and deployed, and why it is not converted.",
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")


def _add_expand(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    expand = _model_command(
        commands,
        "expand",
        "OUT.keras",
        help="give the layers of a plain model majority kernels",
        description="Reads a plain model and writes it with majority kernels.",
    )
    expand.add_argument(
        "--expansion",
        type=_positive,
        default=3,
        help="copies of each kernel (default: %(default)s)",
    )
    expand.add_argument(
        "--copies",
        choices=["replicate", "independent", "perturb"],
        default="replicate",
        help="what the copies start as (default: %(default)s)",
    )
    expand.add_argument(
        "--scale",
        type=float,
        help="size of the noise with --copies perturb (default: 0.1)",
    )
    for option, what in (
        ("--include", "convert only layers whose path has this"),
        ("--exclude", "do not convert layers whose path has this"),
    ):
        expand.add_argument(
            option,
            action="append",
            default=[],
            metavar="REGEX",
            help=f"{what}; may be given several times",
        )
    expand.add_argument("--seed", type=int, help="seed of the mixtures")
    expand.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would be converted, and write nothing",
    )


def _add_collapse(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    collapse = _model_command(
        commands,
        "collapse",
        "OUT.keras",
        help="average the copies: the plain model",
        description="Reads a model with majority kernels and writes the plain "
        "model.",
    )
    collapse.add_argument(
        "--verify",
        action="store_true",
        help="compare both models on random inputs first",
    )


def _add_export(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    export = _model_command(
        commands,
        "export",
        "OUT",
        help="write the plain model for another runtime",
        description="Reads a model with majority kernels and writes the plain "
        "model for another runtime, in which it is loaded and compared.",
    )
    export.add_argument(
        "--format",
        choices=[
            "tf_saved_model", "litert", "onnx", "openvino", "torch", "keras",
        ],
        help="default: what OUT ends in says, a SavedModel without a suffix",
    )  # fmt: skip
    export.add_argument("--quantize", choices=["int8", "float16"])
    export.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not load it back and compare",
    )
    export.add_argument(
        "--tolerance",
        type=float,
        help="largest difference to accept, relative to the largest output",
    )


def _add_bench(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    bench = commands.add_parser(
        "bench",
        help="measure what majority kernels cost",
        description="Measures the training step of a majority-kernel network "
        "as a ratio to the plain one, in one interleaved run. Prints a table, "
        "and writes JSON, CSV and a chart.",
    )
    bench.add_argument(
        "workload",
        metavar="WORKLOAD",
        help="mlp (a1, a2 and a3), resnet50, t5, or a MODEL.keras of yours: "
        "its training step; sampling: the mixture of one kernel; infer: "
        "inference before and after collapsing; growth: the cost as copies, "
        "batch and layers grow; compile: what XLA makes of a training step "
        "for a device that need not be there (JAX); expand: converting a model",
    )
    _add_backend(bench, several=True)
    bench.add_argument(
        "--expansion",
        type=_positives,
        default=[3],
        help="copies of each kernel, as in 2,3,4 (default: 3)",
    )
    bench.add_argument(
        "--batch", type=_positives, help="batch sizes, as in 8,64"
    )
    bench.add_argument(
        "--optimizer",
        type=lambda text: text.split(","),
        help="of sgd,momentum,adam,adamw,adafactor",
    )
    bench.add_argument(
        "--variants",
        type=lambda text: text.split(","),
        help="of plain,floor,mk,log(uniform),gamma,dropout,sam,ensemble "
        "(default: the first five)",
    )
    bench.add_argument(
        "--width",
        type=_positives,
        help="mlp, sampling, growth: widths of square layers",
    )
    bench.add_argument(
        "--models",
        type=lambda text: text.split(","),
        help="expand, infer: which models (default: resnet50,t5); compile: "
        "layers, the name of one, or a workload (default: layers,a3)",
    )
    bench.add_argument(
        "--target",
        type=lambda text: text.split(","),
        default=["tpu-v5e"],
        help="compile: of cpu,tpu-v5e,tpu-v6e,cuda (default: tpu-v5e)",
    )
    bench.add_argument(
        "--dtype",
        default="float32",
        help="Keras dtype policy (default: %(default)s)",
    )
    bench.add_argument(
        "--jit",
        choices=["auto", "on", "off"],
        default="auto",
        help="jit_compile of the models (default: %(default)s, as Keras does)",
    )
    bench.add_argument(
        "--feed",
        choices=["step", "arrays"],
        default="step",
        help="one batch that is ready, again and again, or arrays that fit "
        "shuffles (default: %(default)s)",
    )
    bench.add_argument(
        "--memory",
        action="store_true",
        help="also the peak memory of each variant, in a process of its own",
    )
    for option, default, what in (
        ("--rounds", 9, "interleaved rounds"),
        ("--steps", 20, "steps per round, fewer where they are slow"),
    ):
        bench.add_argument(
            option,
            type=_positive,
            default=default,
            help=f"{what} (default: %(default)s)",
        )
    bench.add_argument(
        "--output-dir",
        default=".",
        help="folder for what it writes (default: the current one)",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def _positives(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def select_backend(backend: str | None) -> None:
    """Sets `KERAS_BACKEND`; without a choice, to one that is installed."""
    if backend is None:
        if "KERAS_BACKEND" in os.environ:
            return
        installed = [b for b in BACKENDS if importlib.util.find_spec(b)]
        if not installed:
            raise RuntimeError(
                "No backend is installed. Install one of them, for example "
                "with `pip install keras-mk[jax]`."
            )
        backend = installed[0]
    elif not importlib.util.find_spec(backend):
        raise RuntimeError(
            f"The backend {backend} is not installed. Install it with "
            f"`pip install keras-mk[{backend}]`."
        )
    os.environ["KERAS_BACKEND"] = backend


def _run_on_each_backend(arguments: Sequence[str]) -> int:
    """Runs the command once per backend, each in a process of its own."""
    code = 0
    at = arguments.index("--backend") + 1
    for backend in BACKENDS:
        chosen = [*arguments[:at], backend, *arguments[at + 1 :]]
        command = [sys.executable, "-m", "keras_mk_cli", *chosen]
        code = max(code, subprocess.run(command, check=False).returncode)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    args = build_parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        if args.backend == "all":
            return _run_on_each_backend(arguments)
        select_backend(args.backend)
        from keras_mk import cli

        cli.run(args)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if args.debug:
            raise
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"keras-mk: error: {message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
