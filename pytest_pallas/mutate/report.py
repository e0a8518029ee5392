"""The verdicts of the mutants of each kernel, from records only."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_pallas.mutate.runner import MutantVerdict, from_json, score, who
from pytest_pallas.record import Note, Record
from pytest_pallas.report.section import Line, Results, rendered, section

#: Outcomes that fail a run.
_BAD = ("failed", "xpassed")

#: The counted statuses, in the order of the last line.
_STATUSES = ("killed", "survived", "equivalent", "untried")


@dataclass(frozen=True, kw_only=True)
class KernelMutants:
    """The mutants of a kernel.

    Attributes:
      kernel: its name.
      family: the family of its spec; "" for kernels of user-written tests.
      verdicts: one for each mutant, in the order of the source.
      notes: stale EquivalentMutant marks, and checks that fail without a mutant.
      seconds: how long it took.
    """

    kernel: str
    family: str
    verdicts: list[MutantVerdict]
    notes: list[Note] = field(default_factory=list[Note])
    seconds: float = 0.0

    @property
    def score(self) -> float | None:
        """The percentage of killed mutants; None if no mutant ran."""
        return score(self.verdicts)

    def count(self, status: str) -> int:
        """The number of mutants with a status."""
        return sum(verdict.status == status for verdict in self.verdicts)


def groups(records: Sequence[Record]) -> list[KernelMutants]:
    """The mutants by kernel, the worst score first.

    Several tests or specs may run a mutant: it is killed if one of them kills it.
    """
    found: dict[tuple[str, str], dict[str, MutantVerdict]] = {}
    notes: dict[tuple[str, str], list[Note]] = {}
    seconds: Counter[tuple[str, str]] = Counter()
    for record in records:
        for plain in record.mutants:
            verdict = from_json(plain)
            name = (record.family, record.kernel if record.family else verdict.kernel)
            known = found.setdefault(name, {})
            before = known.get(verdict.key)
            if before is None or _rank(verdict) < _rank(before):
                known[verdict.key] = verdict
            notes.setdefault(name, [])
            seconds[name] += verdict.seconds  # pyright: ignore[reportArgumentType]
        if record.mutants and record.family:
            notes[record.family, record.kernel] += record.notes
    best = _best(
        (kernel, verdict)
        for (_, kernel), verdicts in found.items()
        for verdict in verdicts.values()
    )
    made = [
        KernelMutants(
            kernel=kernel,
            family=family,
            verdicts=[_elsewhere(verdict, *best[key]) for key, verdict in verdicts.items()],
            notes=list(dict.fromkeys(notes[family, kernel])),
            seconds=seconds[family, kernel],
        )
        for (family, kernel), verdicts in found.items()
    ]
    return sorted(made, key=lambda group: 101.0 if group.score is None else group.score)


def together(made: Sequence[KernelMutants]) -> KernelMutants:
    """All mutants, each once."""
    best = _best((group.kernel, verdict) for group in made for verdict in group.verdicts)
    return KernelMutants(kernel="", family="", verdicts=[verdict for _, verdict in best.values()])


def total(made: Sequence[KernelMutants]) -> float | None:
    """The score over all kernels."""
    return together(made).score


def sections(
    made: Sequence[KernelMutants], *, width: int, color: bool, every: bool
) -> Iterator[str]:
    """The table of kernels, the survivors, and the score, as text.

    Args:
      made: the mutants by kernel.
      width: columns of the terminal.
      color: whether it has colours.
      every: whether equivalent mutants are listed, too.
    """
    if not made:
        return
    yield "mutants"
    yield _table(made, width=width, color=color)
    for group in made:
        listed = [v for v in group.verdicts if v.status == "survived" or (every and _listed(v))]
        for verdict in listed:
            yield from _lines(group, verdict)
        for note in group.notes:
            yield f"  {group.kernel}: {note}"
    every_one = together(made)
    overall = every_one.score
    counts = [
        f"{len(every_one.verdicts)} mutants",
        *(f"{every_one.count(s)} {s}" for s in _STATUSES if every_one.count(s)),
    ]
    yield f"score {'-' if overall is None else f'{overall:.1f} %'}: {', '.join(counts)}"


def others(records: Sequence[Record]) -> list[Record]:
    """The records of other tables.

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
    """The precedence of several verdicts on a mutant: one test that kills it is enough.

    An equivalent mutant in the calls of one test may differ in the calls of another one.
    """
    if verdict.status == "equivalent" and verdict.marked:
        return 1
    return {"killed": 0, "survived": 2, "equivalent": 3, "untried": 4}[verdict.status]


