"""The table of executed checks, and the lines below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.chips import default_target
from pytest_pallas.backends.protocol import label
from pytest_pallas.compat.fuzzing import hypothesis_profile
from pytest_pallas.errors import GoldenError
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.record import NotApplicable, Note, Record, not_applicable_of, of_kind
from pytest_pallas.report.section import Line, Results, section
from pytest_pallas.report.summary import summary
from pytest_pallas.tested import TESTED

if TYPE_CHECKING:
    from pytest_pallas.pytest_session import FleetFacts

#: Lines of the table without ``-v``, so that all of it fits on a screen.
_MOST_LINES = 24


@section("results")
def table(results: Results) -> Iterator[str]:
    """A row for each kernel, a column for each backend."""
    if results.executed:
        yield summary(
            results.executed,
            families=list(results.session.families),
            width=results.width,
            color=results.color,
            only_failed=results.verbosity < 0,
            lines=None if results.every else _MOST_LINES,
        )


@section("footnotes", quiet=False)
def footnotes(results: Results) -> Iterator[str]:
    """The reasons of skips and expected failures, and the notes of checks."""
    yield from footnote_lines(results.executed, every=results.every)


@section("distinct", quiet=False)
def distinct(results: Results) -> Iterator[str]:
    """The number of distinct examples."""
    found = distinct_line((*results.executed, *results.compiled))
    if found.triples:
        yield line(found)


# Report the database of examples, and once if it cannot be reached.


#: Key of the data that an xdist worker sends to the controller at its end.
_OUTPUT = "pallas_lost_places"


class DatabaseReporter:
    """Reports the databases that could not be reached, also by workers."""

    def __init__(self, session: PytestSession) -> None:
        """Report for ``session``."""
        self.session = session
        self.reported: set[str] = set()

    def pytest_report_header(self) -> list[str]:
        """List the databases, and try to reach each server."""
        database = self.session.database
        if database is not None:
            list(database.fetch(b"reached"))  # what fails is remembered
        names = ", ".join(place.shown for place in self.session.options.database)
        self.reported = set(self.session.lost_places)
        return [f"pallas: examples in {names}", *map("pallas: warning: {}".format, self._lost())]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the lost databases of a worker to the controller."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = dict(self.session.lost_places)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the lost databases of a worker. A crashed worker sends nothing."""
        output: dict[str, Any] = getattr(node, "workeroutput", None) or {}
        for name, text in output.get(_OUTPUT, {}).items():
            self.session.lost_places.setdefault(name, text)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Report databases that were lost after the header."""
        for line in self._lost(without=self.reported):
            terminalreporter.write_line(f"pallas: warning: {line}", yellow=True)

    def _lost(self, without: Collection[str] = ()) -> list[str]:
        lost = self.session.lost_places.items()
        return [f"database {name} {text}" for name, text in lost if name not in without]


# Counts of goldens, from records.


#: The counts, in the order of the line.
_COUNTED = ("recorded", "replaced", "unchanged", "compared", "different", "missing", "lost")

#: Number of kernels with unused goldens that are named.
_NAMED = 4


def goldens_summary(session: PytestSession, records: Sequence[Record]) -> Iterator[str]:
    """The number of goldens that were recorded or compared, and the unused ones of the folder."""
    if session.goldens is None:
        return
    folder = session.goldens.store.folder
    counts = sum((Counter(record.goldens) for record in records), Counter[str]())
    words = [f"{counts[name]} {name}" for name in _COUNTED if counts[name]]
    yield f"goldens in {folder}: {', '.join(words) or 'none'}"
    if counts["missing"]:
        yield (
            "missing: the folder has no golden of these calls; record again on the machine of "
            "the goldens"
        )
    if counts["lost"]:
        yield (
            "lost: these calls were too large to keep, and the same seed now draws different "
            "ones; record again"
        )
    if session.goldens.mode == "replay":
        yield from _unused(session, records)


def _unused(session: PytestSession, records: Sequence[Record]) -> Iterator[str]:
    """Goldens of kernels that ran, which no test used."""
    assert session.goldens is not None
    ran = {record.kernel for record in records}
    used = {name for record in records for name in record.used_goldens}
    unused: Counter[str] = Counter()
    try:
        for goldens in session.goldens.index.values():
            for golden in goldens:
                if golden.kernel in ran and golden.name not in used:
                    unused[f"{golden.kernel} {golden.check}"] += 1
    except GoldenError:
        return  # the tests fail with this error
    if unused:
        names = [f"{name} ({count})" for name, count in unused.most_common(_NAMED)]
        more = ["..."] if len(unused) > _NAMED else []
        yield f"unused: no test used {unused.total()} goldens: {', '.join(names + more)}"


@section("goldens")
def section_of_goldens(results: Results) -> Iterator[str]:
    """The counts of goldens."""
    yield from goldens_summary(results.session, results.records)


# Checks that do not apply to kernels: one line of counts, or a list by requirement.


def entries(
    left_out: Mapping[str, NotApplicable], records: Iterable[Record]
) -> Sequence[NotApplicable]:
    """Checks that collection left out, then those that tests found not applicable."""
    found = dict(left_out)
    for record in records:
        entry = not_applicable_of(record)
        if entry is not None:
            found[entry.test] = entry
    return list(found.values())


def lines(found: Sequence[NotApplicable], *, every: bool) -> Iterator[str]:
    """One line of counts; with ``every``, also one for each requirement."""
    if not found:
        return
    late = sum(entry.found == "run" for entry in found)
    during_run = f", {late:,} of them found during the run" if late else ""
    hint = "" if every else " (-v lists them)"
    yield f"not applicable: {count(found)}{during_run}{hint}"
    if not every:
        return
    groups: dict[str, list[NotApplicable]] = {}
    for entry in found:
        groups.setdefault(entry.requirement, []).append(entry)
    for requirement, group in sorted(groups.items(), key=lambda each: -len(each[1])):
        checks, backends, kernels = (
            ", ".join(dict.fromkeys(getattr(entry, name) for entry in group))
            for name in ("check", "backend", "kernel")
        )
        yield f"  {requirement} ({len(group):,}): {checks} on {backends}: {kernels}"


def count(found: Sequence[NotApplicable | Record]) -> str:
    """The numbers of checks and kernels."""
    kernels = len({(each.test.rpartition("::")[0], each.kernel) for each in found})
    return f"{number(len(found), 'check')} of {number(kernels, 'kernel')}"


def number(many: int, noun: str) -> str:
    """``1 check``, ``2 checks``."""
    return f"{many:,} {noun}{'' if many == 1 else 's'}"


@section("not applicable", quiet=False)
def section_of_requirements(results: Results) -> Iterator[str]:
    """The number of checks that do not apply."""
    yield from lines(results.not_applicable, every=results.every)


# The workers of ``--pallas-fleet``.


@section("fleet")
def section_of_workers(results: Results) -> Iterator[str | Line]:
    """The number of workers, and those that were refused or lost."""
    fleet = results.session.fleet
    if fleet is None:
        return
    if results.verbosity >= 0:
        words = f"{fleet.workers} workers took part" if fleet.workers != 1 else "1 worker took part"
        if fleet.repeated:
            words += f", {number(fleet.repeated, 'task')} lost with a worker"
        yield f"fleet {fleet.place}: {words}"
    for worker, why in fleet.refused.items():
        yield Line(f"refused worker {worker}: {why}", "yellow")
    for worker, how in fleet.lost.items():
        yield Line(f"lost worker {worker}: {how}", "yellow")


# The header, tables, and the lines below the summary table, from records only.


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """The numbers of distinct examples of a run.

    Attributes:
      triples: number of distinct (spec, check, shape) triples. A shape is the shapes, dtypes and
        static arguments of a call; values, backends and meshes do not count.
      examples: number of examples, over all backends and meshes.
    """

    triples: int
    examples: int


def distinct_line(records: Iterable[Record]) -> Distinct:
    """Count distinct examples. Two files may have specs of the same name."""
    shapes: dict[tuple[str, str, str], set[str]] = {}
    examples = 0
    for record in records:
        key = record.test.partition("::")[0], record.kernel, record.check
        shapes.setdefault(key, set()).update(record.signatures)
        examples += record.examples
    return Distinct(triples=sum(map(len, shapes.values())), examples=examples)


def line(found: Distinct) -> str:
    """One line of the summary."""
    return (
        f"distinct: {found.triples:,} (spec, check, shape) triples in {found.examples:,} examples"
    )


#: Number of reasons that are listed.
_REASONS = 3

#: Number of kernels that the line of a reason names.
_MOST_NAMED = 8


def header(session: PytestSession) -> list[str]:
    """The header: versions, backends and settings. Imports jax only if hardware is selected."""
    options = session.options
    words = [f"jax {metadata.version('jax')}"]
    words.append(f"backends {', '.join(options.backend)}")
    words.append(f"{options.devices} simulated devices")
    words.append(f"seed {options.seed}")
    words.append(f"hypothesis profile {hypothesis_profile()}")
    lines = ["pallas: " + ", ".join(words)]
    if TESTED["jax"].newer(metadata.version("jax")):
        newest = TESTED["jax"].newest
        lines.append(f"pallas: this JAX is newer than {newest}, the newest that was tested")
    if session.fleet is not None:
        lines.append(f"pallas: {on_fleet(session.fleet)}")
    if session.pinning is not None:
        lines.append(f"pallas: {session.pinning.words}")
    elif ("backend" in options.explicit or options.suite) and not session.delegates:
        lines.append(f"pallas: runs on {', '.join(places(session))}")
        lines += [f"pallas: without {n}: {why}" for n, why in session.selection.left_out.items()]
    return lines


def on_fleet(fleet: FleetFacts) -> str:
    """The workers of ``--pallas-fleet``, before the run."""
    if fleet.processes:
        many = "1 worker process" if fleet.processes == 1 else f"{fleet.processes} worker processes"
        return (
            f"runs in {many} of this machine; their Dask scheduler executes what it is sent, and "
            "listens on 127.0.0.1"
        )
    where = f"runs on the workers of the Dask scheduler {fleet.place}, which executes what it is"
    if fleet.encrypted:
        return f"{where} sent by those with a certificate (TLS)"
    return (
        f"{where} sent: keep its port inside a network that you trust, or use TLS (docs/fleet.md)"
    )


def places(session: PytestSession) -> list[str]:
    """Each backend with its device or chip."""
    texts: list[str] = []
    for backend in session.selection.backends:
        if backend.kind == "hardware":
            import jax

            devices = jax.devices(backend.platform)
            texts.append(f"{label(backend)} ({len(devices)} x {devices[0].device_kind})")
            continue
        default = default_target(backend.platform)
        target = backend.target or default
        texts.append(label(backend) + (f" (as {target.device_kind})" if target else ""))
    return texts


def footnote_lines(records: Iterable[Record], *, every: bool = False) -> list[str]:
    """The lines below the table: legend, expected failures, skips.

    There is one line for each reason, or one line of counts if there are many reasons. With
    ``every``, all reasons are listed, with all kernels.
    """
    records = list(records)
    lines: list[str] = []
    if any(record.multiple is not None for record in records):
        lines.append(
            "1.2x: worst error as a multiple of the jnp baseline's; exact: no error at all"
        )
    groups: dict[str, list[Record]] = {"expected failure": [], "not run": [], "skipped": []}
    for record in records:
        if record.outcome == "xfailed":
            groups["expected failure"].append(record)
        elif record.outcome == "skipped" and not record.requirement:
            groups["not run" if record.stopped_by else "skipped"].append(record)
    for title, found in groups.items():
        reasons = list(_by_reason(found, every))
        if every or len(reasons) <= _REASONS:
            lines += [f"{title} {line}" for line in reasons]
        else:
            many = f"{title}s" if title.endswith("failure") else title
            lines.append(f"{many}: {count(found)}, for {len(reasons)} reasons (-v lists them)")
    lines += _loosened(records)
    lines += _unverified(records, every)
    return lines + (_notes(records) if every else [])


def _loosened(records: Iterable[Record]) -> Iterator[str]:
    """The kernels that pass only by their tolerance, one line for each tolerance."""
    kernels: dict[Note, dict[str, None]] = {}
    for record in records:
        for note in of_kind(record.notes, "tolerance"):
            kernels.setdefault(note, {})[record.kernel] = None
    for note, names in kernels.items():
        yield f"loosened: {', '.join(names)}: {note}"


def _unverified(records: Iterable[Record], every: bool) -> Iterator[str]:
    """Undocumented behavior of simulated chips that kernels used, one line for each."""
    kernels: dict[str, dict[str, None]] = {}
    for record in records:
        for text in record.unverified:
            kernels.setdefault(text, {})[record.kernel] = None
    for text, names in kernels.items():
        few = every or len(names) <= _MOST_NAMED
        yield f"unverified: {', '.join(names) if few else number(len(names), 'kernel')}: {text}"


def _notes(records: Iterable[Record]) -> list[str]:
    """Notes on the references of kernels, each line once."""
    kernels: dict[Note, dict[str, None]] = {}
    for record in records:
        for note in of_kind(record.notes, "reference"):
            kernels.setdefault(note, {})[record.kernel] = None
    return [f"note: {', '.join(names)}: {note}" for note, names in kernels.items()]


def _by_reason(records: Iterable[Record], every: bool) -> Iterator[str]:
    """One line for each reason, the most frequent first: number of checks, backends, kernels."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.reason, []).append(record)
    for reason, found in sorted(groups.items(), key=lambda each: -len(each[1])):
        kernels = list(dict.fromkeys(record.kernel for record in found))
        places = ", ".join(dict.fromkeys(record.backend for record in found))
        few = every or len(kernels) <= _MOST_NAMED
        who = ", ".join(kernels) if few else number(len(kernels), "kernel")
        yield f"({len(found)}) on {places}: {who}: {reason}"
