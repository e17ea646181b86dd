# SPDX-License-Identifier: Apache-2.0
"""A small GPT; micro-batches by the wrapper's flag instead of no_sync(). Knows nothing of msdu."""

import math

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}
VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 19, 12, 16, 2, 3
ITERATIONS, MICRO = 6, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.c_attn(self.ln_1(x)).view(batch, length, 3 * HEADS, -1).transpose(1, 2)
        q, k, v = parts.chunk(3, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def lr_of(iteration):
    if iteration < 2:
        return 0.01 * (iteration + 1) / 2
    return 0.001 + 0.0045 * (1 + math.cos(math.pi * (iteration - 2) / (ITERATIONS - 2)))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1337)
raw = GPT()
model = DDP(raw)
decay = [p for p in raw.parameters() if p.dim() >= 2]
others = [p for p in raw.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
    lr=0.01,
    betas=(0.9, 0.95),
)
data = torch.Generator().manual_seed(1337 + rank)


def get_batch():
    text = torch.randint(VOCABULARY, (3, CONTEXT + 1), generator=data)
    return text[:, :-1], text[:, 1:]


x, y = get_batch()
losses = []
for iteration in range(ITERATIONS):
    for group in optimizer.param_groups:
        group["lr"] = lr_of(iteration)
    if iteration % 3 == 0 and rank == 0:  # the first rank evaluates, past the wrapper
        raw.eval()
        with torch.no_grad():
            raw(x, y)
        raw.train()
    for micro in range(MICRO):
        model.require_backward_grad_sync = micro == MICRO - 1
        _, loss = model(x, y)
        loss = loss / MICRO
        x, y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item() * MICRO)
RESULT["losses"] = losses
RESULT["hash"] = digest(raw)
print("hash", RESULT["hash"])
dist.destroy_process_group()
