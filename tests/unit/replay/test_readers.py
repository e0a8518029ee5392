"""Scripts hold the promises that a check reads."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

from pytest_pallas.checks import declared_checks, declared_sanitizers, metamorphic
from pytest_pallas.replay.script import READERS

CHECKS = (*declared_checks(), *declared_sanitizers())


def read_by(check):
    """The promises that the source of a check names, with what it calls of its module."""
    names = vars(sys.modules[check.run.__module__])
    sources = {check.run: inspect.getsource(check.run)}
    while called := {
        function
        for text in sources.values()
        for word in re.findall(r"\b\w+\b", text)
        if inspect.isfunction(function := names.get(word))
        and (function.__module__ == check.run.__module__ or function is metamorphic.check_each)
    } - set(sources):
        sources |= {function: inspect.getsource(function) for function in called}
    text = "".join(sources.values())
    return {name for name in re.findall(r"\bcontext\.(\w+)", text) if name in READERS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_readers_of_promises_are_those_whose_source_names_them(check):
    assert {name for name, checks in READERS.items() if check.name in checks} == read_by(check)


def test_readers_are_checks():
    names = {check.name for check in CHECKS}
    assert {name for checks in READERS.values() for name in checks} <= names
