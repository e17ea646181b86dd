# SPDX-License-Identifier: Apache-2.0
"""A plan of a pipeline: which layers, which device, in what order; as Python values and as bytes.
Needs neither torch nor the library."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from . import _abi

_FORMAT = "msdu-stages-1"
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")

Action = tuple[int, str, int]  # stage; "F", "B", "I" or "W" as torch writes them; micro-batch


def _invalid(text: str) -> _abi.Error:
    return _abi.Error(_abi.ERR_INVALID, f"plan: {text}")


@dataclasses.dataclass(frozen=True)
class Stage:
    """Layers ``first`` .. ``end - 1`` on a device.

    Attributes:
        device: its number.
        first, end: layers.
        holds: micro-batches whose activations it holds at once, at most; 0: not known.
        busy_ns: computing in a step, simulated.
        memory_bytes: at most, estimated.
    """

    device: int
    first: int
    end: int
    holds: int = 0
    busy_ns: float = 0.0
    memory_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """Stages in the order of the forward pass, and what each device in use does in a step.

    Attributes:
        micro_batches: of a step.
        stages: they cover all layers.
        orders: by device, in the order of their first stages; computing in its order.
        step_ns: of a step, simulated; 0: not known.
        bound_ns: no plan is faster; 0: not known.
        spans_ns: begin and end of each action of ``orders``, simulated; empty: not known.
    """

    micro_batches: int
    stages: tuple[Stage, ...]
    orders: Mapping[int, tuple[Action, ...]]
    step_ns: float = 0.0
    bound_ns: float = 0.0
    spans_ns: Mapping[int, tuple[tuple[float, float], ...]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def devices(self) -> list[int]:
        """Those in use, ascending."""
        return sorted(self.orders)

    def of(self, device: int) -> list[int]:
        """Numbers of a device's stages."""
        return [number for number, stage in enumerate(self.stages) if stage.device == device]

    def owners(self) -> dict[int, int]:
        """Devices by layer."""
        return {n: stage.device for stage in self.stages for n in range(stage.first, stage.end)}

    def check(self, layers: int, devices: int) -> None:
        """Does it fit a model of so many layers on so many devices, and can its order be run?

        Raises:
            msdu.Error: MSDU_ERR_INVALID, with the stage or the action.
        """
        end = 0
        for number, stage in enumerate(self.stages):
            if stage.first != end or stage.end <= stage.first:
                raise _invalid(
                    f"stage {number} has layers {stage.first} to {stage.end - 1}, after {end - 1}"
                )
            if not 0 <= stage.device < devices:
                raise _invalid(f"stage {number} is on device {stage.device} of {devices}")
            end = stage.end
        if end != layers:
            raise _invalid(f"its stages have {end} layers, the model {layers}")
        if set(self.orders) != {stage.device for stage in self.stages}:
            raise _invalid("devices of the order are not those of the stages")
        self._check_order()

    def _check_order(self) -> None:
        """Every action once, on its stage's device, and no action waits for ever."""
        done: set[Action] = set()
        at = dict.fromkeys(self.orders, 0)
        is_moving = True
        while is_moving:
            is_moving = False
            for device, order in self.orders.items():
                while at[device] < len(order) and self._may_run(device, order[at[device]], done):
                    done.add(order[at[device]])
                    at[device] += 1
                    is_moving = True
        for device, order in self.orders.items():
            if at[device] < len(order):
                action = text_of(order[at[device]])
                raise _invalid(f"device {device} can never run {action}: what it needs comes later")
        for number in range(len(self.stages)):
            for batch in range(self.micro_batches):
                halves = {(number, "I", batch), (number, "W", batch)}
                if (number, "B", batch) not in done and not halves <= done:
                    raise _invalid(f"{text_of((number, 'B', batch))} is missing")

    def _may_run(self, device: int, action: Action, done: set[Action]) -> bool:
        number, kind, batch = action
        if number >= len(self.stages) or batch >= self.micro_batches or action in done:
            raise _invalid(
                f"device {device} runs {text_of(action)}: there is no such one, or twice"
            )
        if self.stages[number].device != device:
            raise _invalid(f"device {device} runs {text_of(action)}, a stage of another")
        if kind == "W":
            return (number, "I", batch) in done
        if kind == "F":
            is_next = batch == 0 or (number, "F", batch - 1) in done
            return is_next and (number == 0 or (number - 1, "F", batch) in done)
        if (number, "F", batch) not in done:
            return False
        behind = number + 1
        return behind == len(self.stages) or any((behind, k, batch) in done for k in "BI")

    def rows(self) -> list[list[str]]:
        """Computing by device in use, as torch writes it."""
        return [list(map(text_of, self.orders[device])) for device in self.devices]

    def rows_with_messages(self) -> list[list[str]]:
        """The same with messages: all receives first, those from a device in the order of its
        sends. So messages match by order alone, and bytes move as soon as they are there."""
        messages: dict[int, list[str]] = {device: [] for device in self.orders}
        rows: dict[int, list[str]] = {device: [] for device in self.orders}
        for device, order in self.orders.items():
            for action in order:
                rows[device].append(text_of(action))
                number, kind, batch = action
                other = {"F": number + 1, "B": number - 1, "I": number - 1}.get(kind, -1)
                if not 0 <= other < len(self.stages) or self.stages[other].device == device:
                    continue
                letter = "F" if kind == "F" else "B"
                rows[device].append(f"{number}SEND_{letter}{batch}")
                messages[self.stages[other].device].append(f"{other}RECV_{letter}{batch}")
        return [messages[device] + rows[device] for device in self.devices]

    def schedule(self, title: str = "plan") -> dict[str, Any]:
        """What ``bench/overlap/stages_draw.py`` draws, once saved as JSON: actions with their
        simulated times, as ``msdu plan --stages --json`` has them.

        Raises:
            msdu.Error: MSDU_ERR_INVALID, times are not known, as of a plan made by hand.
        """
        if not self.spans_ns:
            raise _invalid("it has no times of actions")
        ranks = [
            {
                "machine": f"rank {device}",
                "actions": [
                    {
                        "stage": stage,
                        "kind": kind,
                        "micro_batch": batch,
                        "begin_us": begin / 1e3,
                        "end_us": end / 1e3,
                    }
                    for (stage, kind, batch), (begin, end) in zip(order, self.spans_ns[device])
                ],
            }
            for device, order in self.orders.items()
        ]
        return {
            "name": "stages",
            "profile": title,
            "micro_batches": self.micro_batches,
            "step_us": self.step_ns / 1e3,
            "bound_us": self.bound_ns / 1e3,
            "ranks": ranks,
        }

    def dumps(self) -> bytes:
        """For a file, or for the other ranks: only one of them plans."""
        value = {
            "format": _FORMAT,
            "micro_batches": self.micro_batches,
            "step_ns": self.step_ns,
            "bound_ns": self.bound_ns,
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
            "orders": {str(d): ",".join(map(text_of, o)) for d, o in self.orders.items()},
            "spans_ns": {str(device): spans for device, spans in self.spans_ns.items()},
        }
        return json.dumps(value).encode()


