# SPDX-License-Identifier: Apache-2.0
"""The loop of Hugging Face's Trainer; knows nothing of msdu.

Arguments: ``clm`` (a causal language model, micro-batches by no_sync(), tied weights) or ``glue``
(an encoder with dropout and a pooled head, activations computed anew, a part that no loss uses).
"""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

RESULT = {}
WORDS, WIDTH, LENGTH = 23, 16, 10


class Model(nn.Module):
    def __init__(self, is_causal, has_dropout):
        super().__init__()
        self.is_causal = is_causal
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        dropout = 0.1 if has_dropout else 0.0
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout, batch_first=True) for _ in range(2)
        )
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS if is_causal else 2)
        if is_causal:
            self.head.weight = self.embed.weight
        self.register_buffer("position_ids", torch.arange(LENGTH).expand(1, -1))

    def forward(self, input_ids, labels):
        x = self.embed(input_ids) + self.place(self.position_ids)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH) if self.is_causal else None
        for layer in self.layers:
            x = layer(x, mask) if self.is_causal else checkpoint(layer, x, use_reentrant=False)
        if self.is_causal:
            logits = self.head(x)
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1))
        else:
            logits = self.head(torch.tanh(self.pooler(x[:, 0])))
            loss = F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


is_causal = sys.argv[1] == "clm"
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(42)
net = Model(is_causal, not is_causal)
model = DDP(net, find_unused_parameters=True)  # the causal one does not use its pooler
plain = [p for n, p in net.named_parameters() if n.endswith("bias") or "norm" in n]
decayed = [p for p in net.parameters() if not any(p is one for one in plain)]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=5e-3
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 8))
data = torch.Generator().manual_seed(42 + rank)
torch.manual_seed(42 + rank)  # dropout
micro = 3 if is_causal else 1
losses = []
model.zero_grad()
for _ in range(6):
    for at in range(micro):
        words = torch.randint(WORDS, (4, LENGTH), generator=data)
        labels = words if is_causal else torch.randint(2, (4,), generator=data)
        with nullcontext() if at == micro - 1 else model.no_sync():
            loss = model(input_ids=words, labels=labels)["loss"] / micro
            loss.backward()
        losses.append(loss.item())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    model.zero_grad()
RESULT["losses"] = losses
RESULT["hash"] = digest(net)
print("hash", RESULT["hash"])
dist.destroy_process_group()
