# SPDX-License-Identifier: Apache-2.0
"""A training that agents keep alive: prints JSON lines. It ends at the step that a file says, once
the file is there. Arguments: the file."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from position import Position

import msdu


def main() -> None:
    end = Path(sys.argv[1])
    torch.manual_seed(os.getpid())
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    position = Position()
    pid = os.getpid()

    def say(**row: object) -> None:
        sys.stdout.write(json.dumps({"pid": pid, **row}) + "\n")  # whole lines, beside others
        sys.stdout.flush()

    say(imported=True)
    with msdu.attach(model, optimizer, interval="fixed", interval_steps=1) as run:
        run.keep(position)
        say(started=position.batches, ranks=run.ranks, rank=run.rank)
        while not end.exists() or position.batches < int(end.read_text() or 1 << 30):
            time.sleep(0.02)
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()
            position.batches += 1
            if position.batches % 10 == 0:
                say(at=position.batches, ranks=run.ranks, rank=run.rank)
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    say(model=hashlib.sha256(bits).hexdigest()[:12], batches=position.batches, ranks=run.ranks)


main()
