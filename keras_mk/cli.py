"""What each `keras-mk` command does; `keras_mk_cli` reads its arguments."""

import argparse


def run(args: argparse.Namespace) -> None:
    if args.command == "demo":
        from keras_mk import demo

        demo.run(args.output_dir, epochs=args.epochs, seeds=args.seeds)
    elif args.command == "bench":
        from keras_mk.bench import run as bench

        bench.run(args)
    else:
        from keras_mk import model_commands

        getattr(model_commands, args.command)(args)
