"""Print the header of a run, the table of checks, and the lines below it.

Features have their sections in their own modules; ``report.sections`` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from pallas_sim.chips import default_target
from pytest_pallas.backends.protocol import label
from pytest_pallas.compat.fuzzing import hypothesis_profile
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.record import Kind, NotApplicable, Record, not_applicable_of, of_kind
from pytest_pallas.report.section import Results, group_by, number, section
from pytest_pallas.report.summary import summary
from pytest_pallas.tested import TESTED

if TYPE_CHECKING:
    from pytest_pallas.pytest_session import FleetFacts

#: Lines of the table without ``-v``, so that all of it fits on a screen.
_MOST_LINES = 24

#: Number of reasons that are listed.
_REASONS = 3

#: Number of kernels that the line of a reason names.
_MOST_NAMED = 8


def header(session: PytestSession) -> list[str]:
    """Write the header: versions, backends, settings. Imports jax only if hardware is selected."""
    options = session.options
    lines = [
        f"pallas: jax {metadata.version('jax')}, backends {', '.join(options.backend)}, "
        f"{options.devices} simulated devices, seed {options.seed}, "
        f"hypothesis profile {hypothesis_profile()}"
    ]
    if TESTED["jax"].newer(metadata.version("jax")):
        newest = TESTED["jax"].newest
        lines.append(f"pallas: this JAX is newer than {newest}, the newest that was tested")
    if session.fleet is not None:
        lines.append(f"pallas: {on_fleet(session.fleet)}")
    if session.pinning is not None:
        lines.append(f"pallas: {session.pinning.text}")
    elif ("backend" in options.explicit or options.suite) and not session.delegates:
        lines.append(f"pallas: runs on {', '.join(places(session))}")
        lines += [f"pallas: without {n}: {why}" for n, why in session.selection.left_out.items()]
    return lines


def on_fleet(fleet: FleetFacts) -> str:
    """Describe the workers of ``--pallas-fleet``, before the run."""
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
    """List the backends with their devices or chips."""
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


def footnote_lines(records: Iterable[Record], *, every: bool = False) -> list[str]:
    """Write the lines below the table: legend, expected failures, skips.

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
    lines += [f"unverified: {_who(names, every)}: {text}" for text, names in unverified.items()]
    notes = _kernels_by_text(records, _notes_of("reference")) if every else {}
    return [*lines, *(f"note: {', '.join(names)}: {note}" for note, names in notes.items())]


def _notes_of(kind: Kind) -> Callable[[Record], Iterable[str]]:
    return lambda record: map(str, of_kind(record.notes, kind))


def _kernels_by_text(
    records: Iterable[Record], texts: Callable[[Record], Iterable[str]]
) -> Mapping[str, Sequence[str]]:
    """Map each text to the names of the kernels whose records have it, each once."""
    kernels: dict[str, dict[str, None]] = {}
    for record in records:
        for text in texts(record):
            kernels.setdefault(text, {})[record.kernel] = None
    return {text: list(names) for text, names in kernels.items()}


def _who(kernels: Sequence[str], every: bool) -> str:
    """List the names of kernels, or their number if there are many."""
    few = every or len(kernels) <= _MOST_NAMED
    return ", ".join(kernels) if few else number(len(kernels), "kernel")


def _by_reason(records: Iterable[Record], every: bool) -> Iterator[str]:
    """Write a line for each reason, the most frequent first: number, backends, kernels."""
    groups = group_by(records, lambda record: record.reason)
    for reason, group in sorted(groups.items(), key=lambda pair: -len(pair[1])):
        kernels = list(dict.fromkeys(record.kernel for record in group))
        backends = ", ".join(dict.fromkeys(record.backend for record in group))
        yield f"({len(group)}) on {backends}: {_who(kernels, every)}: {reason}"


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

    def __str__(self) -> str:
        """One line of the summary."""
        return (
            f"distinct: {self.triples:,} (spec, check, shape) triples in {self.examples:,} examples"
        )


def count_distinct(records: Iterable[Record]) -> Distinct:
    """Count distinct examples. Two files may have specs of the same name."""
    shapes: dict[tuple[str, str, str], set[str]] = {}
    examples = 0
    for record in records:
        key = record.test.partition("::")[0], record.kernel, record.check
        shapes.setdefault(key, set()).update(record.signatures)
        examples += record.examples
    return Distinct(triples=sum(map(len, shapes.values())), examples=examples)


@section("distinct", quiet=False)
def distinct(results: Results) -> Iterator[str]:
    """The number of distinct examples."""
    counted = count_distinct((*results.executed, *results.compiled))
    if counted.triples:
        yield str(counted)


# Checks that do not apply to kernels: one line of counts, or a list by requirement.


def entries(
    left_out: Mapping[str, NotApplicable], records: Iterable[Record]
) -> Sequence[NotApplicable]:
    """List the checks that collection left out, then those that tests found not applicable."""
    late = [entry for record in records if (entry := not_applicable_of(record)) is not None]
    return list({**left_out, **{entry.test: entry for entry in late}}.values())


def lines(left_out: Sequence[NotApplicable], *, every: bool) -> Iterator[str]:
    """Write a line of counts; with ``every``, also one for each requirement."""
    if not left_out:
        return
    late = sum(entry.found == "run" for entry in left_out)
    during_run = f", {late:,} of them found during the run" if late else ""
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
    """Count checks and their kernels."""
    kernels = len({(check.test.rpartition("::")[0], check.kernel) for check in checks})
    return f"{number(len(checks), 'check')} of {number(kernels, 'kernel')}"


@section("not applicable", quiet=False)
def section_of_requirements(results: Results) -> Iterator[str]:
    """The number of checks that do not apply."""
    yield from lines(results.not_applicable, every=results.every)
