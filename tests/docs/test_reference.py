"""docs/reference.md names everything that is public, and nothing that is gone."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import pytest_pallas
from pytest_pallas import fixtures, hookspecs, plugin, strategies
from pytest_pallas.backends import FAMILIES, TARGETS, compiling
from pytest_pallas.budget import option_text
from pytest_pallas.checks import CHECKS
from pytest_pallas.options import TABLE
from pytest_pallas.record import OUTCOMES, Record
from pytest_pallas.sanitizers import NAMES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference.md").read_text()

ERRORS = [
    name for name in pytest_pallas.__all__ if name.endswith("Error") and name != "PallasTestError"
]

PUBLIC = {
    "error": ERRORS,
    "option": [option.flag for option in TABLE],
    "backend": [family.name for family in (*FAMILIES, *compiling(lambda: None))],
    "target": list(TARGETS),
    "fixture": [name for name in plugin.__all__ if hasattr(fixtures, name)],
    "hook": [name for name in vars(hookspecs) if name.startswith("pytest_pallas_")],
    "check": [check.name for check in CHECKS],
    "sanitizer": list(NAMES),
    "record field": [field.name for field in dataclasses.fields(Record)],
    "outcome": list(OUTCOMES),
    "option that a mark sets": [option.name for option in TABLE if option.marked],
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in PUBLIC.items() for name in names]
)
def test_is_documented(kind, name):
    assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", TEXT), f"{kind} {name}"


def test_every_option_in_the_text_exists():
    flags = set(re.findall(r"--pallas-[a-z-]+", TEXT))
    assert flags == {option.flag for option in TABLE}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"pst\.(\w+)", TEXT))))
def test_every_strategy_in_the_text_exists(name):
    assert callable(getattr(strategies, name))


def test_defaults_in_the_text_are_the_defaults():
    from pytest_pallas.options import Options

    options = Options()
    for flag, value in (
        ("--pallas-devices=N", options.devices),
        ("--pallas-max-examples=N", options.max_examples),
        ("--pallas-max-bytes=BYTES", option_text(options.max_bytes)),
        ("--pallas-seed=N", options.seed),
        ("--pallas-timeout=SECONDS", f"{options.timeout:g}"),
        ("--pallas-cost=", options.cost),
        ("--pallas-cost-file=", options.cost_file.name),
        ("--pallas-cost-limit=", f"{options.cost_limit:g}"),
        ("--pallas-worker-memory=", f"{options.worker_memory:g}"),
    ):
        row = next(line for line in TEXT.splitlines() if flag in line)
        assert re.search(rf"\b{value}\b", row), row


def test_public_functions_have_docstrings_with_what_they_raise():
    assert "Raises" in (inspect.getdoc(strategies.arrays) or "")
