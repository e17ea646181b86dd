# SPDX-License-Identifier: Apache-2.0
"""A training that ranks leave and join: prints a JSON line when the group changed, and one at the
end. Arguments: what it was started as, steps, a step in which it kills itself (-1: none). With
TEST_WAITS it joins once it was sent a line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

import torch
from position import Position

import msdu


def digest(*tensors: torch.Tensor) -> str:
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:12]


def main() -> None:
    number, steps, accident = map(int, sys.argv[1:4])
    torch.manual_seed(number)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.9)
    position = Position()
    if os.environ.get("TEST_WAITS"):  # what takes long is over
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
    run = msdu.attach(model, optimizer)
    run.keep(schedule, position)
    print(json.dumps({"started": position.batches, "ranks": run.ranks}), flush=True)
    ranks = run.ranks
    while position.batches < steps:
        time.sleep(float(os.environ.get("TEST_PAUSE", "0.01")))
        x = torch.randn(16, 8)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        if position.batches == accident:
            print(json.dumps({"accident": position.batches}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        position.batches += 1
        if run.ranks != ranks:
            ranks = run.ranks
            print(json.dumps({"ranks": ranks, "rank": run.rank}), flush=True)
    run.finish()
    moments = [s["exp_avg"] for s in optimizer.state_dict()["state"].values()]
    summary = run.summary()
    print(
        json.dumps(
            {
                "model": digest(*model.parameters()),
                "moments": digest(*moments),
                "lr": optimizer.param_groups[0]["lr"],
                "loss": float(loss),
                "ranks": summary.ranks,
                "lost": summary.ranks_lost,
                "joined": summary.ranks_joined,
                "domain": summary.domain,
            }
        ),
        flush=True,
    )


main()
