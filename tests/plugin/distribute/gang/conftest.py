"""Programs of several processes, started once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pallas_test_support.gang_processes import Program, processes


@pytest.fixture(scope="session")
def two() -> Iterator[Program]:
    """Two processes with two devices each."""
    with processes(2, devices=2) as program:
        yield program


@pytest.fixture(scope="session")
def four() -> Iterator[Program]:
    """Four processes with one device each."""
    with processes(4, devices=1) as program:
        yield program
