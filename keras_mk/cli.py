"""What each `keras-mk` command does; `keras_mk_cli` reads its arguments."""

import argparse


def run(args: argparse.Namespace) -> None:
    if args.command == "demo":
        from keras_mk import demo

        demo.run(args.output_dir, epochs=args.epochs, seeds=args.seeds)
    elif args.command == "bench":
        _bench(args)
    else:
        from keras_mk import model_commands

        getattr(model_commands, args.command)(args)


def _bench(args: argparse.Namespace) -> None:
    if args.workload == "expand":
        from keras_mk.bench import expand

        expand.run(args.models, args.expansion, args.rounds, args.output_dir)
    elif args.workload == "mlp":
        from keras_mk.bench import mlp

        mlp.run(
            optimizers=args.optimizers,
            expansion=args.expansion,
            batch=args.batch,
            jit="auto" if args.jit == "auto" else args.jit == "on",
            rounds=args.rounds,
            output_dir=args.output_dir,
        )
