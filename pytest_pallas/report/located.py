"""What others read off the report of a test: properties for JUnit, a place for annotations."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.backends import Label
from pytest_pallas.record import Record

_PREFIX = "pallas_"


def add_properties(item: pytest.Item, report: pytest.TestReport, records: list[Record]) -> None:
    """Give a test the properties of its records, which JUnit XML has as ``<property>``.

    ``--junit-xml`` reads them off the report of the teardown, which copies the item's.
    """
    found = [pair for record in records for pair in properties(record)]
    # A plugin that runs a test again comes here again.
    own = [pair for pair in item.user_properties if not pair[0].startswith(_PREFIX)]
    item.user_properties[:] = [*own, *found]
    report.user_properties = list(item.user_properties)


def properties(record: Record) -> Iterator[tuple[str, str | int | float]]:
    """A record in a few words and numbers; those that were not measured are left out."""
    values: dict[str, Any] = {
        "kernel": record.kernel,
        "check": record.check,
        "backend": record.backend,
        "target": Label.of(record.backend).chip or None,
        "mesh": " ".join(f"{axis}={size}" for axis, size in record.mesh.items()) or None,
        "seed": record.seed,
        "examples": record.examples,
        "error": record.error,
        "baseline": record.baseline,
        "multiple": record.multiple,
    }
    for word, value in values.items():
        if value is not None:
            yield _PREFIX + word, value


def locate(item: pytest.Item, report: pytest.TestReport, error: BaseException) -> None:
    """Let the report of a failed spec say where its kernel is.

    It is where annotations of CI are put: the spec's own file and line say less. Kernels outside of
    pytest's root folder, which no pull request changes, leave the report as it is.
    """
    trial = getattr(getattr(error, "failure", None), "trial", None)
    spec: Any = getattr(item, "spec", None)
    place = None if spec is None or trial is None else _place(trial.kernel)
    if place is None:
        return
    path, line = place
    root = item.config.rootpath
    if path.is_relative_to(root):
        report.location = (os.path.relpath(path, root), line - 1, report.location[2])


def _place(function: Any) -> tuple[Path, int] | None:
    """The file and the line of a function, also of one that is jitted or partly applied."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = inspect.unwrap(function)
        else:
            break
    code = getattr(function, "__code__", None)
    return None if code is None else (Path(code.co_filename).resolve(), code.co_firstlineno)
