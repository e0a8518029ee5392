"""Tests compare with XLA's bits on the CPU, which are pinned to the same on every processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pallas_test_support.forked_python import run_python
from pallas_test_support.pinned_xla import PIN, pin_xla, pinned, require_pin
from pallas_test_support.rules_of_jax import assert_same_bits

SHOW = "import os; print(os.environ['XLA_FLAGS'])"


def test_this_process_is_pinned() -> None:
    require_pin()


def test_processes_that_tests_start_are_pinned() -> None:
    new = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    for output in (new.stdout, run_python("-c", SHOW).stdout):
        require_pin({"XLA_FLAGS": output})


@pytest.mark.skipif(not PIN, reason="XLA has no instruction sets to choose for this processor")
def test_a_comparison_without_the_pin_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x")
    with pytest.raises(AssertionError, match=r"'--xla_dump_to=/x' does not pin .*pinned_xla"):
        assert_same_bits(abs, 1.0)


@pytest.mark.parametrize(
    ("given", "flags"),
    [("", pinned()), ("--a=1", pinned("--a=1")), ("--xla_cpu_max_isa=SSE4_2",) * 2],
)
def test_other_flags_are_kept(monkeypatch: pytest.MonkeyPatch, given: str, flags: str) -> None:
    monkeypatch.setenv("XLA_FLAGS", given)
    pin_xla()
    assert os.environ["XLA_FLAGS"] == flags
