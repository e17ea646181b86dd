# SPDX-License-Identifier: Apache-2.0
"""Train a model that is cut into stages, in torch's pipeline engine."""

from __future__ import annotations

import collections
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Callable, Optional, Union

import torch
import torch.distributed as dist

from . import _abi, _settings, _stages_abi, _stages_engine, _stages_plan, _stages_probe
from ._attach import Attachment, attach
from ._pipeline_summary import PipelineSummary, StageSummary
from ._stages_adapt import Regret
from ._stages_held import Factory, Held, state_of, trained_of
from ._stages_plan import Plan
from ._stages_probe import Layer, Layers, Look, invalid
from ._stages_question import Links, question
from ._stages_ranks import Ranks
from ._stages_run import Loss, LostError, Piece, Run, Value, tensors

_BOUNDARIES = {"float32": None, "bfloat16": torch.bfloat16}
_EVERY = 16  # steps after which ranks tell each other their times
_EARLY = (2, 4, 8)  # and at the start


def pipeline(
    layers: Union[torch.nn.Sequential, Sequence[Layer]],
    loss: Loss,
    optimizer: Factory,
    example: tuple[Value, torch.Tensor],
    micro_batches: int,
    *,
    replicas: int = 1,
    boundary: str = "float32",
    plan: Any = None,
    memory: float = 0,
    split_backward: bool = False,
    two_stages: bool = False,
    schedule: Optional[Callable[[torch.optim.Optimizer], Any]] = None,
    adapt: int = _EVERY,
    seed: int = 0,
    deadline: float = 300.0,
    **settings: Any,
) -> Pipeline:
    """Cut a model into stages, one machine after another, and train it.

    Every layer is measured on every rank, and the links between ranks. Rank 0 plans where to cut,
    which rank takes which piece, and in what order each works off its micro-batches
    (``msdu_stages_plan()``, man 3 msdu_stages; doc/pipelines.md). Ranks that would only slow it
    down stay idle. torch.distributed.pipelining runs the plan. Training has the bits of one process
    that accumulates the same micro-batches, if layers draw no random numbers.

    All ranks call this, and all methods, in the same order; ``init_process_group()`` comes before.

    Args:
        layers: an nn.Sequential; or layers in the order of the forward pass, each a module or a
            function that makes one, so that nobody holds the whole model. Each takes what the one
            before gives: a tensor, or a tuple of tensors, whose shapes never change. Layer i is
            made under ``manual_seed(seed + i)``.
        loss: of the last layer's output and targets: the mean over a micro-batch.
        optimizer: makes one for the parameters of a layer, as ``lambda p: AdamW(p, lr=3e-4)``.
        example: one micro-batch: inputs and targets, on the device that trains. Inputs are a
            tensor or a tuple of tensors; the first dimension counts samples, in targets, too.
        micro_batches: of a step, whose batch is so many times the example.
        replicas: of the pipeline, which ``attach()`` joins stage by stage. Rank r of R replicas on
            D ranks each is device r % D of replica r // D; each replica has batches of its own.
        boundary: how floating point values travel between stages: ``"float32"``, as they are, or
            ``"bfloat16"``, half as many bytes and not the bits of one process.
        plan: made before: ``Pipeline.plan``, what its ``dumps()`` gave, a file with that, or with
            what ``msdu plan --stages --json`` prints. Nothing is measured then.
        memory: bytes that this rank has for its stages; 0: no limit, and on a GPU nine tenths of
            its memory.
        split_backward: gradients of weights may be separate actions. torch calls no gradient hooks
            of parameters then.
        two_stages: a rank may have two stages, such as the first and the last.
        schedule: makes a learning rate schedule for an optimizer; it steps after it.
        adapt: steps after which rank 0 looks whether machines have become slower or faster. Layers
            move to other ranks, with their optimizers' states, once what a better plan would have
            saved is what moving costs; training keeps its bits. 0: never; nor with ``plan``, nor on
            a GPU.
        seed: see ``layers``.
        deadline: seconds that a rank waits for another, longer than a step.
        settings: of :func:`msdu.attach`, which joins the replicas.

    Returns:
        The pipeline; call its ``step()`` for each batch and ``finish()`` at the end.

    Raises:
        msdu.Error: a layer that does not take what the one before gives, shared parameters, too
            little memory (MSDU_ERR_NOT_FOUND), a plan that does not fit, a torch that is not known
            (MSDU_ERR_UNSUPPORTED). All name the layer, or the rank.
    """
    options = {
        "replicas": replicas,
        "boundary": boundary,
        "plan": plan,
        "memory": memory,
        "may": split_backward * _stages_abi.SPLIT | two_stages * _stages_abi.TWO,
        "schedule": schedule,
        "adapt": adapt,
        "seed": seed,
        "deadline": deadline,
    }
    return Pipeline(layers, loss, optimizer, example, micro_batches, options, settings)


