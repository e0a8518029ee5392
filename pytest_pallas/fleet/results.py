"""In the controller: report the results of workers, as if the tests had run here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.errors import FleetError, PallasTestError
from pytest_pallas.explanations import Explanation, Fact
from pytest_pallas.fleet.messages import Change, TestResult, warning_of
from pytest_pallas.isolation.isolator import Isolator
from pytest_pallas.isolation.messages import WorkerReply
from pytest_pallas.items.item import SpecItem, settle
from pytest_pallas.replay.places import NoScriptError
from pytest_pallas.replay.saved import FOLDER, SUFFIX, folder_for, free_path, test_of_script
from pytest_pallas.session import PytestSession
from pytest_pallas.workers import JobResult


class ResultReplayer:
    """Reports results in the pytest session of the controller."""

    def __init__(self, session: PytestSession, isolator: Isolator) -> None:
        """Report in ``session``."""
        self.session, self.isolator = session, isolator

    def report(self, item: pytest.Item, result: TestResult) -> None:
        """Report the result of a test, and keep what it wrote."""
        if result.death is not None:
            # The records of a test that dies have its script neither here nor on the worker.
            self.fail(item, self._error_of_end(item, result))
            return
        self._keep_goldens(result.goldens)
        self._keep_changes(result.changes)
        moved = self._keep_files(item, result.files)
        reports = [_moved(report, moved) for report in result.reports]
        reply = WorkerReply(
            reports=reports,
            warnings=[warning_of(each) for each in result.warnings],
            hazards=result.hazards,
            lost_places=result.lost_places,
            exit=result.exit,
        )
        hook = self.session.config.hook
        try:
            found = self.isolator.accept(item, reply)
        except PallasTestError as error:
            self.fail(item, error)
            return
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in found.values():
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def fail(self, item: Any, error: Exception) -> None:
        """Let a test fail with an error, without running anything of it.

        Its marks count: an expected failure may be of this type.
        """

        builders = dict(self.session.builders)

        def runtest() -> None:
            __tracebackhide__ = True
            self.session.builders.update(builders)  # which the protocol clears
            if isinstance(item, SpecItem):
                _ = item.builder  # for the record of this item
                if isinstance(error, PallasTestError):
                    settle(item, error)
            raise error

        item.setup = lambda: None
        item.runtest = runtest
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def lost(self, item: pytest.Item, reasons: Sequence[str]) -> None:
        """Let a test fail whose workers were lost, each time that it ran."""
        facts = [Fact("worker", reason) for reason in reasons]
        explanation = Explanation(
            f"each of the {len(reasons)} workers that ran this test was lost. If the test ends "
            "them, as one that takes too much memory, run it on one machine: without "
            "--pallas-fleet, with --pallas-isolate=always",
            facts=tuple(facts),
        )
        headline = getattr(item, "headline", item.name)
        self.fail(item, FleetError.explained(explanation, headline))

    def _error_of_end(self, item: pytest.Item, result: TestResult) -> Exception:
        assert result.death is not None
        self.session.builders.clear()
        ended: Any = vars(result.death)
        return self.isolator.error_of_end(item, JobResult(**ended))

    def _keep_changes(self, changes: Sequence[Change]) -> None:
        """Make the changes of a worker in the database of this session."""
        from pytest_pallas.database.recorded import make_changes

        if changes and self.session.database is not None:
            make_changes(self.session.database, changes)

    def _keep_goldens(self, goldens: Mapping[str, bytes]) -> None:
        """Write the goldens of a worker, unless it has the same folder."""
        folder = self.session.harness.root / self.session.options.golden_dir
        # Arrays before the manifests that name them.
        for name, content in sorted(goldens.items(), key=lambda each: each[0].endswith(".json")):
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
            test = test_of_script(own.get(f"{stem}.py", b"").decode()) or item.nodeid
            path = free_path(folder, Path(stem).name, test)
            moved |= {name: str(path.with_suffix(Path(name).suffix)) for name in own}
        for name, place in moved.items():
            content = files[name]
            if name.endswith(".py"):  # it names its own file
                content = _moved(content.decode(), moved).encode()
            _write_if_new(Path(place), content)
        trace = self.session.options.trace
        for name, content in files.items():
            if trace is not None and Path(name).parent.name != FOLDER:
                handle, place = tempfile.mkstemp(dir=trace.parent, prefix=f".{trace.name}.")
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                moved[name] = place
        return moved


def _stem(path: str) -> str:
    return str(Path(path).with_suffix("")) if Path(path).suffix in _SUFFIXES else path


_SUFFIXES = (".py", ".npz", SUFFIX)


def _write_if_new(path: Path, content: bytes) -> None:
    """Write a file in one step, unless it has this content."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)


def _moved(value: Any, moved: Mapping[str, str]) -> Any:
    """A report, or a part of one, in which files have the paths that they have here."""
    if isinstance(value, str):
        for path, place in moved.items():
            value = value.replace(path, place)
        return value
    if isinstance(value, Mapping):
        return {key: _moved(each, moved) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_moved(each, moved) for each in value)
    return value


def example_files(database: Any, most: int) -> dict[str, bytes] | None:
    """The files of a database in a folder, by path; None for another database.

    Args:
      database: a database of Hypothesis.
      most: limit on their size in bytes; the newest files are kept.
    """
    from hypothesis.database import DirectoryBasedExampleDatabase

    if not isinstance(database, DirectoryBasedExampleDatabase):
        return None
    folder = Path(database.path)
    found: dict[str, bytes] = {}
    if not folder.is_dir():
        return found
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda path: -path.stat().st_mtime_ns):
        most -= path.stat().st_size
        if most < 0:
            break
        found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found
