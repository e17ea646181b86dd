#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a model by one method on several ranks and write a record of each run.

    bench/training/train.py --data DIR --model cnn --method ddp --ranks 4 --seeds 3 --json out.json

Ranks are real processes that talk over gloo: on loopback, or with --rate R each in a network
namespace whose link is shaped to R Mbit/s (bench/lab, needs root). train_table.py runs the whole
comparison; bench/README.md says what the fields of a record mean.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

try:
    from training import data, launch, models, rank
except ModuleNotFoundError as problem:
    sys.exit(f"{problem}: this Python cannot run it; that of build/venv can, after make test")


def pairs(texts: list[str]) -> dict[str, str]:
    """["a=1", "b=2,c=3"] as a dictionary. Raises ValueError for a text without "="."""
    found = {}
    for text in (part for whole in texts for part in whole.split(",")):
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"{text!r} is not NAME=VALUE")
        found[name] = value
    return found


def parser() -> argparse.ArgumentParser:
    """The command line; defaults that depend on the model are None."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--data", metavar="DIR", help="folder of the data set")
    add("--cache", metavar="DIR", help="folder for decoded data")
    add("--model", choices=models.KINDS, default="cnn")
    add("--dataset", choices=data.LOADERS, help="default: the model's")
    add("--method", default="ddp", help="such as ddp, powersgd, local-8, diloco, ours, "
        "ours-h4-int4")
    add("--ranks", type=int, default=4, metavar="N")
    add("--rate", type=float, default=0, metavar="R", help="Mbit/s; 0: not shaped, loopback")
    add("--seeds", type=int, default=1, metavar="K", help="runs with seeds 1 .. K")
    add("--seed", type=int, help="one run with this seed")
    add("--json", metavar="OUT", default="-", help="list of records; - is standard output")
    add("--epochs", type=int)
    add("--samples", type=int, help="training samples of an epoch; 0: all")
    add("--test-samples", type=int, default=0, help="test samples; 0: all")
    add("--steps", type=int, default=0, help="stop after so many steps (step times)")
    add("--evaluations", type=int, help="evaluation points; default: one per epoch, at least 4")
    add("--batch", type=int, help="of one rank")
    add("--lr", type=float)
    add("--optimizer", choices=("sgd", "adamw"))
    add("--weight-decay", type=float)
    add("--size", action="append", default=[], metavar="K=V", help="of the model: depth=20")
    add("--settings", action="append", default=[], metavar="K=V", help="of the method")
    add("--device", default="cpu", help="cpu; or cuda, all ranks on the one GPU")
    add("--threads", type=int, default=1, help="of each rank")
    add("--rank-of", help=argparse.SUPPRESS)
    return made


def options_of(arguments: argparse.Namespace, seed: int) -> rank.Options:
    """Options of one run; what was not given is the model's default."""
    kind = models.KINDS[arguments.model]

    def given(name: str) -> object:
        value = getattr(arguments, name)
        return getattr(kind, name) if value is None else value

    epochs = int(str(given("epochs")))
    evaluations = arguments.evaluations
    if evaluations is None:
        evaluations = 0 if arguments.steps else max(4, epochs)
    return rank.Options(
        model=arguments.model, dataset=str(given("dataset")), method=arguments.method,
        data=arguments.data, cache=arguments.cache, seed=seed, lr=float(str(given("lr"))),
        batch=int(str(given("batch"))), epochs=epochs, samples=int(str(given("samples"))),
        test_samples=arguments.test_samples, steps=arguments.steps, evaluations=evaluations,
        optimizer=str(given("optimizer")), weight_decay=float(str(given("weight_decay"))),
        warmup=kind.warmup, size={k: int(v) for k, v in pairs(arguments.size).items()},
        settings=pairs(arguments.settings), device=arguments.device, threads=arguments.threads)


def main() -> int:
    """Exit status: 0, 1 if a run failed, 2 for wrong use or missing data."""
    made = parser()
    arguments = made.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that ranks are ended as well
    if arguments.rank_of:
        task = json.loads(arguments.rank_of)
        rank.main(rank.Options(**task["options"]), task["result"])
        return 0
    seeds = [arguments.seed] if arguments.seed is not None else range(1, arguments.seeds + 1)
    records = []
    try:
        for seed in seeds:
            records.append(launch.run(options_of(arguments, seed), arguments.ranks,
                                      arguments.rate))
    except (data.MissingData, ValueError) as error:
        made.error(str(error))
    except launch.RunFailed as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    text = json.dumps(records, indent=1) + "\n"
    if arguments.json == "-":
        sys.stdout.write(text)
    else:
        pathlib.Path(arguments.json).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
