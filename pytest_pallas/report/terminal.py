"""Write the header of a run, the table of its checks, and the lines below the table.

A feature writes its own section in its own module; ``report.section`` lists all sections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from pallas_sim.chips import default_target
from pytest_pallas.backends.protocol import label
from pytest_pallas.compat.fuzzing import hypothesis_profile
from pytest_pallas.errors import GoldenError
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.record import Kind, NotApplicable, Record, not_applicable_of, of_kind
from pytest_pallas.report.section import Line, Results, group_by, number, section
from pytest_pallas.report.summary import summary
from pytest_pallas.tested import TESTED

if TYPE_CHECKING:
    from pytest_pallas.pytest_session import FleetFacts


#: Most lines of the table without ``-v``, so that it fits on a screen.
_MOST_LINES = 24

#: Most reasons of a kind that are listed one by one without ``-v``; of more, only counts.
_REASONS = 3

#: Most kernels that a line names without ``-v``; of more, only their number.
_MOST_NAMED = 8


def header(session: PytestSession) -> list[str]:
    """Return the lines of the header: versions, backends and settings.

    It imports jax only if a hardware backend is selected, because that import takes seconds.
    """
    options = session.options
    lines = [
        f"pallas: jax {metadata.version('jax')}, backends {', '.join(options.backend)}, "
        f"{options.devices} simulated devices, seed {options.seed}, "
        f"hypothesis profile {hypothesis_profile()}"
    ]
    if TESTED["jax"].newer(metadata.version("jax")):
        newest = TESTED["jax"].newest
        lines.append(f"pallas: this JAX is newer than {newest}, the newest that was tested")
    if session.opened_early:
        lines.append(
            "pallas: tests on hardware run in this process, and one that crashes or hangs ends it: "
            "a conftest.py or a plugin has used JAX's accelerator before"
        )
    if session.fleet is not None:
        lines.append(f"pallas: {on_fleet(session.fleet)}")
    if session.pinning is not None:
        lines.append(f"pallas: {session.pinning.text}")
    elif ("backend" in options.explicit or options.suite) and not session.delegates:
        lines.append(f"pallas: runs on {', '.join(places(session))}")
        lines += [f"pallas: without {n}: {why}" for n, why in session.selection.left_out.items()]
    return lines


def on_fleet(fleet: FleetFacts) -> str:
    """Return the line of the header about the workers of ``--pallas-fleet``."""
    if fleet.processes:
        es = "" if fleet.processes == 1 else "es"
        return (
            f"runs in {fleet.processes} worker process{es} of this machine; their Dask scheduler "
            "executes what it is sent, and listens on 127.0.0.1"
        )
    where = f"runs on the workers of the Dask scheduler {fleet.place}, which executes what it is"
    if fleet.encrypted:
        return f"{where} sent by those with a certificate (TLS)"
    return (
        f"{where} sent: keep its port inside a network that you trust, or use TLS (docs/fleet.md)"
    )


def places(session: PytestSession) -> list[str]:
    """Return each selected backend with its devices, or with the chip that it stands for."""
    texts: list[str] = []
    for backend in session.selection.backends:
        if backend.kind == "hardware":
            kinds = session.devices(backend.name).kinds
            count = f" ({len(kinds)} x {kinds[0]})" if kinds else ""
            texts.append(f"{label(backend)}{count}")
            continue
        default = default_target(backend.platform)
        target = backend.target or default
        texts.append(label(backend) + (f" (as {target.device_kind})" if target else ""))
    return texts


@section("results")
def table(results: Results) -> Iterator[str]:
    """Write the table: a row for each kernel, a column for each backend."""
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
    """Write the reasons of skips and expected failures, and the notes of checks."""
    yield from footnote_lines(results.executed, every=results.every)


def footnote_lines(records: Iterable[Record], *, every: bool = False) -> list[str]:
    """Return the lines below the table: legend, expected failures, skips, notes of checks.

    Each reason has a line; more than ``_REASONS`` reasons share one line of counts.

    Args:
      records: of the checks that ran.
      every: list all reasons and name all kernels, however many there are (``-v``).
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
    for title, group in groups.items():
        reasons = list(_by_reason(group, every))
        if every or len(reasons) <= _REASONS:
            lines += [f"{title} {line}" for line in reasons]
        else:
            many = f"{title}s" if title.endswith("failure") else title
            lines.append(f"{many}: {count(group)}, for {len(reasons)} reasons (-v lists them)")
    loosened = _kernels_by_text(records, _notes_of("tolerance"))
    lines += [f"loosened: {', '.join(names)}: {note}" for note, names in loosened.items()]
    unverified = _kernels_by_text(records, lambda record: record.unverified)
    lines += [
        f"unverified: {_names_or_number(names, every)}: {text}"
        for text, names in unverified.items()
    ]
    notes = _kernels_by_text(records, _notes_of("reference")) if every else {}
    return [*lines, *(f"note: {', '.join(names)}: {note}" for note, names in notes.items())]


