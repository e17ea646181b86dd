# SPDX-License-Identifier: Apache-2.0
"""A word language model: an LSTM whose state is carried on, clipped by hand; knows nothing of
msdu."""

import torch
import torch.distributed as dist
from digest import digest
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RESULT = {}
WORDS, WIDTH, LENGTH, BATCH = 17, 10, 6, 3


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2)
        self.decoder = nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.encoder.weight

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.encoder(words), hidden)
        return torch.log_softmax(self.decoder(output).view(-1, WORDS), 1), hidden


dist.init_process_group("gloo")
torch.manual_seed(1111)
net = RNNModel()
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
text = torch.randint(
    WORDS, (60, BATCH), generator=torch.Generator().manual_seed(1111 + dist.get_rank())
)
losses, lr, best = [], 2.0, None
for _ in range(2):
    hidden = (torch.zeros(2, BATCH, WIDTH), torch.zeros(2, BATCH, WIDTH))
    for at in range(0, 30, LENGTH):
        model.zero_grad()
        hidden = tuple(state.detach() for state in hidden)
        output, hidden = model(text[at : at + LENGTH], hidden)
        loss = nn.functional.nll_loss(output, text[at + 1 : at + 1 + LENGTH].reshape(-1))
        loss.backward()
        total = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        if total > 0.25:
            for p in model.parameters():
                p.grad.mul_(0.25 / total)
        optimizer.step()
        losses.append(loss.item())
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if best is not None and mean >= best:
        lr /= 4.0
        for group in optimizer.param_groups:
            group["lr"] = lr
    best = mean
RESULT["losses"] = losses
RESULT["hash"] = digest(net)
print("hash", RESULT["hash"])
dist.destroy_process_group()
