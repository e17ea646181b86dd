# SPDX-License-Identifier: Apache-2.0
"""A character transformer, cut into stages by libmsdu, in torch's pipeline engine:

torchrun --nproc-per-node 2 examples/pipeline_train.py
torchrun --nproc-per-node 4 examples/pipeline_train.py --replicas 2 --data tinyshakespeare.txt

--compare ends with steps of equal layers on all machines, as one would cut by hand. --schedule saves
the plan's timeline; bench/overlap/stages_draw.py makes a picture of it.
"""

import argparse
import json
import pathlib
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

import msdu

WIDTH, HEADS, LENGTH = 64, 4, 64
MICRO_BATCH = 8


class Embed(nn.Module):
    """Characters and places."""

    def __init__(self, characters):
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)

    def forward(self, x):
        return self.characters(x) + self.places.weight[: x.shape[1]]


class Block(nn.Module):
    """Attention to what came before, and a layer of four times the width."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.norms[1](x))


def layers_of(characters, blocks):
    """Functions that make a layer each, so that no rank holds the whole model."""
    head = [lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters))]
    return [lambda: Embed(characters), *[Block] * blocks, *head]


def loss_of(made, y):
    return nn.functional.cross_entropy(made.flatten(0, 1), y.flatten())


def text_of(path):
    """A file's characters by number, and how many there are; without a path the documents of this
    repository."""
    if path is None:
        files = sorted(pathlib.Path(__file__).resolve().parents[1].glob("doc/*.md"))
    else:
        files = [pathlib.Path(path)]
    missing = [str(file) for file in files if not file.exists()]
    if missing or not files:
        raise SystemExit(f"no text: {', '.join(missing) or 'doc/*.md'}; --data names a file")
    text = "\n".join(file.read_text() for file in files)
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([known[character] for character in text]), len(known)


def batch_of(text, count, seed):
    """Random pieces, and for each place the character behind it."""
    made = torch.Generator().manual_seed(seed)
    begins = torch.randint(len(text) - LENGTH - 1, (count,), generator=made).tolist()
    x = torch.stack([text[begin : begin + LENGTH] for begin in begins])
    return x, torch.stack([text[begin + 1 : begin + LENGTH + 1] for begin in begins])


def equal_cut(layers, ranks, micro_batches):
    """As many layers on every rank, in the order of 1F1B."""
    stages, orders = [], {}
    for rank in range(ranks):
        ends = [layers * at // ranks for at in (rank, rank + 1)]
        stages.append({"device": rank, "first": ends[0], "end": ends[1]})
        ahead = min(ranks - rank, micro_batches)
        order = [f"{rank}F{i}" for i in range(ahead)]
        for i in range(micro_batches):
            order.append(f"{rank}B{i}")
            order += [f"{rank}F{i + ahead}"] if i + ahead < micro_batches else []
        orders[str(rank)] = ",".join(order)
    format = "msdu-stages-1"
    return {"format": format, "micro_batches": micro_batches, "stages": stages, "orders": orders}


def compare(pipe, batch, layers, ranks, steps=7):
    """Seconds of a step with the plan and with an equal cut, by turns; medians."""
    plans = {"planned": pipe.plan, "equal": equal_cut(layers, ranks, pipe.plan.micro_batches)}
    seconds = {name: [] for name in plans}
    for _ in range(2):
        for name, plan in plans.items():
            pipe.move(plan)
            for step in range(steps):
                dist.barrier()
                begin = time.perf_counter()
                pipe.step(*batch)
                dist.barrier()
                if step:  # the first one makes buffers
                    seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a text file, such as tinyshakespeare; else doc/*.md")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=1, help="pipelines that msdu joins")
    parser.add_argument("--compare", action="store_true", help="with an equal cut, at the end")
    parser.add_argument("--schedule", help="file for the plan's timeline, as JSON")
    parser.add_argument("--save", help="file for a checkpoint at the end, which fits any cut")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    text, characters = text_of(args.data)
    pipe = msdu.pipeline(
        layers_of(characters, args.blocks),
        loss=loss_of,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
        example=batch_of(text, MICRO_BATCH, 0),
        micro_batches=args.micro_batches,
        replicas=args.replicas,
        adapt=0 if args.compare else 16,  # an equal cut would not stay one
        seed=1,
    )
    if args.schedule is not None and dist.get_rank() == 0:
        pathlib.Path(args.schedule).write_text(json.dumps(pipe.plan.schedule("as planned")))
    replica = dist.get_rank() * args.replicas // dist.get_world_size()
    for step in range(args.steps):
        seed = 1 + step * args.replicas + replica  # every replica has batches of its own
        loss = pipe.step(*batch_of(text, MICRO_BATCH * args.micro_batches, seed))
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1} loss {loss:.4f}", flush=True)
    summary = pipe.summary()
    if args.compare:
        ranks = dist.get_world_size() // args.replicas
        batch = batch_of(text, MICRO_BATCH * args.micro_batches, 0)
        found = compare(pipe, batch, args.blocks + 2, ranks)
    pipe.finish()
    if args.save is not None:
        state = pipe.state_dict()  # by all ranks; rank 0 gets it
        if dist.get_rank() == 0:
            torch.save(state, args.save)
    if dist.get_rank() == 0:
        print(summary)
        if args.compare:
            print(
                f"a step as planned {found['planned']:.4f} s, with as many layers on every rank "
                f"{found['equal']:.4f} s: {found['equal'] / found['planned']:.2f} times as fast"
            )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
