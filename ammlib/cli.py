"""`python -m ammlib`: thin commands over the library."""

import argparse
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ammlib import __version__
from ammlib.data.batches import subset
from ammlib.data.datasets import load_data
from ammlib.data.files import home
from ammlib.data.sources import DataError
from ammlib.experiments import bench as benchmark
from ammlib.experiments import imagenet_sample
from ammlib.experiments.cost.nets import CASES
from ammlib.margin.classifier import choose
from ammlib.margin.margins import ATTACKS
from ammlib.report import frame, tables
from ammlib.report.readme import write as write_readme
from ammlib.training import recipes, runs, studies
from ammlib.training.checkpoint import CheckpointError
from ammlib.training.device import best_device, keep_freed_memory
from ammlib.training.distributed import DistributedError, joined
from ammlib.training.estimate import core_seconds
from ammlib.training.evaluate import shared_margins
from ammlib.training.execute import run_or_load, settled, trained_model
from ammlib.training.logs import LOGS, make_log
from ammlib.training.prepare import margin_units
from ammlib.training.studies import Job
from ammlib.training.train import TrainingError


def data(args: argparse.Namespace) -> None:
    for name in args.names:
        print(load_data(name))


def train(args: argparse.Namespace) -> None:
    execute([Job(recipe_of(args), args.seed)], args.force, args.log)


def study(args: argparse.Namespace) -> None:
    part, parts = parse_part(args.part)
    wanted = list(dict.fromkeys(run for name in args.names for run in studies.study(name, args.scale)))
    if args.only:
        wanted = [run for run in wanted if runs.run_name(*run) == args.only]
        if not wanted:
            raise ValueError(f"no run {args.only!r} in {' '.join(args.names)}")
    wanted = studies.share(wanted, part, parts)
    list_missing(wanted) if args.dry_run else execute(wanted, args.force, args.log)


def list_missing(wanted: list[Job]) -> None:
    """Print the runs that are not stored, and how long one core would take for them."""
    missing = [job for job in wanted if runs.load_run(*job) is None]
    for job in missing:
        print(runs.run_name(*job))
    hours = core_seconds(missing) / 3600 if missing else 0.0
    print(f"{len(missing)} of {len(wanted)} runs are missing: about {hours:.1f} core hours on this machine")


def execute(wanted: list[Job], force: bool, log: str | None = None) -> None:
    """Train what is missing, one run after the other, and print a line for each."""
    keep_freed_memory()
    for recipe, seed in wanted:
        known = not force and settled(recipe, seed) is not None
        if not known:
            announce(recipe, seed)
        callback = make_log(log, runs.run_name(recipe, seed)) if log and not known else None
        run = run_or_load(recipe, seed, force=force, callback=callback)
        took = "stored" if known else f"{run.seconds:.0f} s"
        numbers = f"error {run.metrics['error']:.2f} %, margin {run.metrics['margin']:.3f}"
        print(f"{recipe.key}, seed {seed}: {numbers} ({took}) {runs.run_path(recipe, seed)}")


def announce(recipe: recipes.Recipe, seed: int) -> None:
    extent = f"{recipe.scale} scale, {recipe.epochs} epochs{frame.from_weights(recipe)}"
    print(f"{recipe.key}, seed {seed}: {extent}, on {best_device()}")


def compare(args: argparse.Namespace) -> None:
    for name in args.names:
        titles = {"text": f"{name}\n", "md": f"{name}\n\n", "latex": f"% {name}\n"}  # csv is for programs
        print(f"{titles.get(args.format, '')}{tables.FORMATS[args.format](frame.compare(name, args.scale))}\n")


def margin(args: argparse.Namespace) -> None:
    keep_freed_memory()
    recipe, images = recipe_of(args), load_data(args.dataset)
    choose("attack", args.attack, ATTACKS)
    total = len(images.x_test)
    rows = subset(total, total if args.samples is None else min(args.samples, total), seed=0)
    if not runs.weights_path(recipe, args.seed).exists():
        announce(recipe, args.seed)
    model = trained_model(recipe, args.seed)
    x, y = images.x_test[rows], images.y_test[rows]
    options = {} if args.steps is None else {"steps": args.steps}
    found = shared_margins(model, x, y, method=args.attack, std=margin_units(recipe), **options)
    for name, value in found.summary().items():
        print(f"{name:8} {value:10.4f}" if isinstance(value, float) else f"{name:8} {value:10}")


