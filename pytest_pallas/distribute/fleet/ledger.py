"""Which tests of a run are to be sent, which are with a worker, how often each was lost; results.

The tests of a kernel are a group: they share draws and traces, and a test may depend on earlier
ones, because a kernel that raised is not tried again. So a group is with one worker at a time,
except for the parts of one test, which run anywhere. If a worker is lost, the rest of its group is
sent test by test, which shows the guilty one.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.errors import Explanation, Fact, PallasError
from pytest_pallas.decoding import DataError
from pytest_pallas.distribute.messages import TestResult
from pytest_pallas.distribute.parts import (
    Division,
    credit_kills,
    endless,
    merged_reports,
    remaining,
    result_of,
)
from pytest_pallas.distribute.resume import PLUGIN, RunKeeper
from pytest_pallas.draw.database import make_changes
from pytest_pallas.errors import FleetError
from pytest_pallas.isolate.isolator import Isolator, let_fail
from pytest_pallas.isolate.messages import Change, from_plain, plain_reports, to_plain
from pytest_pallas.options import place_of
from pytest_pallas.pytest_session import Part, PytestSession
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

#: How often a test is sent to a worker that is lost.
TRIES = 3

#: Number of groups for each thread of the workers below which tests are divided.
TAIL = 2


@dataclass(eq=False)
class Parts:
    """A test that runs in parts.

    Attributes:
      nodeid: its node id.
      division: how it is divided.
      budget: seconds that all its parts may take together; None for no limit.
      results: results of tests that are parts, in the order of their arrival.
      part_results: the results of the parts, as ``result_of`` returns them.
      sent: the parts that are with workers, and since when, by key.
      spent: seconds of the parts that have results.
    """

    nodeid: str
    division: Division
    budget: float | None = None
    results: list[TestResult] = field(default_factory=list[TestResult])
    part_results: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    sent: dict[str, tuple[Part, float]] = field(default_factory=dict[str, tuple[Part, float]])
    spent: float = 0.0

    def add(self, result: TestResult) -> bool:
        """Add the result of a test that is a part; False if that ended before it began to run."""
        part_result = result_of(result.reports)
        self.results.append(result)
        if part_result is not None:
            self.part_results.append(part_result)
        return part_result is not None

    @property
    def left(self) -> float | None:
        """Seconds that are left; None without a limit."""
        if self.budget is None:
            return None
        now = time.monotonic()
        return max(0.0, self.budget - self.spent - sum(now - at for _, at in self.sent.values()))

    def next(self) -> Part | None:
        """Return the next part to send; None for none, now."""
        if self.part_results and endless(self.division) and self.left == 0:
            return None
        there = [part for part, _ in self.sent.values()]
        for part in remaining(self.division, self.part_results):
            if part not in there:
                return part
            if not self.part_results and self.division.total is None:
                return None  # the first part says how many there are
        return None

    @property
    def complete(self) -> bool:
        """Whether the test has a result."""
        if not self.part_results:
            return False
        if endless(self.division) and self.left == 0:
            return not self.sent
        return next(iter(remaining(self.division, self.part_results)), None) is None


@dataclass(eq=False)
class KernelGroup:
    """The tests of one kernel.

    Attributes:
      name: see ``collection.selecting.scope_of``.
      todo: node ids of the tests without a result, in order.
      single: whether they are sent one by one.
      keys: the tasks that are with workers; several for parts, or if a worker is silent.
      parts: the first test of ``todo``, if it runs in parts.
      undivided: tests that run as a whole, because the process of a part has died.
      changes: changes of the database of failing examples so far.
      losses: why workers of a test or part were lost, by its name.
    """

    name: str
    todo: deque[str]
    single: bool = False
    keys: set[str] = field(default_factory=set[str])
    parts: Parts | None = None
    undivided: set[str] = field(default_factory=set[str])
    changes: Sequence[Change] = ()
    losses: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A task that is with a worker: some tests of a group, or a part of one.

    Attributes:
      group: of the tests.
      nodeids: node ids of the tests.
      part: the part of the only test; None for whole tests.
      addresses: the workers that may run it; None for all.
    """

    group: KernelGroup
    nodeids: Sequence[str]
    part: Part | None = None
    addresses: Collection[str] | None = None

    def name_of(self, nodeid: str) -> str:
        """Return the name under which losses of a test count."""
        return nodeid if self.part is None else f"{nodeid} from {self.part.first}"


