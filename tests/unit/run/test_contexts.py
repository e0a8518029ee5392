"""What a check is given: goldens are around it only where they are asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_pallas.budget import ExampleBudget
from pytest_pallas.checks import Check
from pytest_pallas.options import Options
from pytest_pallas.run.check_run import with_goldens

CHECK = Check(name="forward", asks="?", run=lambda context: context)  # pyright: ignore[reportArgumentType]


def wrapped(goldens: Any, mutant: Any = None) -> Check:
    run: Any = SimpleNamespace(
        session=SimpleNamespace(goldens=goldens, mutant=mutant),
        check=CHECK,
        name="add",
        test="t",
        sizes={},
        options=Options(),
        budget=ExampleBudget.fixed(0),
    )
    return with_goldens(run)


def test_without_the_option_the_check_runs_as_it_is() -> None:
    assert wrapped(None) is CHECK


def test_a_mutant_has_no_goldens() -> None:
    assert wrapped(SimpleNamespace(mode="record"), "mutant") is CHECK


@pytest.mark.parametrize("mode", ["record", "replay"])
def test_with_it_only_the_run_is_another(mode: str) -> None:
    check = wrapped(SimpleNamespace(mode=mode))
    assert check.run is not CHECK.run
    found: Any = SimpleNamespace(answer=None)
    assert check.run(found) is found  # there is no answer that could be kept
    assert (check.name, check.asks) == (CHECK.name, CHECK.asks)
