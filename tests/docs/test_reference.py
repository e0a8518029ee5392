"""docs/reference.md names everything that is public, and nothing that is gone."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import pytest_pallas
from pallas_sim.chips import TARGETS
from pytest_pallas import fixtures, hookspecs, plugin, strategies
from pytest_pallas.backends.registry import FAMILIES, compiling
from pytest_pallas.budget import option_text
from pytest_pallas.checks import NAMES as CHECKS
from pytest_pallas.checks import SANITIZERS, declared_checks, declared_sanitizers
from pytest_pallas.options import DOCTOR, TABLE
from pytest_pallas.record import OUTCOMES, Record
from pytest_pallas.results import NOT_RUN, FailedPhase, FinishedTest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reference.md").read_text()

ERRORS = [
    name for name in pytest_pallas.__all__ if name.endswith("Error") and name != "PallasError"
]

PUBLIC = {
    "error": ERRORS,
    "option": [option.flag for option in TABLE],
    "backend": [family.name for family in (*FAMILIES, *compiling(lambda: None))],
    "target": list(TARGETS),
    "fixture": [name for name in plugin.__all__ if hasattr(fixtures, name)],
    "hook": [name for name in vars(hookspecs) if name.startswith("pytest_pallas_")],
    "check": list(CHECKS),
    "sanitizer": list(SANITIZERS),
    "record field": [field.name for field in dataclasses.fields(Record)],
    "field of a test": [field.name for field in dataclasses.fields(FinishedTest)],
    "field of a failed phase": [field.name for field in dataclasses.fields(FailedPhase)],
    "outcome": [*OUTCOMES, NOT_RUN],
    "option that a mark sets": [option.name for option in TABLE if option.marked],
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in PUBLIC.items() for name in names]
)
def test_is_documented(kind, name):
    assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", TEXT), f"{kind} {name}"


@pytest.mark.parametrize("check", declared_checks(), ids=lambda check: check.name)
def test_how_many_examples_a_check_draws(check):
    words = {1.0: "all", 0.5: "a half", 0.25: "a quarter", 0.125: "an eighth"}
    least = f", {check.min_examples} at least" if check.min_examples > 1 else ""
    [row] = re.findall(rf"^\| `{check.name}` \|.*\| (.+?) \|$", TEXT, re.MULTILINE)
    assert row == words[check.example_fraction] + least


def test_the_checks_that_execute_nothing():
    [text] = re.findall(r'scope="executing"\)` about all\nthat execute[^:]+: (.+?) must pass', TEXT)
    declared = (*declared_checks(), *declared_sanitizers())
    assert re.findall(r"`(.+?)`", text) == [each.name for each in declared if not each.executes]


def test_every_option_in_the_text_exists():
    flags = set(re.findall(r"--pallas-[a-z-]+", TEXT))
    assert flags == {DOCTOR, *(option.flag for option in TABLE)}


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


def test_the_line_of_checks_that_do_not_apply_is_that_of_a_run():
    [shown] = re.findall(r"^not applicable: .*$", TEXT, re.MULTILINE)
    assert shown in (ROOT / "docs/backends.md").read_text().splitlines()
