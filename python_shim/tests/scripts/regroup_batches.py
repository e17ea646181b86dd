# SPDX-License-Identifier: Apache-2.0
"""Ranks that leave and join while they work through epochs: prints a JSON line for each step that
counted, with its samples, and one at the end. Arguments: what it was started as, epochs, a batch
before which it kills itself (-1: none), workers of the loader. With TEST_WAITS it joins once it was
sent a line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader

import msdu

SAMPLES = 203


def main() -> None:
    number, epochs, accident, workers = map(int, sys.argv[1:5])
    torch.manual_seed(number)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    made = torch.Generator().manual_seed(1)
    data = [(i, torch.randn(8, generator=made)) for i in range(SAMPLES)]
    if os.environ.get("TEST_WAITS"):
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
    run = msdu.attach(model, optimizer)
    work = msdu.batches(SAMPLES, 4, ahead=8, attachment=run)
    run.keep(work)
    loader = DataLoader(data, batch_sampler=work, num_workers=workers)
    batches = 0
    for epoch in work.epochs(epochs):
        for ids, x in loader:
            time.sleep(float(os.environ.get("TEST_PAUSE", "0.01")))
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            if batches == accident:
                print(json.dumps({"accident": batches}), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            before = run.summary()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches += 1
            if run.summary().steps > before.steps:
                row = {"group": before.epoch, "step": before.steps, "epoch": epoch}
                print(json.dumps({**row, "ids": ids.tolist()}), flush=True)
    run.finish()
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digest = hashlib.sha256(bits).hexdigest()[:12]
    summary = run.summary()
    print(
        json.dumps({"model": digest, "ranks": run.ranks, "joined": summary.ranks_joined}),
        flush=True,
    )


main()