def _notes_of(kind: Kind) -> Callable[[Record], Iterable[str]]:
    """Return a function from a record to its notes of one kind, as texts."""
    return lambda record: map(str, of_kind(record.notes, kind))


def _kernels_by_text(
    records: Iterable[Record], texts: Callable[[Record], Iterable[str]]
) -> Mapping[str, Sequence[str]]:
    """Map each text to the names of the kernels whose records have it; a name occurs once."""
    kernels: dict[str, dict[str, None]] = {}
    for record in records:
        for text in texts(record):
            kernels.setdefault(text, {})[record.kernel] = None
    return {text: list(names) for text, names in kernels.items()}


def _names_or_number(kernels: Sequence[str], every: bool) -> str:
    """Return the names of the kernels, or only their number if there are many."""
    named = every or len(kernels) <= _MOST_NAMED
    return ", ".join(kernels) if named else number(len(kernels), "kernel")


def _by_reason(records: Iterable[Record], every: bool) -> Iterator[str]:
    """Write a line for each reason, the most frequent first.

    It has the number of the reason's records, their backends, their kernels, and the reason.
    """
    groups = group_by(records, lambda record: record.reason)
    for reason, group in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        kernels = list(dict.fromkeys(record.kernel for record in group))
        backends = ", ".join(dict.fromkeys(record.backend for record in group))
        yield f"({len(group)}) on {backends}: {_names_or_number(kernels, every)}: {reason}"


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """Counts the examples of a run, and the distinct ones among them.

    Attributes:
      triples: number of distinct (spec, check, shape) triples. A shape is the shapes, dtypes and
        static arguments of a call; values, backends and meshes do not count.
      examples: number of examples, over all backends and meshes.
    """

    triples: int
    examples: int

    def __str__(self) -> str:
        """Return the counts as a line of the summary."""
        return (
            f"distinct: {self.triples:,} (spec, check, shape) triples in {self.examples:,} examples"
        )


def count_distinct(records: Iterable[Record]) -> Distinct:
    """Count the examples of a run, and the distinct ones among them.

    Specs of the same name in two files are two specs.
    """
    shapes: dict[tuple[str, str, str], set[str]] = {}
    examples = 0
    for record in records:
        key = record.test.partition("::")[0], record.kernel, record.check
        shapes.setdefault(key, set()).update(record.signatures)
        examples += record.examples
    return Distinct(triples=sum(map(len, shapes.values())), examples=examples)


@section("distinct", quiet=False)
def distinct(results: Results) -> Iterator[str]:
    """Write the number of distinct examples."""
    counted = count_distinct((*results.executed, *results.compiled))
    if counted.triples:
        yield str(counted)


@section("minimums")
def minimums(results: Results) -> Iterator[Line]:
    """Write which required minimums the run is below."""
    yield from (Line(text, "red") for text in results.below)


