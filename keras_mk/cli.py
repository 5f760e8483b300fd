"""What each `keras-mk` command does; `keras_mk_cli` reads its arguments."""

import argparse

from keras_mk.local_path import check_local


def run(args: argparse.Namespace) -> None:
    for name in ("model", "output", "output_dir"):
        if getattr(args, name, None) is not None:
            check_local(getattr(args, name), name)
    if args.command == "demo":
        from keras_mk import demo

        demo.run(args.output_dir, epochs=args.epochs, seeds=args.seeds)
    elif args.command == "bench":
        from keras_mk.bench import run as bench

        bench.run(args)
    else:
        from keras_mk import model_commands

        getattr(model_commands, args.command)(args)