def bench(args: argparse.Namespace) -> None:
    benchmark.run(args.parts, args.arch, args.output, args.repeats)


def scaling(args: argparse.Namespace) -> None:
    benchmark.run(["scaling"], folder=args.output)


def sample(args: argparse.Namespace) -> None:
    if args.what == "margins":
        imagenet_sample.measure_sample(args.arch, args.images)
    else:
        imagenet_sample.fine_tune(args.arch)


def reproduce(args: argparse.Namespace) -> int:
    from ammlib.report.reproduce import reproduce  # needs the notebooks' packages

    return int(any(outcome.error for outcome in reproduce(args.names, args.output)))


def readme(args: argparse.Namespace) -> None:
    print(f"tables redrawn: {', '.join(write_readme()) or 'none has changed'}")


def parse_part(text: str) -> tuple[int, int]:
    """`k/n`: the k-th of n parts, counted from 1."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"--part takes k/n with k in 1 ... n, such as 1/2, got {text!r}")
    return int(part), int(parts)


def parse_setting(text: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON where it is, otherwise as a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes name=value, got {text!r}")
    for read in (json.loads, float):
        with suppress(ValueError):
            return name, read({"None": "null", "True": "true", "False": "false"}.get(value, value))
    return name, value


def parse_seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 on, got {text!r}")
    return int(text)


def parse_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on, got {text!r}")
    return int(text)


def add_recipe(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dataset", default="mnist", help="mnist, cifar10, cifar100, svhn, imagenet, ... or your own")
    command.add_argument("--arch", default="mlp", help="mlp, lenet, ... (an unknown one lists the choices)")
    command.add_argument("--method", default="amm", help="reference, control, amm, min_inv, elsayed, ... (likewise)")
    command.add_argument("--seed", type=parse_seed, default=0, help="of initial weights and batches (default 0)")
    command.add_argument("--family", help="for your own data: mnist, cifar, digits or imagenet, whose recipes it takes")
    text = "change the recipe: epochs=3 lam=8"
    command.add_argument("--set", nargs="+", action="extend", default=[], metavar="name=value", help=text)
    add_scale(command)


def recipe_of(args: argparse.Namespace) -> recipes.Recipe:
    overrides = dict(parse_setting(text) for text in args.set)
    for name in set(recipes.IDENTITY) & set(overrides):
        raise ValueError(
            f"--set cannot change {name}" + (f"; use --{name}" if name not in ("source", "weights") else "")
        )
    if "regulariser" in overrides:
        raise ValueError("--set cannot change the regulariser as a whole; use --method, or its settings: lam=8 c=2")
    return recipes.make_recipe(args.dataset, args.arch, args.method, args.scale, args.family, **overrides)


def add_scale(command: argparse.ArgumentParser) -> None:
    text = "full: the paper's protocol; short: sized for a CPU; tuned: a few epochs from converged nets, such as the "
    text += "community's; auto (default): full on a GPU, else short"
    command.add_argument("--scale", default="auto", help=text)


def add_log(command: argparse.ArgumentParser) -> None:
    command.add_argument("--log", choices=LOGS, help="values of each step and epoch, to out/logs")


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="python -m ammlib", description="Adversarial margin maximisation networks: data, training, margins."
    )
    root.add_argument("--version", action="version", version=f"ammlib {__version__}")
    commands = root.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("data", help="fetch data sets and verify them")
    command.add_argument("names", nargs="+", metavar="name", help="mnist, cifar10, cifar100, svhn")
    command.set_defaults(run=data)

    command = commands.add_parser("train", help="train, evaluate and store one run, or show the stored one")
    add_recipe(command)
    command.add_argument("--force", action="store_true", help="train again even if the run is stored")
    add_log(command)
    command.set_defaults(run=train)

    command = commands.add_parser("study", help="train the missing runs behind tables and figures of the paper")
    command.add_argument("names", nargs="+", metavar="name", help="table1, fig4, ... (an unknown one lists all)")
    add_scale(command)
    command.add_argument("--part", default="1/1", help="1/2 and 2/2 share the work between two processes")
    command.add_argument("--only", metavar="run", help="this run of it, by its name in results/runs")
    command.add_argument("--force", action="store_true", help="train again even what is stored")
    text = "only list the runs that are missing, and estimate their core hours"
    command.add_argument("--dry-run", action="store_true", help=text)
    add_log(command)
    command.set_defaults(run=study)

    command = commands.add_parser("compare", help="the paper's numbers beside those of the stored runs")
    command.add_argument("names", nargs="+", metavar="name", help="table1, fig4, ... (an unknown one lists all)")
    text = "full, tuned or short; auto (default): row by row the largest that has runs"
    command.add_argument("--scale", default="auto", help=text)
    text = "text (default), md, latex, or csv: all numbers as they are"
    command.add_argument("--format", default="text", choices=tables.FORMATS, help=text)
    command.set_defaults(run=compare)

    command = commands.add_parser("margin", help="margins of a trained model, which is trained first if need be")
    add_recipe(command)
    command.add_argument("--samples", type=parse_count, help="so many random test images (default: all)")
    command.add_argument(
        "--attack", default="deepfool", help="deepfool (default) or tight: nearer, four times the time"
    )
    command.add_argument("--steps", type=parse_count, help="iterations of the attack (default: deepfool 6, tight 20)")
    command.set_defaults(run=margin)

    command = commands.add_parser("bench", help="measure what a training step and DeepFool cost")
    parts = f"default: {' '.join(benchmark.DEFAULT)}; the others take longer"
    command.add_argument("--parts", nargs="+", default=benchmark.DEFAULT, choices=benchmark.PARTS, help=parts)
    command.add_argument("--arch", nargs="+", default=list(CASES), choices=CASES, help="default: all")
    command.add_argument("--repeats", type=parse_count, help="rounds of measuring (default: fewer for large nets)")
    command.add_argument("--output", type=Path, default=benchmark.OUTPUT, help="folder (default: out/bench)")
    command.set_defaults(run=bench)

    command = commands.add_parser("scaling", help="measure a training step on two processes beside one")
    command.add_argument("--output", type=Path, default=benchmark.OUTPUT, help="folder (default: out/bench)")
    command.set_defaults(run=scaling)

    command = commands.add_parser("sample", help="what can be measured on a sample of ImageNet")
    command.add_argument("what", choices=["margins", "fine_tuning"], help="of a pretrained net; two steps of AMM")
    command.add_argument("--arch", default="resnet50_caffe", help="a net with pretrained weights")
    command.add_argument(
        "--images", type=parse_count, default=1000, help="so many, in a fixed random order, get a margin"
    )
    command.set_defaults(run=sample)

    command = commands.add_parser("readme", help="write the tables of README.md and docs/ anew from what is stored")
    command.set_defaults(run=readme)

    command = commands.add_parser("reproduce", help="run the notebooks, redraw all figures and tables")
    command.add_argument("names", nargs="*", metavar="name", help="02_toy_boundaries, or just 02 (default: all)")
    command.add_argument("--output", type=Path, default=home() / "out", help="default: out/ in the checkout")
    command.set_defaults(run=reproduce)
    return root


def main(argv: list[str] | None = None) -> int:
    """Run a command; what a user can get wrong ends in one line, not in a traceback."""
    args = parser().parse_args(argv)
    try:
        with joined():
            return args.run(args) or 0
    except BrokenPipeError:  # the reader, such as `head`, has seen enough; nothing is left to be flushed at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, DataError, CheckpointError, TrainingError, DistributedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:  # of an extra
        print(f'error: {error}; `pip install "ammlib[notebooks]"` brings what notebooks need', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command, without --force, goes on from the checkpoint", file=sys.stderr)
        return 130
