"""In the controller: report the results of workers, as if the tests had run here."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.errors import Explanation, Fact, PallasError
from pytest_pallas.distribute.messages import TestResult
from pytest_pallas.distribute.parts import credit_kills, merged_reports
from pytest_pallas.draw.database import make_changes
from pytest_pallas.errors import FleetError
from pytest_pallas.isolate.isolator import Isolator, let_fail
from pytest_pallas.isolate.messages import plain_reports
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.replay.goldens import write_file
from pytest_pallas.replay.saved import (
    FOLDER,
    SUFFIX,
    folder_for,
    free_path,
    script_name,
    test_of_script,
)
from pytest_pallas.replay.script import NoScriptError
from pytest_pallas.run.item import SpecItem

#: The files of a failure: its script, and the arrays beside it.
_SUFFIXES = (".py", ".npz", SUFFIX)


class ResultReplayer:
    """Reports results in the pytest session of the controller."""

    def __init__(self, session: PytestSession, isolator: Isolator) -> None:
        """Report in ``session``."""
        self.session, self.isolator = session, isolator

    def report(self, item: pytest.Item, result: TestResult, *, merged: bool = False) -> None:
        """Report the result of a test, and keep what it wrote.

        Args:
          item: the test.
          result: its result.
          merged: whether it is that of all its parts.
        """
        if result.death is not None:
            # The records of a test that dies have its script neither here nor on the worker.
            self.session.results.clear()
            self.fail(item, self.isolator.error_of_end(item, result.death))
            return
        self._keep_goldens(result.goldens)
        if result.changes and self.session.database is not None:
            make_changes(self.session.database, result.changes)
        moved = self._keep_files(item, result.files)
        reply = dataclasses.replace(
            result,
            reports=[_moved(report, moved) for report in result.reports],
            killed={},  # counted below, in the order of collection
            stained=False,  # a process of the worker
        )
        hook = self.session.config.hook
        try:
            reports = self.isolator.accept(item, reply)
        except PallasError as error:
            self.fail(item, error)
            return
        if self.session.options.mutate is not None and not merged:
            credit_kills(item, reports, self.session.killed)
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def report_parts(
        self,
        item: SpecItem,
        results: Sequence[TestResult],
        part_results: Sequence[Mapping[str, Any]],
    ) -> None:
        """Report a test that ran in parts; it fails if they, some of an earlier run, do not fit.

        Args:
          item: the test.
          results: of its parts, in any order, some perhaps twice.
          part_results: those of the parts as data, from ``parts.result_of``.
        """
        files: dict[str, bytes] = {}
        replies: list[Any] = []
        for number, result in enumerate(results):
            # Two parts on one worker write files of one name.
            paths = {path: Path(path) for path in result.files}
            apart = {
                name: str(path.with_suffix(f".part{number}{path.suffix}"))
                for name, path in paths.items()
            }
            replies.append(_moved(result.reports, apart))
            files |= {
                apart[path]: _moved_content(path, content, apart)
                for path, content in result.files.items()
            }
        try:
            merged = merged_reports(item, replies, self.session.killed)
        except ValueError as error:
            explanation = Explanation(
                f"the parts of this test do not fit together: {error}. Start anew without "
                "--pallas-resume"
            )
            self.fail(item, FleetError.explained(explanation, item.headline))
            return
        reports = plain_reports(item.config, merged)
        text = repr(reports)
        used = {_stem(path) for path in files if path in text}
        warnings = {repr(warning): warning for result in results for warning in result.warnings}
        hazards = {reason for result in results for reason in result.hazards or ()}
        called = any(result.hazards is not None for result in results)
        whole = TestResult(
            nodeid=item.nodeid,
            reports=reports,
            warnings=list(warnings.values()),
            hazards=sorted(hazards) if called else None,
            changes=[change for part in part_results for change in part.get("database", ())],
            files={path: content for path, content in files.items() if _stem(path) in used},
        )
        self.report(item, whole, merged=True)

    def fail(self, item: pytest.Item, error: Exception) -> None:
        """Let a test fail with an error, without running anything of it."""
        let_fail(self.session, item, error)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def lost(self, item: pytest.Item, reasons: Sequence[str]) -> None:
        """Let a test fail whose workers were lost, each time that it ran."""
        explanation = Explanation(
            f"each of the {len(reasons)} workers that ran this test was lost. If the test ends "
            "them, as one that takes too much memory, run it on one machine: without "
            "--pallas-fleet, with --pallas-isolate=always",
            facts=tuple(Fact("worker", reason) for reason in reasons),
        )
        headline = getattr(item, "headline", item.name)
        self.fail(item, FleetError.explained(explanation, headline))

    def _keep_goldens(self, goldens: Mapping[str, bytes]) -> None:
        """Write the goldens of a worker, unless it has the same folder."""
        if self.session.options.golden not in ("record", "update"):
            return
        folder = self.session.harness.root / self.session.options.golden_dir
        # Arrays before the manifests that name them.
        for name, content in sorted(
            goldens.items(), key=lambda golden: golden[0].endswith(".json")
        ):
            _write_if_new(folder / name, content)

    def _keep_files(self, item: pytest.Item, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write the files of a test; returns where each is now."""
        moved: dict[str, str] = {}
        scripts = sorted({_stem(path) for path in files if Path(path).parent.name == FOLDER})
        for stem in scripts:
            try:
                folder = folder_for(self.session)
            except NoScriptError:
                continue
            own = {path: content for path, content in files.items() if _stem(path) == stem}
            script = own.get(f"{stem}.py", b"").decode(errors="replace")
            test = test_of_script(script) or item.nodeid
            name = re.sub(r"\.part\d+$", "", Path(stem).name)
            first = re.sub(r"-\d+$", "", name)  # of which this is a further failure
            if any(Path(path).name == first for path in scripts):
                name = first
            taken = {Path(target) for target in moved.values()}
            path = free_path(folder, script_name(name), test, taken)
            moved |= {
                name: str(path.with_suffix(Path(name).suffix))
                for name in own
                if Path(name).suffix in _SUFFIXES
            }
        for name, target in moved.items():
            _write_if_new(Path(target), _moved_content(name, files[name], moved))
        trace = self.session.options.trace
        for name, content in files.items():
            if trace is not None and Path(name).parent.name != FOLDER:
                moved[name] = str(_written(trace.parent, trace.name, content))
        return moved


def _stem(path: str) -> str:
    return str(Path(path).with_suffix("")) if Path(path).suffix in _SUFFIXES else path


def _write_if_new(path: Path, content: bytes) -> None:
    """Write a file in one step, unless it has this content."""
    if not path.is_file() or path.read_bytes() != content:
        write_file(path, content)


def _written(folder: Path, name: str, content: bytes) -> Path:
    """Write a new file, whose name begins with a dot and ``name``."""
    handle, path = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return Path(path)


def _moved(value: Any, moved: Mapping[str, str]) -> Any:
    """Return a report, or a part of one, with the paths that files have here."""
    if isinstance(value, str):
        for path, target in moved.items():
            value = value.replace(path, target)
        return value
    if isinstance(value, Mapping):
        return {key: _moved(element, moved) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(element, moved) for element in value)
    return value


def _moved_content(path: str, content: bytes, moved: Mapping[str, str]) -> bytes:
    """Return the content of a file with the paths of here: a script may name its own."""
    if not path.endswith(".py"):
        return content
    return _moved(content.decode(errors="replace"), moved).encode(errors="replace")
