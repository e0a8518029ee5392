"""``--pallas-results``: the records of a session as JSON. Documented in docs/reference.md."""

from __future__ import annotations

import dataclasses
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from types import MappingProxyType
from typing import Any

import pytest

from pytest_pallas._version import __version__
from pytest_pallas.backends import label
from pytest_pallas.compat.testing import worker_count
from pytest_pallas.record import SCHEMA, Record, plain_not_applicable, to_json
from pytest_pallas.report.sections.mutants import others
from pytest_pallas.report.sections.not_applicable import entries
from pytest_pallas.report.terminal import distinct
from pytest_pallas.results import FinishedTest
from pytest_pallas.results.model import plain_tests, text_parts
from pytest_pallas.session import PytestSession
from pytest_pallas.session.fleet import to_json as to_plain


def document(
    session: PytestSession,
    records: Sequence[Record],
    collected: Sequence[str] = (),
    tests: Sequence[FinishedTest] = (),
    parts: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({}),
) -> Iterator[str]:
    """The records and the session's data, as JSON in parts.

    Args:
      session: the session.
      records: its records.
      collected: node ids of all tests.
      tests: the tests that ended.
      parts: of the other tests, as in ``RunResults``.
    """
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        **about(session),
        "options": option_values(session),
        "distinct": dataclasses.asdict(distinct(others(records))),
        "records": map(to_json, records),
        "not_applicable": map(plain_not_applicable, entries(session.not_applicable, records)),
        "tests": plain_tests(collected, tests, parts),
    }
    if session.fleet is not None:
        whole["fleet"] = to_plain(session.fleet)
    return text_parts(whole)


def first_line(session: PytestSession, collected: Sequence[str]) -> dict[str, Any]:
    """The first line of the journal of a run with these tests, as plain JSON values."""
    left_out = session.not_applicable.values()
    return {
        "journal": 1,
        "schema": SCHEMA,
        **about(session),
        "options": given_options(session),
        "not_applicable": [plain_not_applicable(entry) for entry in left_out],
        "collected": list(collected),
    }


def about(session: PytestSession) -> dict[str, Any]:
    """The environment of a run, and the digests of its files."""
    return {
        "environment": environment(),
        "suite": dict(session.suite_digests),
        "files": dict(session.file_digests),
    }


def environment() -> dict[str, str]:
    """Versions, and the kind of machine."""
    return {
        "pytest_pallas": __version__,
        "jax": metadata.version("jax"),
        "hypothesis": metadata.version("hypothesis"),
        "pytest": pytest.__version__,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
    }


def option_values(session: PytestSession) -> dict[str, Any]:
    """The options that determine the tests and their draws, with the backends that were found."""
    found = [label(backend) for backend in session.selection.backends]
    return {"backends": found, **_options(session)}


def given_options(session: PytestSession) -> dict[str, Any]:
    """The same before the run, when a process that starts workers must open no accelerator."""
    elsewhere = worker_count(session.config) or session.delegates
    if elsewhere and "selection" not in vars(session):
        return _options(session)
    return option_values(session)


def _options(session: PytestSession) -> dict[str, Any]:
    options = session.options
    shard = options.shard
    mutants = "off" if options.mutate is None else options.mutate or "all"
    return {
        "backend": list(options.backend),
        "devices": options.devices,
        "processes": options.processes,
        "profile": options.profile,
        "max_examples": options.max_examples,
        "max_bytes": options.max_bytes,
        "fuzz_time": options.fuzz_time,
        "fuzz_rounds": options.fuzz_rounds,
        "seed": options.seed,
        "checks": list(options.checks),
        "sanitize": list(options.sanitize),
        "arithmetic": options.arithmetic,
        "golden": options.golden,
        "mutate": mutants,
        "mutate_operators": list(options.mutate_operators),
        "shard": [] if shard is None else [shard.index, shard.count],
    }
