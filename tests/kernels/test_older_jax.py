"""Kernels of what an older JAX lacks: docs/support.md names them."""

from __future__ import annotations

import re
from pathlib import Path

import jax

from pytest_pallas import suite

TEXT = (Path(__file__).parents[2] / "docs/support.md").read_text()
[ROW] = re.findall(r"^\| 0\.11\.2 \| (reference kernels of what is new in 0\.12: .*?);", TEXT, re.M)
NEW = set(re.findall(r"`(\w+)`", ROW))


def test_this_jax_has_all_kernels_but_those_that_are_new() -> None:
    specs = suite("reference_kernels").specs()
    claimed = {spec.name for spec in specs if spec.backends != ()}
    unclaimed = {spec.name for spec in specs} - claimed
    if jax.__version_info__ < (0, 12):
        assert claimed.isdisjoint(NEW)
        assert unclaimed <= NEW
    else:
        assert claimed >= NEW
        assert not unclaimed
