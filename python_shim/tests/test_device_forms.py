# SPDX-License-Identifier: Apache-2.0
"""Tensors of a GPU in the other forms of the package, over the STAND-IN as in test_device.py.

A file of its own because ranks are forked here: from a process that has no threads yet.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import test_ddp
import test_main
import test_main_reduce

pytestmark = pytest.mark.usefixtures("on_the_stand_in")


@pytest.mark.parametrize("what", [("adam", "view"), ("unused",), ("sparse",)], ids="-".join)
def test_wrapper_and_hook_are_torchs(tmp_path: Path, what: tuple[str, ...]) -> None:
    test_ddp.test_interval_of_one_is_torchs(tmp_path, what)


def test_wrapper_and_hook_end_equal_after_local_steps(tmp_path: Path) -> None:
    test_ddp.test_local_steps_end_equal(tmp_path, ("norm",))


@pytest.mark.parametrize("what", [["adamw", "clip"], ["accumulate"]], ids="-".join)
def test_an_unmodified_script(tmp_path: Path, what: list[str]) -> None:
    test_main.test_interval_of_one_is_plain_training(tmp_path, what)


def test_an_unmodified_script_with_local_steps(tmp_path: Path) -> None:
    test_main.test_local_steps_train_and_end_equal(tmp_path, ["sgd"])


@pytest.mark.parametrize("how", ["after", "flat", "async"])
def test_a_script_that_reduces_by_hand(tmp_path: Path, how: str) -> None:
    test_main_reduce.test_interval_of_one_is_the_scripts_mean(tmp_path, how)


def test_a_script_that_reduces_by_hand_with_local_steps(tmp_path: Path) -> None:
    test_main_reduce.test_local_steps_train_and_end_equal(tmp_path, "after")
