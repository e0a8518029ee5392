"""``--pallas-results``: the records of a session as JSON. Documented in docs/reference.md."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import pytest

from pytest_pallas._version import __version__
from pytest_pallas.backends import label
from pytest_pallas.record import SCHEMA, Record, plain_not_applicable, to_json
from pytest_pallas.report.sections.mutants import others
from pytest_pallas.report.sections.not_applicable import entries
from pytest_pallas.report.terminal import distinct
from pytest_pallas.session import PytestSession
from pytest_pallas.session.fleet import to_json as to_plain


def document(session: PytestSession, records: Sequence[Record]) -> str:
    """The records and the session's data, as JSON."""
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "environment": environment(),
        "options": option_values(session),
        "suite": dict(session.suite_digests),
        "distinct": dataclasses.asdict(distinct(others(records))),
        "records": [to_json(record) for record in records],
        "not_applicable": [
            plain_not_applicable(entry) for entry in entries(session.not_applicable, records)
        ],
    }
    if session.fleet is not None:
        whole["fleet"] = to_plain(session.fleet)
    return json.dumps(whole, indent=1) + "\n"


def environment() -> dict[str, str]:
    """Versions, and the kind of machine."""
    return {
        "pytest_pallas": __version__,
        "jax": metadata.version("jax"),
        "pytest": pytest.__version__,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
    }


def option_values(session: PytestSession) -> dict[str, Any]:
    """The options that determine the tests and their draws."""
    shard = session.options.shard
    return {
        "backends": [label(backend) for backend in session.selection.backends],
        "devices": session.options.devices,
        "max_examples": session.options.max_examples,
        "seed": session.options.seed,
        "shard": [] if shard is None else [shard.index, shard.count],
    }
