"""Read results: of a whole run from its file, or of a run that was cut off from its journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_pallas.errors import OptionError
from pytest_pallas.record import SCHEMA, NotApplicable, from_json
from pytest_pallas.results.journal import partial_path
from pytest_pallas.results.model import NOT_RUN, RunResults, finished_from_json


def read_results(path: Path, *, latest: bool = False) -> RunResults:
    """Read a file of ``--pallas-results``, or the journal of its run.

    Args:
      path: the file or the journal. A file that is missing, because its run was cut off, stands for
        its journal.
      latest: take the journal also if there is a file, which is of an earlier run then. (The file
        does not change while tests run; the journal does.)

    Raises:
      OptionError: it cannot be read, is another file, or a newer pytest-pallas has written it.
    """
    journal = partial_path(path)
    if (latest or not path.exists()) and journal.exists():
        path = journal
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from None
    try:
        return _journal(path, text) if text.startswith('{"journal":') else _document(path, text)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise OptionError(f"{path} is not a file of --pallas-results") from None


def _document(path: Path, text: str) -> RunResults:
    plain = json.loads(text)
    _check_schema(path, plain)
    tests = plain.get("tests", ())
    return RunResults(
        **_about(path, plain),
        records=[from_json(each) for each in plain["records"]],
        collected=[each["test"] for each in tests],
        tests=[finished_from_json(each) for each in tests if each["outcome"] != NOT_RUN],
        parts={each["test"]: each["parts"] for each in tests if "parts" in each},
    )


def _journal(path: Path, text: str) -> RunResults:
    lines = _lines(text)
    head = next(lines)
    _check_schema(path, head)
    started: dict[str, None] = {}
    ended: dict[str, dict[str, Any]] = {}
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if "started" in line:
            started[line["started"]] = None
        elif "part_of" in line:
            parts.setdefault(line["part_of"], []).append(line["result"])
        else:
            name = line["ended"]["test"]
            started.pop(name, None)
            parts.pop(name, None)
            ended[name] = line
    return RunResults(
        **_about(path, head),
        records=[from_json(each) for line in ended.values() for each in line["records"]],
        collected=head["collected"],
        tests=[finished_from_json(line["ended"]) for line in ended.values()],
        parts=parts,
        running=list(started),
        cut_off=True,
    )


def _lines(text: str) -> Iterator[dict[str, Any]]:
    """The lines of a journal, without those that were cut."""
    for number, line in enumerate(text.splitlines()):
        try:
            yield json.loads(line)
        except ValueError:
            if not number:
                raise


def _about(path: Path, plain: Mapping[str, Any]) -> dict[str, Any]:
    """What file and journal have in common."""
    return {
        "path": str(path),
        "environment": plain["environment"],
        "options": plain["options"],
        "suite": plain.get("suite", {}),
        "files": plain.get("files", {}),
        "not_applicable": [NotApplicable(**each) for each in plain.get("not_applicable", ())],
    }


def _check_schema(path: Path, plain: Mapping[str, Any]) -> None:
    schema = plain["schema"]
    if schema <= SCHEMA:
        return
    environment = plain.get("environment", {})
    version = environment.get("pytest_pallas", "") if isinstance(environment, dict) else ""
    writer = f"pytest-pallas {version}" if version else "a newer pytest-pallas"
    raise OptionError(
        f"{path} has the schema {schema}, and this pytest-pallas reads up to {SCHEMA}: {writer} "
        f"wrote it; install that version or a newer one here, or write the results again"
    )
