"""Report the verdicts of the mutants of each kernel, on the terminal and on the page.

They come from records only. Several tests or specs may run a mutant; ``groups`` decides which
verdict counts. The table of the terminal and the template ``mutants.html.j2`` both read
``KernelMutants``.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_pallas.decoding import decode
from pytest_pallas.mutate.runner import score, who
from pytest_pallas.record import MutantVerdict, Note, Record
from pytest_pallas.report.section import Results, rendered, section

#: Outcomes that fail a run.
_BAD = ("failed", "xpassed")

#: The counted statuses, in the order of the last line.
_STATUSES = ("killed", "survived", "equivalent", "untried")


@dataclass(frozen=True, kw_only=True)
class KernelMutants:
    """The mutants of a kernel, or of all kernels.

    Attributes:
      kernel: its name.
      family: the family of its spec; "" for kernels of user-written tests.
      verdicts: one for each mutant, in the order of the source.
      notes: stale EquivalentMutant marks, and checks that fail without a mutant.
    """

    kernel: str
    family: str
    verdicts: list[MutantVerdict]
    notes: list[Note] = field(default_factory=list[Note])

    @property
    def score(self) -> float | None:
        """The percentage of killed mutants; None if no mutant ran."""
        return score(self.verdicts)

    @property
    def percent(self) -> str:
        """The score as text. It is rounded down: with a survivor it is never 100 %."""
        return "-" if self.score is None else f"{math.floor(10 * self.score) / 10:g} %"

    @property
    def state(self) -> str:
        """``"survived"`` if any mutant did, else ``"killed"``, or ``"unscored"`` if none ran."""
        return "survived" if self.survived else "unscored" if self.score is None else "killed"

    @property
    def survived(self) -> Sequence[MutantVerdict]:
        """The mutants that no check killed."""
        return self.of("survived")

    @property
    def killed_by(self) -> Sequence[tuple[str, int]]:
        """The number of mutants that each check killed; after a crash the check may be unknown."""
        counts = Counter(who(v) or v.how or "unknown" for v in self.of("killed"))
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))

    @property
    def folded(self) -> Mapping[str, Sequence[MutantVerdict]]:
        """The mutants that the page shows on demand, by title."""
        equivalent = self.of("equivalent")
        lists = {
            "equivalent: marked by the spec": [v for v in equivalent if v.marked],
            "equivalent: the same program": [v for v in equivalent if not v.marked],
            "not tried": self.of("untried"),
        }
        return {title: verdicts for title, verdicts in lists.items() if verdicts}

    def of(self, status: str) -> list[MutantVerdict]:
        """List the mutants with a status."""
        return [verdict for verdict in self.verdicts if verdict.status == status]

    def count(self, status: str) -> int:
        """Count the mutants with a status."""
        return len(self.of(status))


def groups(records: Sequence[Record]) -> list[KernelMutants]:
    """Group the mutants by kernel, the worst score first.

    Several tests or specs may run a mutant: it is killed if one of them kills it.
    """
    kernels: dict[tuple[str, str], dict[str, MutantVerdict]] = {}
    notes: dict[tuple[str, str], list[Note]] = {}
    for record in records:
        for verdict in decode(list[MutantVerdict], record.mutants):
            name = (record.family, record.kernel if record.family else verdict.kernel)
            verdicts = kernels.setdefault(name, {})
            before = verdicts.get(verdict.key)
            if before is None or _rank(verdict) < _rank(before):
                verdicts[verdict.key] = verdict
        if record.mutants and record.family:
            notes.setdefault((record.family, record.kernel), []).extend(record.notes)
    best = _best(
        (kernel, verdict)
        for (_, kernel), verdicts in kernels.items()
        for verdict in verdicts.values()
    )
    made = [
        KernelMutants(
            kernel=kernel,
            family=family,
            verdicts=[_elsewhere(verdict, *best[key]) for key, verdict in verdicts.items()],
            notes=list(dict.fromkeys(notes.get((family, kernel), ()))),
        )
        for (family, kernel), verdicts in kernels.items()
    ]
    return sorted(made, key=lambda group: 101.0 if group.score is None else group.score)


def together(kernels: Sequence[KernelMutants]) -> KernelMutants:
    """Put all mutants together, each once."""
    best = _best((group.kernel, verdict) for group in kernels for verdict in group.verdicts)
    return KernelMutants(kernel="", family="", verdicts=[verdict for _, verdict in best.values()])


def others(records: Sequence[Record]) -> list[Record]:
    """Choose the records for the other tables.

    They include failed records with mutants, because those tables report failures.
    """
    return [
        record
        for record in records
        if record.outcome in _BAD or not (record.mutants or has_none(record))
    ]


def has_none(record: Record) -> bool:
    """Whether a record is of a spec without mutants of the selected operators."""
    whole_spec = record.check == "mutants" and record.backend == "all"
    return whole_spec and record.outcome == "passed" and not record.mutants


def _rank(verdict: MutantVerdict) -> int:
    """Rank a verdict: of several on a mutant, the lowest counts. One kill is enough.

    An equivalent mutant in the calls of one test may differ in the calls of another one.
    """
    if verdict.status == "equivalent" and verdict.marked:
        return 1
    return {"killed": 0, "survived": 2, "equivalent": 3, "untried": 4}[verdict.status]


def _best(pairs: Iterable[tuple[str, MutantVerdict]]) -> dict[str, tuple[str, MutantVerdict]]:
    """Choose the verdict that counts, with its kernel, by key of the mutant."""
    best: dict[str, tuple[str, MutantVerdict]] = {}
    for kernel, verdict in pairs:
        if verdict.key not in best or _rank(verdict) < _rank(best[verdict.key][1]):
            best[verdict.key] = kernel, verdict
    return best


def _elsewhere(verdict: MutantVerdict, kernel: str, best: MutantVerdict) -> MutantVerdict:
    """Replace the verdict on a survivor that another spec killed or marked as equivalent."""
    if _rank(best) > 1 or verdict.status not in ("survived", "untried"):
        return verdict
    by = kernel if best.status == "killed" else ""
    return dataclasses.replace(
        best, by=by, on="", examples=verdict.examples, seconds=verdict.seconds
    )


def _lines(group: KernelMutants, verdict: MutantVerdict) -> Iterator[str]:
    part = f" ({verdict.part})" if verdict.part else ""
    yield f"  {verdict.status}  {group.kernel}  {verdict.operator}: {verdict.change}{part}"
    callers = "".join(f", called in {line}" for line in verdict.called_from)
    yield f"            {verdict.where}{callers}"
    if verdict.source:
        yield f"            > {verdict.source}"
    if verdict.reason:
        yield f"            {verdict.reason}"


def _table(kernels: Sequence[KernelMutants], *, width: int, color: bool) -> str:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("kernel")
    for name in ("mutants", *_STATUSES, "score", "by"):
        table.add_column(name, justify="left" if name == "by" else "right")
    for group in kernels:
        value = group.score
        by = Counter(verdict.by for verdict in group.of("killed"))
        style = "" if value is None else "green" if value == 100 else "red"
        table.add_row(
            group.kernel,
            str(len(group.verdicts)),
            *(str(group.count(status)) for status in _STATUSES),
            f"[{style}]{math.floor(value)} %[/{style}]" if value is not None else "-",
            ", ".join(f"{name} {count}" for name, count in by.most_common(3)),
        )
    return rendered(table, width=width, color=color)


@section("mutants")
def section_of_mutants(results: Results) -> Iterator[str]:
    """The table of kernels, the survivors (with ``-v`` all but the killed), and the score."""
    kernels = groups(results.records)
    if not kernels:
        return
    yield "mutants"
    yield _table(kernels, width=results.wide, color=results.color)
    shown = ("survived", "equivalent", "untried") if results.every else ("survived",)
    for group in kernels:
        for verdict in group.verdicts:
            if verdict.status in shown:
                yield from _lines(group, verdict)
        for note in group.notes:
            yield f"  {group.kernel}: {note}"
    total = together(kernels)
    overall = "-" if total.score is None else f"{total.score:.1f} %"
    counts = [f"{number} {status}" for status in _STATUSES if (number := total.count(status))]
    yield f"score {overall}: {', '.join([f'{len(total.verdicts)} mutants', *counts])}"


def shortfall(records: Sequence[Record], least: float) -> Iterator[str]:
    """Yield the failure of ``--pallas-mutate-min`` if the score is lower than ``least`` percent."""
    score = together(groups(records)).score
    if score is None:
        yield f"--pallas-mutate-min={least:g}: no mutant ran"
    elif score < least:
        yield f"--pallas-mutate-min={least:g}: the score is {score:.1f} %"


@dataclass(frozen=True)
class MutantSummary:
    """The section of the page.

    Attributes:
      rows: one for each kernel, the worst score first.
      every: all kernels in one row.
      without: kernels without mutants.
    """

    rows: Sequence[KernelMutants]
    every: KernelMutants
    without: Sequence[str]


def mutants(records: Sequence[Record]) -> MutantSummary | None:
    """Summarize the mutants of all kernels; None without ``--pallas-mutate``."""
    kernels = groups(records)
    without = list(dict.fromkeys(record.kernel for record in records if has_none(record)))
    if not kernels and not without:
        return None
    return MutantSummary(kernels, together(kernels), without)
