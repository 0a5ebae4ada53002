"""`python -m ammlib`: thin commands over the library."""

import argparse
from pathlib import Path


def bench(args: argparse.Namespace) -> None:
    from ammlib.bench import bench as run

    run(args.arch, args.output, args.repeats)


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m ammlib", description="Adversarial margin maximisation networks.")
    commands = root.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("bench", help="measure what a training step and DeepFool cost")
    command.add_argument("--arch", nargs="+", default=["mlp", "lenet"], choices=["mlp", "lenet"])
    command.add_argument("--repeats", type=int, default=30, help="steps of each variant (default 30)")
    command.add_argument("--output", type=Path, default=Path("out/bench.json"), help="default out/bench.json")
    command.set_defaults(run=bench)
    return root


def main(argv: list[str] | None = None) -> None:
    args = parser().parse_args(argv)
    args.run(args)
