#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the parameter servers that uneven training is compared with, without a network.

Exit status 77 where torch is not installed. What they give over RPC is in test_training.py.
"""
from __future__ import annotations

import pathlib
import random
import sys
import threading
import unittest

try:
    import torch
    from torch import Tensor
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from training import peers

RANKS = 4
STEPS = 40


def server_of(rule: peers.Asp, ranks: int = RANKS) -> peers.Server:
    """A server of one value, 0."""
    return peers.Server(torch.zeros(1), ranks, rule)


def one(value: float) -> Tensor:
    """An update."""
    return torch.tensor([float(value)])


class Workers:
    """Threads that train: each makes steps of random length, the last one the slowest."""

    def __init__(self, rule: peers.Asp, slowest: float = 8.0, steps: int = STEPS) -> None:
        self.server = server_of(rule)
        self.answers: list[list[float]] = [[] for _ in range(RANKS)]
        self.begun: list[list[int]] = [[] for _ in range(RANKS)]  # lead when a step began
        self._pause = [1.0] * (RANKS - 1) + [slowest]
        self._steps = steps
        threads = [threading.Thread(target=self._train, args=(worker,)) for worker in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def _train(self, worker: int) -> None:
        chance = random.Random(worker)
        wait = threading.Event()
        for _ in range(self._steps):
            wait.wait(chance.random() * 0.0005 * self._pause[worker])
            self.answers[worker].append(float(self.server.exchange(worker, one(1.0))))
            self.begun[worker].append(self.server.lead(worker))
        self.server.leave(worker)


class Rules(unittest.TestCase):
    """What updates count, by hand."""

    def test_asynchronous_updates_count_a_share_at_once(self) -> None:
        server = server_of(peers.Asp())
        self.assertEqual([float(server.exchange(w, one(v))) for w, v in ((0, 4), (0, 8), (3, 4))],
                         [1.0, 3.0, 4.0])

    def test_old_updates_count_less(self) -> None:
        server = server_of(peers.StalenessScaled())
        # nobody came between; then 1 has missed two, then 0 has missed one
        self.assertEqual([float(server.exchange(w, one(1))) for w in (0, 0, 1, 0)],
                         [1.0, 2.0, 2.5, 3.5])
        self.assertEqual(float(server.exchange(2, one(1))), 3.75)  # 2 has missed four

    def test_nothing_is_lost(self) -> None:
        for rule in (peers.Asp(), peers.Ssp(2), peers.Dssp(1, 4)):
            self.assertAlmostEqual(float(Workers(rule).server.values), STEPS, places=4)


class Bounds(unittest.TestCase):
    """How far ahead a worker may be, in threads."""

    def test_without_a_bound_the_slowest_is_left_behind(self) -> None:
        self.assertGreater(Workers(peers.Asp(), slowest=100).server.most_ahead, 10)

    def test_who_is_ahead_by_the_bound_waits(self) -> None:
        for bound in (0, 1, 3):
            made = Workers(peers.Ssp(bound))
            self.assertLessEqual(made.server.most_ahead, bound)
            self.assertEqual(made.server.steps, [STEPS] * RANKS)
        self.assertEqual(made.server.most_ahead, 3)  # and the bound is used

    def test_bound_zero_is_synchronous(self) -> None:
        """Everybody reads the same values after every step, of all updates and no later one."""
        for answers in Workers(peers.Ssp(0)).answers:
            self.assertEqual(answers, [float(step + 1) for step in range(STEPS)])

    def test_a_dynamic_bound_is_between_its_ends(self) -> None:
        made = Workers(peers.Dssp(1, 5))
        self.assertLessEqual(made.server.most_ahead, 5)
        self.assertGreater(made.server.most_ahead, 1)
        self.assertEqual(Workers(peers.Dssp(2, 2)).server.most_ahead, 2)

    def test_a_dynamic_bound_waits_where_that_is_shortest(self) -> None:
        times = iter([0.0, 10.0, 9.0, 10.5])
        rule = peers.Dssp(0, 8, clock=lambda: next(times))
        server = server_of(rule, 2)
        server.steps = [1, 2]  # the slowest sends at 0 and 10, the fast one at 9 and 10.5
        for worker in (0, 0):
            rule.take(server, worker, one(0))
        server.steps = [1, 3]
        rule.take(server, 1, one(0))
        rule.take(server, 1, one(0))
        # the slowest ends its next step at 20: 6 steps of 1.5 later the fast one is at 19.5
        self.assertEqual(rule.credits[1] + rule.is_free[1], 6)


class Softly(unittest.TestCase):
    """n-softsync."""

    def test_all_is_synchronous(self) -> None:
        for answers in Workers(peers.Soft(RANKS)).answers:
            self.assertEqual(answers, [float(step + 1) for step in range(STEPS)])

    def test_a_mean_is_of_so_many(self) -> None:
        """Each version of the server is one mean of updates of 1, and the slowest is not waited for."""
        made = Workers(peers.Soft(2), slowest=50)
        self.assertEqual(made.server.steps, [STEPS] * RANKS)
        self.assertAlmostEqual(float(made.server.values), made.server.version, places=3)
        self.assertLessEqual(made.server.version, RANKS * STEPS)
        self.assertGreaterEqual(made.server.version, RANKS * STEPS // 2)
        self.assertGreater(made.server.most_ahead, 2)

    def test_the_last_workers_do_not_wait_for_those_that_left(self) -> None:
        server = server_of(peers.Soft(3), 3)
        server.leave(2)
        waiting = threading.Thread(target=server.exchange, args=(0, one(2)), daemon=True)
        waiting.start()
        server.leave(1)
        waiting.join(10)
        self.assertFalse(waiting.is_alive())
        self.assertEqual(float(server.values), 2.0)


if __name__ == "__main__":
    unittest.main()
