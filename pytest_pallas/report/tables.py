"""Coverage and costs of each kernel, as tables with bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.compile.costs import RecordedCost
from pytest_pallas.compile.report import shown_report, size_words, with_mesh
from pytest_pallas.record import Record
from pytest_pallas.report.drawings import Svg, share, slots
from pytest_pallas.report.inputs import covered

#: CostNumber of words of one aspect that are listed.
_WORDS = 40


@dataclass(frozen=True)
class AspectCoverage:
    """Drawn and undrawn words of one aspect, such as a dim."""

    name: str
    tried: Sequence[str]
    never: Sequence[str]


@dataclass(frozen=True)
class KernelCoverage:
    """Coverage of one kernel's inputs."""

    kernel: str
    shapes: int
    tried: int
    every: int
    bar: Svg
    aspects: Sequence[AspectCoverage]

    @property
    def missed(self) -> str:
        """The words that were never drawn."""
        return "; ".join(
            f"{each.name}: {', '.join(each.never)}" for each in self.aspects if each.never
        )


def coverage(records: Sequence[Record]) -> list[KernelCoverage]:
    """Coverage of each executed kernel, the least covered first."""
    found: list[KernelCoverage] = []
    for one in covered([record for record in records if not record.compiled]):
        aspects = [
            AspectCoverage(
                str(each), _some(one.tried.get(each, {})), _some(one.never.get(each, {}))
            )
            for each in dict.fromkeys((*one.tried, *one.never))
        ]
        tried = sum(len(words) for words in one.tried.values())
        every = tried + sum(len(words) for words in one.never.values())
        bar = share(tried, every, f"{tried} of {every} declared choices were drawn")
        found.append(KernelCoverage(one.kernel, len(one.shapes), tried, every, bar, aspects))
    return sorted(found, key=lambda each: (each.tried / max(1, each.every), each.kernel))


def _some(words: Mapping[str, None]) -> list[str]:
    more = len(words) - _WORDS
    return [*list(words)[:_WORDS], *([f"{more} more"] if more > 0 else [])]


#: Recorded costs by ``RecordedCost.key``.
Recorded = Mapping[tuple[str, str, str, str], RecordedCost]

#: Numbers of a program, by their names in ``Cost``: title, and whether any value above 0 is bad.
_NUMBERS = {
    "bundles": "bundles",
    "loop_bundles": "loop",
    "registers": "registers",
    "spills": "spills",
    "fills": "fills",
    "spill_store_bytes": "spill stores",
    "spill_load_bytes": "spill loads",
}

_NEVER = ("spills", "fills", "spill_store_bytes", "spill_load_bytes")

#: The units whose slots are shown, as in the terminal's table.
_UNITS = ("mxu", "xlu", "valu", "eup", "load", "store", "scalar")


@dataclass(frozen=True)
class CostNumber:
    """A number, its recorded value, and its state."""

    words: str
    change: str = ""
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """The costs of one program on one chip.

    Attributes:
      kernel: its name, with the mesh.
      signature: dtypes and shapes of its arguments.
      chip: the chip.
      memory: VMEM or shared memory in words, with a change.
      bar: the same relative to the chip's limit, or None.
      slots: the use of slots in the main loop, or None.
      numbers: one for each title of the table.
    """

    kernel: str
    signature: str
    chip: str
    memory: CostNumber
    bar: Svg | None
    slots: Svg | None
    numbers: Sequence[CostNumber]


@dataclass(frozen=True)
class CostTable:
    """Rows, and the titles of the numbers that some of them have."""

    titles: Sequence[str]
    rows: Sequence[CostRow]
    has_slots: bool
    compared: bool


def table(records: Sequence[Record], recorded: Recorded) -> CostTable | None:
    """The costs of everything that compiled, as in the terminal; None if nothing did."""
    found = [
        (record, report)
        for record in records
        if record.check == "forward" and (report := shown_report(record)) is not None
    ]
    if not found:
        return None
    names = [name for name in _NUMBERS if any(r.get(name) is not None for _, r in found)]
    rows = [_row(record, report, names, recorded) for record, report in found]
    rows.sort(key=lambda row: (row.kernel, row.chip))
    return CostTable(
        titles=[_NUMBERS[name] for name in names],
        rows=rows,
        has_slots=any(row.slots for row in rows),
        compared=bool(recorded),
    )


def _row(
    record: Record, report: Mapping[str, Any], names: Sequence[str], recorded: Recorded
) -> CostRow:
    key = (record.kernel, record.check, report["target"], report.get("signature", ""))
    old = recorded.get(key)
    before: Mapping[str, int] = {} if old is None else old.cost
    name, limit = ("vmem_bytes", "vmem_capacity")
    if report.get(name) is None:
        name, limit = ("shared_bytes", "shared_capacity")
    used, most = report.get(name), report.get(limit)
    bar = None
    if used is not None and most:
        title = f"{size_words(used)} of {size_words(most)}, {100 * used / most:.0f} %"
        if name in before:
            title += f"; recorded: {size_words(before[name])}"
        bar = share(used, most, title, before=before.get(name))
    shares = {u: s for u in _UNITS if (s := report.get("loop_slots", {}).get(u)) is not None}
    words = ", ".join(f"{unit} {100 * value:.0f} %" for unit, value in shares.items())
    return CostRow(
        kernel=with_mesh(record),
        signature=report.get("signature", ""),
        chip=report["target"],
        memory=CostNumber(
            "-"
            if used is None
            else size_words(used) + (f", {100 * used / most:.0f} %" if most else ""),
            *_change(used, before.get(name)),
        ),
        bar=bar,
        slots=slots(shares, f"Used slots in the main loop: {words}") if shares else None,
        numbers=list(_numbers(report, names, before)),
    )


def _numbers(
    report: Mapping[str, Any], names: Sequence[str], before: Mapping[str, int]
) -> Iterator[CostNumber]:
    for name in names:
        value = report.get(name)
        words = "-" if value is None else f"{value:,}"
        change, state = _change(value, before.get(name))
        yield CostNumber(words, change, state or ("warn" if name in _NEVER and value else ""))


def _change(value: int | None, before: int | None) -> tuple[str, str]:
    """The difference of a number from the recorded one, in words and as a state."""
    if value is None or before is None or value == before:
        return "", ""
    share_ = f"{100 * (value - before) / before:+.0f} %" if before else f"was {before}"
    return share_, "bad" if value > before else "good"
