"""Checks that do not apply to kernels: one line of counts, or a list by requirement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_pallas.record import NotApplicable, Record, not_applicable_of
from pytest_pallas.report.section import Results, section


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