class Pipeline:
    """A model in stages; made by :func:`msdu.pipeline`.

    Attributes:
        plan: which rank has which layers, and in what order it works.
        attachments: of stages to those of the other replicas, by stage.
        steps, moves: so far; of the latter those in which layers changed hands.
    """

    def __init__(
        self,
        layers: Any,
        loss: Loss,
        optimizer: Factory,
        example: tuple[Value, torch.Tensor],
        micro_batches: int,
        options: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> None:
        _check(options, settings, example, micro_batches)
        self._options = options
        self._settings = {"deadline_ms": int(1e3 * options["deadline"]), **settings}
        self._loss, self._optimizer = loss, optimizer
        self._boundary = _BOUNDARIES[options["boundary"]]
        self._x, self._y = example
        self._place = tensors(self._x)[0].device
        self._micro_batches = micro_batches
        self._layers = Layers(layers, options["seed"], self._place)
        self._ranks = Ranks(options["replicas"], options["deadline"])
        self._is_finished = False
        self.steps = 0
        self.moves = 0
        every = options["adapt"] or _EVERY
        self._every = every
        self._step_s: collections.deque[float] = collections.deque(maxlen=every)
        self._stages_s: collections.deque[dict[int, float]] = collections.deque(maxlen=every)
        self._regret: Optional[Regret] = None
        self._measured: Optional[torch.Tensor] = None
        self._plan_and_build()

    def _plan_and_build(self) -> None:
        ranks, options = self._ranks, self._options
        is_given = options["plan"] is not None
        looks = ranks.gather(lambda: self._look(not is_given))
        self._looked: Look = looks[0][0]
        if is_given:
            made = ranks.share(lambda: self._given(options["plan"]).dumps())
        else:
            rows = self._rows_of_links()
            asked = question(
                ranks, looks, rows, self._micro_batches, self._boundary, options["may"]
            )
            made = ranks.share(lambda: _stages_abi.plan(asked).dumps())
        self.plan: Plan = _stages_plan.read(made)
        self._held = Held(self._layers, self._optimizer, options["schedule"])
        self.attachments: dict[int, Attachment] = {}
        begin = time.perf_counter()
        self._build()
        if not is_given and options["adapt"] and self._place.type == "cpu":  # where clocks tell
            self._regret = Regret(asked, self.plan, time.perf_counter() - begin)

    @property
    def modules(self) -> dict[int, torch.nn.Module]:
        """Layers of this rank, by number; empty on a rank that the plan leaves out."""
        return self._held.modules

    @property
    def optimizers(self) -> dict[int, torch.optim.Optimizer]:
        """Of layers with trained parameters, by number; they change where layers move."""
        return self._held.optimizers

    @property
    def schedules(self) -> dict[int, Any]:
        """Of learning rates, by layer."""
        return self._held.schedules

    # --- planning ---

    def _look(self, is_timed: bool) -> tuple[Look, float]:
        example = (self._x, self._y)
        found = _stages_probe.look(self._layers, example, self._loss, self._optimizer, is_timed)
        memory = float(self._options["memory"])
        if not memory and self._place.type == "cuda":
            memory = 0.9 * torch.cuda.get_device_properties(self._place).total_memory
        return found, memory

    def _given(self, plan: Any) -> Plan:
        found = _stages_plan.read(plan)
        found.check(len(self._layers), self._ranks.devices)
        if found.micro_batches != self._micro_batches:
            wanted = self._micro_batches
            raise invalid(f"the plan has {found.micro_batches} micro-batches, not {wanted}")
        return found

    def _rows_of_links(self) -> list[Links]:
        group = self._ranks.group(range(self._ranks.count))
        own = _stages_probe.links(self._ranks, self._place, group)
        return self._ranks.gather(lambda: own)

    # --- stages ---

    def _build(self) -> None:
        """Modules, optimizers, torch's engine and attachments of this rank's stages."""
        plan, ranks = self.plan, self._ranks
        group, column = ranks.engine(plan), ranks.columns(plan)
        pieces: dict[int, Piece] = {}
        for number in plan.of(ranks.device):
            stage = plan.stages[number]
            own = {n: self._held.take(n) for n in range(stage.first, stage.end)}
            looked = self._looked
            pieces[number] = Piece(own, looked.between, self._boundary, looked.in_place)
        self._run: Optional[Run] = None
        if pieces:
            self._run = Run(plan, ranks.device, pieces, self._loss, self._place, group)
        for number, piece in pieces.items() if column is not None else ():
            numbers = range(plan.stages[number].first, plan.stages[number].end)
            own_optimizers = [self.optimizers[n] for n in numbers if n in self.optimizers]
            if own_optimizers:
                self.attachments[number] = attach(
                    piece, own_optimizers, process_group=column, **self._settings
                )

    # --- steps ---

    def step(self, x: Value, y: torch.Tensor) -> float:
        """Forward and backward passes of all micro-batches, the replicas' exchange, and the
        optimizers' step.

        Args:
            x: inputs of the batch, read where the first stage is; elsewhere only their number.
            y: targets, read where the last stage is.

        Returns:
            The mean loss of this replica's batch, on all of its ranks.

        Raises:
            msdu.Error: MSDU_ERR_INVALID, a batch that is not ``micro_batches`` times the example,
                or a layer whose shapes changed. MSDU_ERR_TIMEOUT, a rank is gone, with its number;
                MSDU_ERR_STATE, it ended and said why. There is no going on after an error.
        """
        loss = self.backward(x, y)
        self.update()
        return loss

    def backward(self, x: Value, y: torch.Tensor) -> float:
        """The first half of step(): gradients, which are the replicas' mean where they exchange
        gradients. :meth:`update` is the second; between them gradients may be clipped."""
        if self._is_finished:
            raise _abi.Error(_abi.ERR_STATE, "pipeline: a step after finish()")
        self._check_batch(x, y)
        begin = time.perf_counter()
        self._held.zero_grad()
        loss: float = self._failing_loudly(lambda: self._gradients(x, y))
        self._step_s.append(time.perf_counter() - begin)
        return loss

    def _gradients(self, x: Value, y: torch.Tensor) -> float:
        found = None
        self._ranks.expect(self.plan.stages[-1].device)
        if self._run is not None:
            with ExitStack() as stack:
                for attachment in self.attachments.values():
                    stack.enter_context(attachment.no_sync())
                found = self._run.gradients(x, y)
            self._stages_s.append(self._run.times)
        loss = self._ranks.tell(
            None if found is None else float(found), self.plan.stages[-1].device
        )
        for attachment in self.attachments.values():
            attachment.exchange()
        return loss

    def update(self) -> None:
        """The second half of step(): the optimizers, then their schedules."""
        begin = time.perf_counter()
        self._failing_loudly(self._held.step)
        self.steps += 1
        if self._step_s:
            self._step_s[-1] += time.perf_counter() - begin
        if self.steps % self._every == 0 or self.steps in _EARLY:
            self._failing_loudly(self._measure)
        if self._regret is not None and self.steps % self._every == 0:
            self._failing_loudly(self._adapt)

    def evaluate(self, x: Value, y: torch.Tensor, measure: Optional[Loss] = None) -> float:
        """Forward passes alone, with layers in eval mode and without gradients, between steps.

        Args:
            x, y: as of step().
            measure: of the last layer's output and targets, a number for each micro-batch, such as
                an accuracy; None: the loss.

        Returns:
            The mean over micro-batches, on all ranks of this replica.
        """
        self._check_batch(x, y)
        modes = [(one, one.training) for m in self.modules.values() for one in m.modules()]
        for module in self.modules.values():
            module.eval()

        def work() -> float:
            found = None
            self._ranks.expect(self.plan.stages[-1].device)
            if self._run is not None:
                found = self._run.evaluate(x, y, measure or self._loss)
            return self._ranks.tell(found, self.plan.stages[-1].device)

        try:
            with torch.no_grad():
                loss: float = self._failing_loudly(work)
            return loss
        finally:
            for module, is_training in modes:
                module.training = is_training

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Clip gradients by their norm over all stages, between backward() and update(), as
        ``torch.nn.utils.clip_grad_norm_`` does; the norm, with the bits of one process."""
        counts = self._looked.trained
        is_double = self._looked.between[-1][0].dtype is torch.float64
        norms = torch.zeros(sum(counts), dtype=torch.float64 if is_double else torch.float32)
        grads = []
        for number, module in self.modules.items():
            at = sum(counts[:number])
            for index, param in enumerate(trained_of(module), at):
                if param.grad is not None:
                    norms[index] = torch.linalg.vector_norm(param.grad)
                    grads.append(param)
        total = torch.linalg.vector_norm(self._ranks.sum(norms))
        torch.nn.utils.clip_grads_with_norm_(grads, max_norm, total.to(self._place))
        return float(total)

    def _check_batch(self, x: Value, y: torch.Tensor) -> None:
        """Every rank checks, so that all of them say so at once."""
        for what, given, example in (("x", x, self._x), ("y", y, self._y)):
            for one, like in zip(tensors(given), tensors(example)):
                count, parts = len(one), self._micro_batches
                if count % parts:
                    raise invalid(f"{what} has {count} samples, not a multiple of {parts}")
                if count != parts * len(like) or one.shape[1:] != like.shape[1:]:
                    raise invalid(
                        f"{what} is {list(one.shape)}, not {parts} times the example's "
                        f"{list(like.shape)}"
                    )

    def _failing_loudly(self, work: Callable[[], Any]) -> Any:
        """Where this rank fails for a reason of its own, the others learn it; where another is
        gone, the error names it."""
        try:
            return work()
        except LostError as problem:
            self._ranks.lost(self._ranks.of(problem.device), problem.problem)
        except Exception as problem:
            self._ranks.failed(problem)
            raise

    # --- other cuts ---

    def _adapt(self) -> None:
        """Rank 0 decides, since processors may break ties differently."""
        assert self._regret is not None and self._measured is not None
        regret, measured = self._regret, self._measured[:-1].tolist()

        def decide() -> bytes:
            found = regret.look(measured, self._every)
            return b"" if found is None else found.dumps()

        made = self._ranks.share(decide)
        if made:
            self._move(_stages_plan.read(made))

    def move(self, plan: Any) -> None:
        """Take another plan from the next step on: layers travel to where it has them, with their
        optimizers and schedules. All ranks call it between steps. Training has the bits that it
        had if the plan had always been this one; replicas become equal.

        Args:
            plan: as for :func:`msdu.pipeline`; rank 0's counts.
        """
        made = self._ranks.share(lambda: self._given(plan).dumps())
        self._failing_loudly(lambda: self._move(_stages_plan.read(made)))

    def _move(self, plan: Plan) -> None:
        for attachment in self.attachments.values():
            attachment.finish()
            attachment.close()
        self.attachments.clear()
        before, after = self.plan.owners(), plan.owners()
        self._ranks.carry(before, after, self._held.pack, self._held.unpack)
        begin = time.perf_counter()
        self.plan = plan
        for number in [n for n in self.modules if after[n] != self._ranks.device]:
            self._held.drop(number)
        self._build()
        self._stages_s.clear()
        self._step_s.clear()
        self._measured = None
        self.moves += before != after
        if self._regret is not None:
            self._regret.moved(plan, time.perf_counter() - begin)

    # --- the end, and what is seen from outside ---

    def finish(self) -> None:
        """End of training: replicas hold the same bits, and no rank leaves before the others."""
        if self._is_finished:
            return
        for attachment in self.attachments.values():
            attachment.finish()
        if self._step_s:
            self._failing_loudly(self._measure)
        self._ranks.finish()
        self._is_finished = True

    def _measure(self) -> None:
        """Computing of each stage in a step, and the step: medians, the slowest rank's."""
        found = torch.zeros(len(self.plan.stages) + 1, dtype=torch.float64)
        for number in self.plan.of(self._ranks.device):
            found[number] = statistics.median(times[number] for times in self._stages_s)
        found[-1] = statistics.median(self._step_s) if self._step_s else 0.0
        self._measured = self._ranks.largest(found)

    def summary(self) -> PipelineSummary:
        """Stages, and the step as planned and as measured. Measured values are of the last time
        that ranks told each other: after 2, 4, 8, 16, 32, 48.. steps, and in finish()."""
        measured = [math.nan] * (len(self.plan.stages) + 1)
        if self._measured is not None:
            measured = self._measured.tolist()
        step_s = measured[-1]
        stages = [
            StageSummary(
                ranks=[self._ranks.of(one.device, r) for r in range(self._ranks.replicas)],
                first=one.first,
                end=one.end,
                holds=one.holds,
                memory_bytes=one.memory_bytes,
                planned_busy=one.busy_ns / self.plan.step_ns if self.plan.step_ns else math.nan,
                busy=measured[number] / step_s if step_s else math.nan,
            )
            for number, one in enumerate(self.plan.stages)
        ]
        used = {rank for stage in stages for rank in stage.ranks}
        return PipelineSummary(
            steps=self.steps,
            micro_batches=self.plan.micro_batches,
            replicas=self._ranks.replicas,
            stages=stages,
            idle=[rank for rank in range(self._ranks.count) if rank not in used],
            step_s=step_s,
            planned_s=self.plan.step_ns / 1e9 or math.nan,
            bound_s=self.plan.bound_ns / 1e9 or math.nan,
            moves=self.moves,
            exchanges={number: one.summary() for number, one in self.attachments.items()},
        )

    def progress(self) -> dict[str, str]:
        """A few words for ``tqdm.set_postfix()``: a step as measured and as planned, moves."""
        now = self.summary()
        return {
            "step": f"{now.step_s:.3g}s",
            "planned": f"{now.planned_s:.3g}s",
            "moves": str(now.moves),
        }

    # --- checkpoints ---

    def state_dict(self, gather: bool = True) -> dict[str, Any]:
        """Parameters, buffers, optimizers and schedules by layer of the whole model, so that it
        fits any other cut. All ranks call it between steps; replicas become equal.

        Args:
            gather: rank 0 gets all layers, one after another through its memory, and the others
                an empty dict. False: each rank gets its own layers.

        Returns:
            ``"model"`` is what ``nn.Sequential`` of all layers loads; on the CPU if gathered.
        """
        for attachment in self.attachments.values() if not self._is_finished else ():
            attachment.synchronize()
        packed = {number: self._held.pack(number) for number in self.modules}
        if gather:
            packed = self._ranks.collect(packed, self.plan.owners())
            if self._ranks.rank:
                return {}
        return state_of(packed, len(self._layers), self.steps)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where state_dict() was taken, whatever the cut was: each rank takes its layers.
        All ranks call it, with the whole state or at least their own layers.

        Raises:
            msdu.Error: another number of layers, or one of this rank's is missing.
        """
        self._held.load(state)
        self.steps = state["steps"]


def _check(
    options: Mapping[str, Any], settings: Mapping[str, Any], example: Any, micro_batches: int
) -> None:
    if not dist.is_available() or not dist.is_initialized():
        text = "pipeline: call torch.distributed.init_process_group() before"
        raise _abi.Error(_abi.ERR_STATE, text)
    _stages_engine.runtime()
    _settings.check(_settings.split(settings)[0])
    if options["boundary"] not in _BOUNDARIES:
        boundary = options["boundary"]
        raise invalid(f"boundary: {boundary!r} is none of {', '.join(_BOUNDARIES)}")
    if micro_batches < 1:
        raise invalid(f"micro_batches: {micro_batches} is less than 1")
    ranks, replicas = dist.get_world_size(), options["replicas"]
    if replicas < 1 or ranks % replicas:
        raise invalid(f"replicas: {ranks} ranks cannot be {replicas} equal pipelines")
    if not isinstance(example, tuple) or len(example) != 2:
        raise invalid("example: not a pair of inputs and targets")
