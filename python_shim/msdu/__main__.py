# SPDX-License-Identifier: Apache-2.0
"""``python -m msdu [--setting value ...] train.py args``: run an unmodified script, attached."""

from __future__ import annotations

import io
import os
import runpy
import sys
import types
from typing import Callable, NoReturn

from . import _abi, _context, _settings

_USAGE = """\
usage: python -m msdu [options] train.py [arguments]
       python -m msdu [options] -m module [arguments]

Runs a script that trains with torch's DistributedDataParallel, or reduces gradients by
torch.distributed.all_reduce, and synchronizes it by libmsdu. Under any launcher:
       torchrun --nproc-per-node 4 -m msdu train.py

options:
  --SETTING VALUE   any setting below, with - or _; a choice of no, yes also as --no-SETTING
  --buffers WHAT    ddp (default): BatchNorm statistics and the like are as the script's
                    DistributedDataParallel has them while gradients are exchanged (rank 0's, at
                    each forward), and averaged with the parameters in local steps; average: only
                    that; local: each rank keeps its own
  --second-moments HOW  Adam's in local steps: mean (default: led to those of the mean
                    gradient), keep (with --warmup-steps N: those of the mean gradients of N
                    steps stay) or own
  --sync-every N    make all ranks equal to the bit after every N steps (an epoch's, so that
                    evaluation and checkpoints see the mean); default: at the end only
  --sync-on-eval    the same when model.eval() is called on a wrapped model; only if every rank
                    calls it
  --quiet           no summary at the end
  --help            this text
"""


def _refuse(text: str) -> NoReturn:
    print(f"msdu: {text}", file=sys.stderr)
    raise SystemExit(2)


def _help() -> str:
    lines = [_USAGE, "settings (MSDU_* variables win):"]
    for one in _settings.settings().values():
        default = f" (default {one.default})" if one.default else ""
        lines.append(f"  --{one.name.replace('_', '-'):18} {one.help}{default}; {one.range}")
    return "\n".join(lines)


def _print_help() -> None:
    try:
        print(_help(), flush=True)
    except BrokenPipeError:  # into head: who reads it has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Arguments:
    """The command line, up to the script."""

    def __init__(self, words: list[str]) -> None:
        self.settings: dict[str, str] = {}
        self.buffers = "ddp"
        self.sync_every = 0
        self.sync_on_eval = False
        self.is_quiet = False
        self.is_module = False
        self._words = words
        while self._words and self._words[0].startswith("-") and not self.is_module:
            word = self._words.pop(0)
            if word == "--":
                break
            if word == "-m":
                self.is_module = True
            else:
                self._option(word)
        if not self._words:
            _refuse("which script? see python -m msdu --help")
        self.command = self._words

    def _option(self, word: str) -> None:
        name, has_value, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if word in ("-h", "--help"):
            _print_help()
            raise SystemExit(0)
        if not word.startswith("--"):
            _refuse(f"unknown option {word}; see python -m msdu --help")
        if name in ("sync_on_eval", "quiet"):
            self.sync_on_eval |= name == "sync_on_eval"
            self.is_quiet |= name == "quiet"
            return
        if name.startswith("no_") and not has_value:
            self.settings[name[len("no_") :]] = "no"
            return
        if not has_value:
            if not self._words:
                _refuse(f"--{name.replace('_', '-')} needs a value")
            value = self._words.pop(0)
        self._set(name, value)

    def _set(self, name: str, value: str) -> None:
        if name == "buffers":
            if value not in ("ddp", "average", "local"):
                _refuse(f"--buffers {value}: ddp, average or local")
            self.buffers = value
        elif name == "sync_every":
            if not value.isdigit() or int(value) < 1:
                _refuse(f"--sync-every {value}: a number of steps")
            self.sync_every = int(value)
        else:
            self.settings[name] = value


def _check(settings: dict[str, str]) -> None:
    """Say what is wrong with a setting before the script begins."""
    wanted = os.environ.get("MSDU_RANKS_LEAST") or settings.get("ranks_least")
    if wanted and wanted != "0":
        _refuse(
            "ranks_least: an unmodified script cannot follow ranks that come and go, since a "
            "newcomer would begin it anew. msdu.attach() in the script can"
        )
    try:
        known, _ = _settings.split(settings)
        probe = {k: v for k, v in known.items() if k not in ("ranks", "rank", "backend")}
        if os.environ.get("RANK", "0") != "0":
            _context.tell_no_unknown_variables()
        _context.Context({**probe, "backend": "local", "ranks": 1}, is_probe=True).destroy()
    except _abi.Error as problem:
        _refuse(str(problem))


def _script(path: str) -> Callable[[], None]:
    """What ``python path`` does, in this process."""

    def body() -> None:
        module = types.ModuleType("__main__")
        module.__file__ = path
        module.__dict__["__builtins__"] = __builtins__
        module.__spec__ = None
        sys.modules["__main__"] = module
        exec(code, module.__dict__)

    try:
        with io.open_code(os.path.abspath(path)) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as problem:
        _refuse(f"{path}: {problem.strerror}")
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    return body


def _module(name: str) -> Callable[[], None]:
    """What ``python -m name`` does, in this process."""

    def body() -> None:
        runpy.run_module(name, run_name="__main__", alter_sys=True)

    return body


def main() -> None:
    """The command."""
    given = _Arguments(sys.argv[1:])
    _check(given.settings)
    name = given.command[0]
    body = _module(name) if given.is_module else _script(name)
    sys.argv[:] = given.command
    from . import _intercept, _watch  # after the arguments: torch takes its time

    options = _watch.Options(
        dict(given.settings), given.buffers, given.sync_every, given.sync_on_eval, given.is_quiet
    )
    _intercept.run(body, options)


if __name__ == "__main__":
    main()
