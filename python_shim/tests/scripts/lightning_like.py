# SPDX-License-Identifier: Apache-2.0
"""How Lightning's DDP strategy drives the wrapper, in few lines; knows nothing of msdu.

training_step() runs as the wrapper's forward. With automatic optimization it is a closure of the
optimizer's step. With manual optimization the backward pass runs inside that forward, so the
strategy itself tells the reducer that it comes.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def find_tensors(found):
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return [tensor for one in found for tensor in find_tensors(one)]
    return []


def prepare_for_backward(model, output):
    if torch.is_grad_enabled() and model.require_backward_grad_sync:
        model.require_forward_param_sync = True
        used = find_tensors(output) if model.find_unused_parameters else []
        model.reducer._rebuild_buckets()
        model.reducer.prepare_for_backward(used)
    else:
        model.require_forward_param_sync = False


class Module(nn.Module):
    automatic_optimization = True

    def manual_backward(self, loss):
        if not self.automatic_optimization:
            prepare_for_backward(self.wrapper[0], loss)
        loss.backward()

    def toggle_optimizer(self, optimizer):
        self.toggled = [p for p in self.parameters() if p.requires_grad]
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for p in self.toggled:
            p.requires_grad = id(p) in own

    def untoggle_optimizer(self):
        for p in self.toggled:
            p.requires_grad = True


class Strategy:
    def __init__(self, module, **settings):
        self.module = module
        self.model = DDP(module, **settings)
        module.wrapper = [self.model]  # in a list: not a child

    def training_step(self, *args):
        """The wrapper's forward, redirected once to training_step()."""
        module, wrapper = self.module, self.model
        original = module.forward

        def redirected(*given):
            module.forward = original
            result = module.training_step(*given)
            if not module.automatic_optimization:
                wrapper.require_backward_grad_sync = False
            return result

        module.forward = redirected
        result = wrapper(*args)
        if not module.automatic_optimization:
            wrapper.require_backward_grad_sync = True
        return result


def fit_automatic(strategy, optimizer, scheduler, batches):
    """One optimizer, which runs training_step() as its closure."""
    losses = []

    def closure():
        loss = strategy.training_step(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(strategy.module.parameters(), 0.5)
        losses.append(loss.item())
        return loss

    for batch in batches:  # noqa: B007 - the closure's
        optimizer.step(closure)
        scheduler.step()
    return losses


def start(seed):
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    return dist.get_rank(), torch.Generator().manual_seed(seed + dist.get_rank())