class Ledger:
    """The groups of a run.

    Attributes:
      groups: all groups.
      sent: the tasks that are with workers, by key.
      lost: number of tasks whose worker was lost.
    """

    def __init__(
        self,
        groups: Mapping[str, Sequence[str]],
        run: str,
        divide: Callable[[str], Parts | None] = lambda nodeid: None,
    ) -> None:
        """Create for tests by group.

        Args:
          groups: node ids by group.
          run: begins the keys of tasks.
          divide: makes the parts of a test; None for a test that runs as a whole.
        """
        self.groups = [KernelGroup(name, deque(nodeids)) for name, nodeids in groups.items()]
        self.sent: dict[str, Sent] = {}
        self.lost = 0
        self._divide = divide
        self._waiting = deque(self.groups)
        self._keys = (f"pallas-{run}-{number}" for number in itertools.count(1))

    @property
    def unfinished(self) -> bool:
        """Whether a test has no result."""
        return any(group.todo for group in self.groups)

    @property
    def finished(self) -> int:
        """The number of groups whose tests have results."""
        return sum(not group.todo for group in self.groups)

    def next(
        self, threads: int = 0, addresses: Collection[str] | None = None
    ) -> tuple[str, Sent] | None:
        """Return the next task to send, with its key; None if all are with workers.

        Args:
          threads: number of tasks that run at a time. With fewer than ``TAIL`` groups for each of
            them, tests are divided, so that all workers end at about the same time.
          addresses: the workers that may run the task; None for all.
        """
        for _ in range(len(self._waiting)):
            group = self._waiting.popleft()
            if not group.todo:
                continue
            if group.parts is None:
                group.parts = self._parts_of(group, scarce=len(self._waiting) + 1 < TAIL * threads)
            if group.parts is None:
                return self._send(group, self._whole_tests(group), None, addresses)
            part = group.parts.next()
            if part is not None:
                self._waiting.append(group)  # other workers may run the next part
                key, sent = self._send(group, [group.parts.nodeid], part, addresses)
                group.parts.sent[key] = part, time.monotonic()
                return key, sent
        return None

    def _parts_of(self, group: KernelGroup, *, scarce: bool) -> Parts | None:
        """Return the parts of the next test, if it is to be divided now.

        Mutants always are: what one spec has killed another one does not try, in the order of
        collection, in which their results are merged. So are tests with parts that are done.
        """
        if group.todo[0] in group.undivided:
            return None
        parts = self._divide(group.todo[0])
        return parts if parts is not None and (scarce or _always(parts)) else None

    def _whole_tests(self, group: KernelGroup) -> list[str]:
        """Return the next tests of a group, before one that is divided in any case."""
        if group.single:
            return [group.todo[0]]
        whole: list[str] = []
        for nodeid in group.todo:
            parts = None if nodeid in group.undivided else self._divide(nodeid)
            if whole and parts is not None and _always(parts):
                break
            whole.append(nodeid)
        return whole

    def _send(
        self,
        group: KernelGroup,
        nodeids: Sequence[str],
        part: Part | None,
        addresses: Collection[str] | None,
    ) -> tuple[str, Sent]:
        key = next(self._keys)
        sent = Sent(group=group, nodeids=nodeids, part=part, addresses=addresses)
        self.sent[key] = sent
        sent.group.keys.add(key)
        return key, sent

    def take(self, key: str) -> Sent | None:
        """Take a task that has ended; returns None if it is unknown."""
        sent = self.sent.pop(key, None)
        if sent is not None:
            sent.group.keys.discard(key)
            parts = sent.group.parts
            if parts is not None and key in parts.sent:
                parts.spent += time.monotonic() - parts.sent.pop(key)[1]
        return sent

    def done(self, group: KernelGroup, nodeid: str) -> bool:
        """Record that a test has a result; returns False if it has one already."""
        if nodeid not in group.todo:
            return False
        group.todo.remove(nodeid)
        if group.parts is not None and group.parts.nodeid == nodeid:
            group.parts = None
        return True

    def whole(self, group: KernelGroup, nodeid: str) -> None:
        """Run a test as a whole, whose parts are not enough to say how it ends."""
        if group.parts is not None and group.parts.nodeid == nodeid:
            group.parts = None
            group.undivided.add(nodeid)

    def again(self, group: KernelGroup) -> None:
        """Send the rest of a group, unless it is with a worker as a whole."""
        free = group.parts is not None or not group.keys
        if group.todo and free and group not in self._waiting:
            self._waiting.appendleft(group)

    def was_lost(self, sent: Sent, reason: str) -> Iterator[str]:
        """Record that the worker of a task was lost; yields the tests whose last try it was."""
        self.lost += 1
        group = sent.group
        group.single = True
        for nodeid in sent.nodeids:
            losses = group.losses.setdefault(sent.name_of(nodeid), [])
            losses.append(reason)
            if len(losses) >= TRIES and nodeid in group.todo:
                yield nodeid

    def resend(self, key: str) -> None:
        """Send the rest of a task to another worker, too; the first result counts."""
        sent = self.sent.get(key)
        if sent is not None:
            sent.group.keys.discard(key)
            if sent.group.parts is not None:
                sent.group.parts.sent.pop(key, None)
            self.again(sent.group)