def _best(pairs: Iterable[tuple[str, MutantVerdict]]) -> dict[str, tuple[str, MutantVerdict]]:
    """The verdict that counts, and its record, by key of the mutant."""
    best: dict[str, tuple[str, MutantVerdict]] = {}
    for kernel, verdict in pairs:
        if verdict.key not in best or _rank(verdict) < _rank(best[verdict.key][1]):
            best[verdict.key] = kernel, verdict
    return best


def _elsewhere(verdict: MutantVerdict, kernel: str, best: MutantVerdict) -> MutantVerdict:
    """A verdict; for a survivor that another spec killed or marked as equivalent, that one."""
    if _rank(best) > 1 or verdict.status not in ("survived", "untried"):
        return verdict
    by, on = (kernel, "") if best.status == "killed" else ("", "")
    return dataclasses.replace(
        best, by=by, on=on, examples=verdict.examples, seconds=verdict.seconds
    )


def _listed(verdict: MutantVerdict) -> bool:
    return verdict.status in ("equivalent", "untried")


def _lines(group: KernelMutants, verdict: MutantVerdict) -> Iterator[str]:
    part = f" ({verdict.part})" if verdict.part else ""
    yield f"  {verdict.status}  {group.kernel}  {verdict.operator}: {verdict.change}{part}"
    callers = "".join(f", called in {place}" for place in verdict.called_from)
    yield f"            {verdict.where}{callers}"
    if verdict.source:
        yield f"            > {verdict.source}"
    if verdict.reason:
        yield f"            {verdict.reason}"


def _table(made: Sequence[KernelMutants], *, width: int, color: bool) -> str:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("kernel")
    for name in ("mutants", "killed", "survived", "equivalent", "untried", "score", "by"):
        table.add_column(name, justify="left" if name == "by" else "right")
    for group in made:
        value = group.score
        style = "" if value is None else "green" if value == 100 else "red"
        table.add_row(
            group.kernel,
            str(len(group.verdicts)),
            *(str(group.count(s)) for s in ("killed", "survived", "equivalent", "untried")),
            f"[{style}]{math.floor(value)} %[/{style}]" if value is not None else "-",
            _by(group),
        )
    return rendered(table, width=width, color=color)


def _by(group: KernelMutants) -> str:
    """The checks with the number of mutants that they killed, the most first."""
    counts = Counter(v.by for v in group.verdicts if v.status == "killed")
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(3))


@section("mutants")
def section_of_mutants(results: Results) -> Iterator[str]:
    """The mutants and their verdicts."""
    made = groups(results.records)
    yield from sections(made, width=results.wide, color=results.color, every=results.every)


@section("mutation score")
def section_of_score(results: Results) -> Iterator[Line]:
    """The failure of ``--pallas-mutate-min``."""
    if results.score:
        yield Line(results.score, "red")


# The mutants of each kernel: a row of a table, and the survivors below it.


#: States of a row: a survivor has precedence.
STATES = ("survived", "killed", "unscored")