# Checks that do not apply: one line of counts, and with ``-v`` a line for each requirement.


def entries(
    left_out: Mapping[str, NotApplicable], records: Iterable[Record]
) -> Sequence[NotApplicable]:
    """Return the checks that do not apply, each once.

    Those that collection left out come first, then those that tests found not applicable.
    """
    during_run = [entry for record in records if (entry := not_applicable_of(record)) is not None]
    return list({**left_out, **{entry.test: entry for entry in during_run}}.values())


def lines(left_out: Sequence[NotApplicable], *, every: bool) -> Iterator[str]:
    """Write one line of counts; with ``every``, also a line for each requirement."""
    if not left_out:
        return
    run_count = sum(entry.found == "run" for entry in left_out)
    during_run = f", {run_count:,} of them found during the run" if run_count else ""
    hint = "" if every else " (-v lists them)"
    yield f"not applicable: {count(left_out)}{during_run}{hint}"
    if not every:
        return
    groups = group_by(left_out, lambda entry: entry.requirement)
    for requirement, group in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        checks, backends, kernels = (
            ", ".join(dict.fromkeys(getattr(entry, name) for entry in group))
            for name in ("check", "backend", "kernel")
        )
        yield f"  {requirement} ({len(group):,}): {checks} on {backends}: {kernels}"


def count(checks: Sequence[NotApplicable | Record]) -> str:
    """Return the number of checks and of their kernels, such as "13 checks of 1 kernel"."""
    kernels = len({(check.test.rpartition("::")[0], check.kernel) for check in checks})
    return f"{number(len(checks), 'check')} of {number(kernels, 'kernel')}"


@section("not applicable", quiet=False)
def section_of_requirements(results: Results) -> Iterator[str]:
    """Write the number of checks that do not apply, and with ``-v`` their requirements."""
    yield from lines(results.not_applicable, every=results.every)


# Goldens.

#: The counts, in the order of the line.
_COUNTED_GOLDENS = ("recorded", "replaced", "unchanged", "compared", "different", "missing", "lost")

#: Number of kernels with unused goldens that are named.
_NAMED_GOLDENS = 4


@section("goldens")
def section_of_goldens(results: Results) -> Iterator[str]:
    """Yield how many goldens were recorded or compared, and the unused ones of the folder."""
    session, records = results.session, results.records
    if session.goldens is None:
        return
    folder = session.goldens.store.folder
    counts = sum((Counter(record.goldens) for record in records), Counter[str]())
    texts = [f"{counts[name]} {name}" for name in _COUNTED_GOLDENS if counts[name]]
    yield f"goldens in {folder}: {', '.join(texts) or 'none'}"
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
        yield from _unused_goldens(session, records)


def _unused_goldens(session: PytestSession, records: Sequence[Record]) -> Iterator[str]:
    """Yield a line about goldens of kernels that ran, which no test used."""
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
        names = [f"{name} ({count})" for name, count in unused.most_common(_NAMED_GOLDENS)]
        more = ["..."] if len(unused) > _NAMED_GOLDENS else []
        yield f"unused: no test used {unused.total()} goldens: {', '.join(names + more)}"


# The workers of --pallas-fleet.


@section("fleet")
def section_of_workers(results: Results) -> Iterator[str | Line]:
    """Yield the number of workers, and those that were refused or lost."""
    fleet = results.session.fleet
    if fleet is None:
        return
    if results.verbosity >= 0:
        lost = f", {number(fleet.repeated, 'task')} lost with a worker" if fleet.repeated else ""
        yield f"fleet {fleet.place}: {number(fleet.workers, 'worker')} took part{lost}"
    for worker, why in fleet.refused.items():
        yield Line(f"refused worker {worker}: {why}", "yellow")
    for worker, how in fleet.lost.items():
        yield Line(f"lost worker {worker}: {how}", "yellow")