def _always(parts: Parts) -> bool:
    return parts.division.kind == "mutants" or bool(parts.part_results)


# Results of tests that have not ended, which outlive this process in the journal of the run.
#
# They are those of parts; and with mutants also of tests that ended before an earlier one, and are
# not reported yet.


class KeptResults:
    """The results of a run that were kept, also by an earlier part of the run."""

    def __init__(self, config: pytest.Config) -> None:
        """Keep nothing without ``--pallas-results`` and ``--pallas-resume``.

        Raises:
          pytest.UsageError: those of an earlier part of the run are not what a fleet writes.
        """
        self._keeper: RunKeeper | None = config.pluginmanager.get_plugin(PLUGIN)
        resumed = None if self._keeper is None else self._keeper.resumed
        self._resumed: dict[str, list[TestResult]] = {}
        for nodeid, results in ({} if resumed is None else resumed.parts).items():
            try:
                self._resumed[nodeid] = [from_plain(TestResult, result) for result in results]
            except DataError as error:
                raise pytest.UsageError(
                    f"{place_of(config, 'resume')}: {resumed and resumed.path}: the parts of "
                    f"{nodeid} are not those of a fleet: {error}. Start anew without "
                    "--pallas-resume"
                ) from None

    def keep(self, result: TestResult) -> None:
        """Keep a result."""
        if self._keeper is not None:
            self._keeper.keep_part(result.nodeid, to_plain(result))

    def add_to(self, parts: Parts) -> Parts:
        """Begin a test with the parts of it that are done."""
        for result in self._resumed.get(parts.nodeid, ()):
            if parts.add(result):
                parts.spent += sum(report.get("duration", 0.0) for report in result.reports)
        return parts

    def whole(self) -> Iterator[TestResult]:
        """Yield the results of tests that are done."""
        for results in self._resumed.values():
            yield from (result for result in results if result_of(result.reports) is None)


# The results of workers, reported as if the tests had run here.


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