@dataclass(frozen=True, kw_only=True)
class MutantEntry:
    """A mutant with details.

    Attributes:
      operator: the mutation operator.
      change: the change, and the part that it changes.
      body: name of its body, if it is not the kernel's own.
      where: ``file:line``.
      callers: the lines of its callers, in short; or "".
      source: the line of code; "" if it cannot be read.
      effort: number of examples that ran on it, and their time; "" if none ran.
      reason: why it is equivalent or was not tried.
    """

    operator: str
    change: str
    body: str
    where: str
    callers: str
    source: str
    effort: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class MutantRow:
    """The mutants of one kernel, or of all kernels.

    Attributes:
      anchor: the page's name for it.
      kernel: its name.
      family: the family of its spec; "" for kernels of user-written tests.
      state: one of ``STATES``.
      score: the percentage of mutants that were killed, in words.
      mutants: how many there are.
      killed, survived, equivalent, untried: the number of mutants with each status.
      by: the checks or tests with the number of mutants that they killed, the most first.
      survivors: the mutants that no check killed.
      folded: groups of mutants that the page shows on demand, with their titles.
      notes: stale EquivalentMutant marks, and checks that fail without a mutant.
    """

    anchor: str
    kernel: str
    family: str
    state: str
    score: str
    mutants: int
    killed: int
    survived: int
    equivalent: int
    untried: int
    by: Sequence[tuple[str, int]]
    survivors: Sequence[MutantEntry]
    folded: Sequence[tuple[str, Sequence[MutantEntry]]]
    notes: Sequence[Note]


@dataclass(frozen=True)
class MutantSummary:
    """The section of the page.

    Attributes:
      rows: one for each kernel, the worst score first.
      every: all kernels in one row.
      without: kernels without mutants.
    """

    rows: Sequence[MutantRow]
    every: MutantRow
    without: Sequence[str]


def mutants(records: Sequence[Record]) -> MutantSummary | None:
    """The verdicts of the mutants of all kernels; None without ``--pallas-mutate``."""
    made = groups(records)
    without = list(dict.fromkeys(record.kernel for record in records if has_none(record)))
    if not made and not without:
        return None
    return MutantSummary(
        rows=[_row(f"mutants-{number}", group) for number, group in enumerate(made)],
        every=_row("", together(made)),
        without=without,
    )


def _row(anchor: str, group: KernelMutants) -> MutantRow:
    score = group.score
    survived = _entries(group, [v for v in group.verdicts if v.status == "survived"])
    return MutantRow(
        anchor=anchor,
        kernel=group.kernel,
        family=group.family,
        state="survived" if survived else "unscored" if score is None else "killed",
        score=_percent(score),
        mutants=len(group.verdicts),
        killed=group.count("killed"),
        survived=len(survived),
        equivalent=group.count("equivalent"),
        untried=group.count("untried"),
        by=_by_kernel(group.verdicts),
        survivors=survived,
        folded=[
            (title, _entries(group, verdicts))
            for title, verdicts in _folded(group.verdicts).items()
            if verdicts
        ],
        notes=group.notes,
    )


def _percent(score: float | None) -> str:
    """A score in words. It is rounded down: with a survivor it is never 100 %."""
    return "-" if score is None else f"{math.floor(10 * score) / 10:g} %"


def _by_kernel(verdicts: Sequence[MutantVerdict]) -> list[tuple[str, int]]:
    """The number of mutants that each check killed; after a crash the check may be unknown."""
    counts = Counter(who(v) or v.how or "unknown" for v in verdicts if v.status == "killed")
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _folded(verdicts: Sequence[MutantVerdict]) -> Mapping[str, list[MutantVerdict]]:
    equivalent = [v for v in verdicts if v.status == "equivalent"]
    return {
        "equivalent: marked by the spec": [v for v in equivalent if v.marked],
        "equivalent: the same program": [v for v in equivalent if not v.marked],
        "not tried": [v for v in verdicts if v.status == "untried"],
    }


def _entries(group: KernelMutants, verdicts: Sequence[MutantVerdict]) -> list[MutantEntry]:
    return [_entry(group, verdict) for verdict in verdicts]


def _entry(group: KernelMutants, verdict: MutantVerdict) -> MutantEntry:
    change, part = verdict.change, verdict.part
    if part and part not in change.split():  # "sub -> add" needs no "(sub)"
        change = f"{change} ({part})"
    count = "1 example" if verdict.examples == 1 else f"{verdict.examples:,} examples"
    return MutantEntry(
        operator=verdict.operator,
        change=change,
        body="" if verdict.kernel == group.kernel else verdict.kernel,
        where=verdict.where,
        callers="".join(f", called in {place}" for place in verdict.called_from),
        source=verdict.source,
        effort=f"{count}, {verdict.seconds:.1f} s" if verdict.examples else "",
        reason=verdict.reason,
    )
