"""The header, tables, and the lines below the summary table, from records only."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from pytest_pallas.backends import default_target, label
from pytest_pallas.compat.fuzzing import hypothesis_profile
from pytest_pallas.notes import Note, of_kind
from pytest_pallas.options.table import OLD_REPLAY, uses_old_replay
from pytest_pallas.record import Record
from pytest_pallas.report.sections.not_applicable import count, number
from pytest_pallas.session import PytestSession
from pytest_pallas.tested import TESTED

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pytest_pallas.session.fleet import FleetFacts


def rendered(table: RenderableType, *, width: int, color: bool) -> str:
    """A table or lines as text of at most ``width`` columns, without trailing spaces."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=max(width, 40), force_terminal=color, no_color=not color, highlight=False
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")


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


def distinct(records: Iterable[Record]) -> Distinct:
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
_NAMED = 8


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
    if uses_old_replay(session.config):
        lines.append(f"pallas: {OLD_REPLAY} is deprecated; it is --pallas-replay=BLOB now")
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


def footnotes(records: Iterable[Record], *, every: bool = False) -> list[str]:
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
        few = every or len(names) <= _NAMED
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
        few = every or len(kernels) <= _NAMED
        who = ", ".join(kernels) if few else number(len(kernels), "kernel")
        yield f"({len(found)}) on {places}: {who}: {reason}"