def text_of(action: Action) -> str:
    """As torch writes it: stage, kind, micro-batch."""
    return f"{action[0]}{action[1]}{action[2]}"


def action_of(text: str) -> Action:
    """What torch writes, read."""
    found = _ACTION.fullmatch(text.strip())
    if found is None:
        raise _invalid(f"{text!r} is no action such as 0F0 or 1B3")
    return int(found[1]), found[2], int(found[3])


def read(given: Union[Plan, Mapping[str, Any], str, bytes, os.PathLike[str]]) -> Plan:
    """A plan from what :meth:`Plan.dumps` wrote, or ``msdu plan --stages --json``: a file's path,
    its bytes, or the object in them. Of the latter device r is the machine of rank r.

    Raises:
        msdu.Error: MSDU_ERR_INVALID, no plan. OSError: no file.
    """
    if isinstance(given, Plan):
        return given
    if isinstance(given, (str, os.PathLike)):
        given = Path(given).read_bytes()
    try:
        value = json.loads(given) if isinstance(given, bytes) else given
        if value.get("name") == "stages":
            return _of_the_command(value)
        if value.get("format") != _FORMAT:
            raise _invalid(f"format {value.get('format')!r}, not {_FORMAT!r}")
        orders = {
            int(d): tuple(map(action_of, text.split(","))) for d, text in value["orders"].items()
        }
        stages = tuple(Stage(**stage) for stage in value["stages"])
        spans = {
            int(device): tuple((float(begin), float(end)) for begin, end in found)
            for device, found in value.get("spans_ns", {}).items()
        }
        times = (float(value.get("step_ns", 0)), float(value.get("bound_ns", 0)), spans)
        return Plan(int(value["micro_batches"]), stages, orders, *times)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise _invalid(f"it cannot be read: {problem!r}") from problem


def _of_the_command(value: Mapping[str, Any]) -> Plan:
    stages = tuple(
        Stage(
            int(stage["rank"]),
            int(stage["first"]),
            int(stage["end"]),
            int(stage["holds"]),
            1e3 * stage["busy_us"],
            stage["memory_bytes"],
        )
        for stage in value["stages"]
    )
    orders = {
        device: tuple((a["stage"], a["kind"], a["micro_batch"]) for a in rank["actions"])
        for device, rank in enumerate(value["ranks"])
    }
    spans = {
        device: tuple((1e3 * a["begin_us"], 1e3 * a["end_us"]) for a in rank["actions"])
        for device, rank in enumerate(value["ranks"])
    }
    times = (1e3 * value["step_us"], 1e3 * value["bound_us"], spans)
    return Plan(int(value["micro_batches"]), stages, orders, *times)


def by_hand(
    cuts: Sequence[tuple[int, int, int]], orders: Mapping[int, Sequence[str]], micro_batches: int
) -> Plan:
    """A plan from (device, first layer, end) of each stage, and actions such as "0F0" by device."""
    stages = tuple(Stage(device, first, end) for device, first, end in cuts)
    read_orders = {device: tuple(map(action_of, order)) for device, order in orders.items()}
    return Plan(micro_batches, stages, read_orders)
