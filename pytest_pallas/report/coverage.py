"""Report what of the kernels ran on simulators, from records only: notes, source lines, LCOV.

What is missing of a kernel is what none of its records reached, unless its spec says why it need
not run (``KernelSpec.unreached``).
"""

from __future__ import annotations

import ast
import linecache
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pallas_sim.chips import Label
from pallas_sim.coverage import Point, Reached, merged
from pallas_sim.findings import SourceLine, line_in_file, read, short
from pytest_pallas.coverage import by_point, concerns, reason_of, ways_of
from pytest_pallas.record import Record, reached_by
from pytest_pallas.report.section import Line, Results, group_by, number, section

#: Number of kernels with a line of their own, of points in each, and of characters of a reason.
_KERNELS, _POINTS, _REASON = 5, 3, 100


@dataclass(frozen=True, kw_only=True)
class KernelCoverage:
    """What all checks of a kernel reached on all simulators.

    Attributes:
      kernel: its name.
      reached: by point, in the order of their lines; what need not run is not missing.
      excused: the reasons of the spec why ways need not be gone, with point and way.
      stale: keys of ``KernelSpec.unreached`` for what was reached.
      idle: keys that are about no point of these runs.
      finished: whether a check ran all its examples; a failure stops a check.
      complete: whether that is so on each simulator that its spec claims.
    """

    kernel: str
    reached: Sequence[Reached]
    excused: Sequence[tuple[Point, str, str]]
    stale: Sequence[str]
    idle: Sequence[str]
    finished: bool
    complete: bool

    @property
    def gone(self) -> int:
        """The number of ways that were gone."""
        return sum(bool(count) for reached in self.reached for count in reached.counts.values())

    @property
    def unreachable(self) -> list[str]:
        """The ways that the programs themselves rule out, with the reasons."""
        return [
            f"{way} at {place_of(one.point)}: {reason}"
            for one in self.reached
            for way, reason in one.unreachable.items()
        ]

    @property
    def missing(self) -> int:
        """The number of ways that were not gone, and should have been."""
        return sum(len(reached.missing) for reached in self.reached)


def coverage_of(rows: Sequence[Record]) -> KernelCoverage:
    """Return what the records of one kernel reached together."""
    reached = sorted(map(_with_dead_code, _placed(reached_by(rows))), key=_order)
    points = by_point(reached)
    passed = {Label.of(row.backend).name for row in rows if row.outcome in ("passed", "xpassed")}
    reasons = {key: why for row in rows for key, why in row.unreached.items()}
    excused = [
        (one.point, way, why)
        for one in reached
        for way in one.missing
        if (why := reason_of(reasons, one, way, points))
    ]
    left_out = {(point, way) for point, way, _ in excused}
    concerned = {
        key: [(one, way) for one in reached for way in ways_of(one) if concerns(key, one, way)]
        for key in reasons
    }
    return KernelCoverage(
        kernel=rows[0].kernel,
        reached=[
            replace(
                one,
                missing=tuple(
                    way
                    for way in ways_of(one)
                    if way in one.missing and (one.point, way) not in left_out
                ),
            )
            for one in reached
        ],
        excused=excused,
        stale=[
            key
            for key, ways in concerned.items()
            if ways and all(one.counts.get(way) for one, way in ways)
        ],
        idle=[key for key, ways in concerned.items() if not ways],
        finished=bool(passed),
        complete=all(row.simulators and passed.issuperset(row.simulators) for row in rows),
    )


def _placed(reached: Sequence[Reached]) -> Sequence[Reached]:
    """Give points that JAX gave no line, as those of calls without jit, the line of equal ones."""
    lines = {one.point._replace(line=""): one.point.line for one in reached if one.point.line}

    def line_of(point: Point) -> Point:
        return point if point.line else point._replace(line=lines.get(point, ""))

    def placed(one: Reached) -> Reached:
        within = tuple((line_of(point), way) for point, way in one.within)
        return replace(one, point=line_of(one.point), within=within)

    return merged([map(placed, reached)])


def _with_dead_code(reached: Reached) -> Reached:
    """Count a branch as missing, too, that the programs of all drawn sizes rule out.

    Its code never ran, and another size may run it. A loop that has one round by its code is no
    such thing.
    """
    if reached.point.kind != "branch" or not reached.unreachable:
        return reached
    why = {**reached.unreachable, **reached.why}
    missing = (*reached.missing, *reached.unreachable)
    return replace(reached, missing=tuple(dict.fromkeys(missing)), unreachable={}, why=why)


def covered(records: Iterable[Record]) -> list[KernelCoverage]:
    """Return the coverage of each kernel that a simulator ran.

    Two files may have kernels of the same name.
    """
    groups = group_by(
        (record for record in records if record.coverage),
        lambda record: (record.test.partition("::")[0], record.kernel),
    )
    return [coverage_of(rows) for rows in groups.values()]


def place_of(point: Point) -> str:
    """Return the line of a point for a reader, or a name if it has none."""
    if not point.line:
        return f"in {point.kernel}"
    generated = read(point.line) is not None and line_in_file(point.line) is None
    return f"{short(point.line)}, in code without a file" if generated else short(point.line)


def _order(reached: Reached) -> tuple[str, int, Point]:
    line = line_in_file(reached.point.line) or SourceLine("", 0)
    return (line.file, line.line, reached.point)


# Notes in the terminal.

_ROUNDS = {"none": "0", "one": "1", "several": "several"}

#: What a point is called, by its kind.
_NOUNS = {
    "branch": "the condition",
    "loop": "the loop",
    "ring": "the ring",
    "mask": "the mask",
    "block": "the block",
    "revisit": "the block",
    "wait": "the wait",
}


def gap_of(reached: Reached) -> str:
    """Say what no run did at a point, such as ``buf of 4 slots was never used again (k.py:9)``."""
    return f"{_subject(reached)} {_never(reached)} ({place_of(reached.point)})"


def reasons_of(reached: Reached) -> str:
    """Say why examples that were made for the missing ways did not go them; "" if none were."""
    return "; ".join(
        dict.fromkeys(reached.why[way] for way in reached.missing if way in reached.why)
    )


def _subject(reached: Reached) -> str:
    """Name a point by its condition or reference, as far as it has one."""
    name = f"`{reached.condition}`" if reached.condition else reached.point.name
    noun = _NOUNS[reached.point.kind]
    if reached.point.kind == "ring":
        return f"{name or noun} of {number(reached.slots, 'slot')}"
    if reached.point.kind == "branch":
        return name or noun
    return f"{noun} {name}".rstrip()


def _never(reached: Reached) -> str:
    """Say what a point never did."""
    kind, missing = reached.point.kind, reached.missing
    ways = " or ".join(missing)
    if not any(reached.counts.values()):
        return "was never used" if kind == "ring" else "never ran"
    if kind == "loop":
        rounds = " or ".join(_ROUNDS[way] for way in missing)
        return f"never had {rounds} round{'' if rounds == '1' else 's'}"
    if kind in ("ring", "revisit"):
        return f"was never {'used' if kind == 'ring' else 'visited'} again"
    if kind == "block":
        return "was never whole" if "whole" in missing else "never hung over its array"
    if kind == "wait":
        return "never blocked" if "blocked" in missing else "always blocked"
    return f"was never {ways}" if not missing[0].isdecimal() else f"never took branch {ways}"


def notes(kernels: Sequence[KernelCoverage], *, every: bool = False) -> list[str]:
    """Say what never ran: a line for each of the first kernels, for each one with ``every``."""
    lines: list[str] = []
    missed = [kernel for kernel in kernels if kernel.finished and kernel.missing]
    shown = missed if every else missed[:_KERNELS]
    for kernel in shown:
        # What is inside of a branch that never ran is said with that.
        points = by_point(kernel.reached)
        gaps = [one for one in kernel.reached if one.missing and not _is_inside(one, points)]
        texts = [_with_reasons(one, every=every) for one in (gaps if every else gaps[:_POINTS])]
        more = len(gaps) - len(texts)
        texts += [f"{more} more"] if more else []
        lines.append(f"never ran: {kernel.kernel}: {'; '.join(texts)}")
    if len(shown) < len(missed):
        lines.append(f"never ran: parts of {number(len(missed) - len(shown), 'more kernel')}")
    if lines and not every:
        lines[-1] += " (-v lists all, --pallas-coverage=FILE writes them)"
    for kernel in kernels:
        lines += [
            f"unreached= of {kernel.kernel}: {key!r} was reached: remove it" for key in kernel.stale
        ]
        lines += [
            f"unreached= of {kernel.kernel}: {key!r} is about nothing that ran here: correct it, "
            "or run the backend that has it"
            for key in (kernel.idle if kernel.finished and not kernel.complete else ())
        ]
        if every:
            excused = [f"{way} at {place_of(point)}: {why}" for point, way, why in kernel.excused]
            lines += [f"unreached= of {kernel.kernel}: {text}" for text in excused]
            lines += [f"cannot run: {kernel.kernel}: {text}" for text in kernel.unreachable]
    return lines


def _is_inside(reached: Reached, points: Mapping[Point, Reached]) -> bool:
    """Return whether a point is inside of a branch or loop that is missing itself."""
    return any(
        outer.missing for point, _ in reached.within if (outer := points.get(point)) is not None
    )


def _with_reasons(reached: Reached, *, every: bool) -> str:
    why = reasons_of(reached)
    return (
        f"{gap_of(reached)}: {why}" if why and (every or len(why) <= _REASON) else gap_of(reached)
    )


def summary(kernels: Sequence[KernelCoverage]) -> str:
    """Count the ways that were gone, in one line."""
    gone = sum(kernel.gone for kernel in kernels)
    ways = gone + sum(kernel.missing for kernel in kernels)
    points = sum(len(kernel.reached) for kernel in kernels)
    return (
        f"coverage: {gone:,} of {ways:,} ways at {number(points, 'point')} of "
        f"{number(len(kernels), 'kernel')}"
    )


def shortfall(kernels: Sequence[KernelCoverage], least: float) -> Iterator[str]:
    """Yield that fewer than ``least`` percent of the ways were gone, if so."""
    gone, missing = (sum(getattr(one, name) for one in kernels) for name in ("gone", "missing"))
    if least and not kernels:
        yield f"coverage is to be {least:g} %, and no kernel ran on a simulator"
    elif 100 * gone < least * (gone + missing):
        percent = math.floor(1000 * gone / (gone + missing)) / 10
        yield f"coverage is to be {least:g} %, and {percent:g} % of the ways were gone"


def wrong_keys(kernels: Sequence[KernelCoverage]) -> Iterator[str]:
    """Say which keys of ``unreached=`` are about nothing in a kernel; for each it is an error.

    Only of kernels that ran on each simulator that their spec claims.
    """
    for kernel in kernels:
        for key in kernel.idle if kernel.complete else ():
            yield (
                f"unreached= of {kernel.kernel}: {key!r} is no condition, line or name of its "
                "kernels: correct it, or remove it"
            )


@section("coverage", quiet=False)
def section_of_coverage(results: Results) -> Iterator[str]:
    """What ran of the kernels, in one line."""
    if kernels := covered(results.executed):
        yield summary(kernels)


@section("unreached", quiet=False)
def section_of_unreached(results: Results) -> Iterator[Line]:
    """What never ran, unless one example was run alone."""
    if not results.session.options.replay:
        for line in notes(covered(results.executed), every=results.every):
            yield Line(line, "yellow")


# Lines of source code.


@dataclass
class CoveredLine:
    """A line of a kernel with points, or inside of a branch that never ran.

    Attributes:
      count: how often a run came there.
      points: its points.
    """

    count: int = 0
    points: list[Reached] = field(default_factory=list[Reached])

    @property
    def state(self) -> str:
        """``"never"``, ``"partly"``, ``"reached"``, or ``"excused"`` if it need not run."""
        missing = any(point.missing for point in self.points)
        if not self.count:
            return "never" if missing or not self.points else "excused"
        return "partly" if missing else "reached"

    @property
    def remark(self) -> str:
        """The ways with how often they were gone, for a reader of the line."""
        return "; ".join(map(_counts_of, self.points))


def _counts_of(reached: Reached) -> str:
    """Write the ways of a point with how often they were gone: ``true 12 times, false never``."""
    point, titles = reached.point, _TITLES if reached.point.kind == "loop" else {}
    numbers = {way: reached.counts.get(way) for way in ways_of(reached)}
    counts = [
        f"{titles.get(way, way)} {f'{count:,} times' if count else 'never'}"
        for way, count in numbers.items()
    ]
    counts = counts or ["need not run"]
    named = f"{_KINDS.get(point.kind, '')} {point.name}".strip()
    return f"{named} {', '.join(counts)}".strip()


_KINDS = {"ring": "ring", "mask": "mask", "block": "block", "revisit": "visit of", "wait": "wait"}
_TITLES = {"none": "0 rounds", "one": "1 round"}


def covered_lines(reached: Iterable[Reached]) -> dict[str, dict[int, CoveredLine]]:
    """Return the lines with points, by file and number; points without a line are left out.

    What is inside of a ``pl.when`` that was never true is there, too, without points.
    """
    files: dict[str, dict[int, CoveredLine]] = {}
    for one in sorted(reached, key=_order):
        at = line_in_file(one.point.line)
        if at is not None:
            line = files.setdefault(at.file, {}).setdefault(at.line, CoveredLine())
            line.count = max(line.count, sum(one.counts.values()))
            line.points.append(one)
    for file, lines in files.items():
        lines |= {number: CoveredLine() for number in _never_run(file, lines)}
        files[file] = dict(sorted(lines.items()))
    return files


def _never_run(file: str, lines: Mapping[int, CoveredLine]) -> set[int]:
    """Return the lines without points of functions below ``pl.when`` that were never called."""
    never = {
        number
        for number, line in lines.items()
        if any(one.point.kind == "branch" and "true" in one.missing for one in line.points)
    }
    code = code_of(file) if never else []
    inside = {
        number
        for node in ast.walk(_parsed(code))
        if isinstance(node, ast.FunctionDef)
        for part in node.decorator_list
        if never.intersection(range(part.lineno, (part.end_lineno or part.lineno) + 1))
        for number in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
    }
    empty = {number for number in inside if code[number - 1].strip()[:1] in ("", "#")}
    return inside - empty - set(lines)


def code_of(file: str) -> Sequence[str]:
    """Return the lines of a Python file; none of one that cannot be read, or is no such file.

    The path may be of a results file: nothing else gets from this machine into a report.
    """
    is_code = file.endswith(".py") or file in linecache.cache
    return linecache.getlines(file) if is_code else []


def _parsed(code: Sequence[str]) -> ast.Module:
    """Parse a file; an empty module if that fails."""
    try:
        return ast.parse("".join(code))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


#: Number of lines of source code of a kernel, and of lines around a point outside of functions.
_LINES, _AROUND = 400, 3


@dataclass(frozen=True)
class CoveredSource:
    """A part of a file with points.

    Attributes:
      file: its path.
      rows: the number of each line, its text, and what ran there; None for lines without points.
    """

    file: str
    rows: Sequence[tuple[int, str, CoveredLine | None]]


def covered_sources(kernel: KernelCoverage) -> list[CoveredSource]:
    """Return the functions of a kernel that have points, as far as their files can be read.

    Of a file that cannot, and beyond a limit, the lines with points are there without their text.
    """
    sources: list[CoveredSource] = []
    left = _LINES
    for file, lines in covered_lines(kernel.reached).items():
        code = code_of(file)
        shown = sorted(_functions_around(code, lines))
        text = {number: code[number - 1].rstrip() for number in shown[:left]}
        left -= len(text)
        numbers = sorted({*text, *lines})
        rows = [(number, text.get(number, ""), lines.get(number)) for number in numbers]
        sources.append(CoveredSource(file, rows))
    return sources


def _functions_around(code: Sequence[str], lines: Collection[int]) -> set[int]:
    """Return the numbers of lines of the outermost functions around some lines, or near to them."""
    outer = [
        range(min([node, *node.decorator_list], key=lambda part: part.lineno).lineno, end + 1)
        for node in _outermost(_parsed(code))
        if (end := node.end_lineno)
    ]
    shown: set[int] = set()
    for line in lines:
        near = range(line - _AROUND, line + _AROUND + 1)
        shown.update(next((function for function in outer if line in function), near))
    return shown & set(range(1, len(code) + 1))


def _outermost(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module that are in no other one, also those of classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        else:
            yield from _outermost(node)


# LCOV, for tools that show coverage.


def described(kernels: Sequence[KernelCoverage]) -> str:
    """Say how much a tracefile has."""
    gone, missing = (sum(getattr(one, name) for one in kernels) for name in ("gone", "missing"))
    text = f"{gone:,} of {gone + missing:,} ways" if kernels else "no simulator ran one"
    without = sum(not line_in_file(one.point.line) for kernel in kernels for one in kernel.reached)
    if without:
        text += f"; {number(without, 'point')} left out, in code without a file"
    return f"coverage of {number(len(kernels), 'kernel')} ({text})"


def lcov(kernels: Sequence[KernelCoverage], root: Path) -> Iterator[str]:
    """Yield the lines of an LCOV tracefile.

    Args:
      kernels: their coverage. What several kernels share is reached if one of them reaches it.
      root: files below this folder are written relative to it, as ``coverage lcov`` does.
    """
    shared = merged(
        [replace(one, point=one.point._replace(kernel="")) for one in kernel.reached]
        for kernel in kernels
    )
    for file, lines in sorted(covered_lines(shared).items()):
        path = Path(file)
        lines = {number: line for number, line in lines.items() if line.state != "excused"}
        yield "TN:\n"
        yield f"SF:{os.path.relpath(path, root) if path.is_relative_to(root) else path}\n"
        ways = [
            (line, block, way, point.counts.get(name, 0) if covered_line.count else None)
            for line, covered_line in lines.items()
            for block, point in enumerate(covered_line.points)
            for way, name in enumerate(ways_of(point))
        ]
        for line, block, way, count in ways:
            yield f"BRDA:{line},{block},{way},{'-' if count is None else count}\n"
        yield f"BRF:{len(ways)}\nBRH:{sum(bool(count) for *_, count in ways)}\n"
        for line, covered_line in lines.items():
            yield f"DA:{line},{covered_line.count}\n"
        yield f"LF:{len(lines)}\nLH:{sum(bool(line.count) for line in lines.values())}\n"
        yield "end_of_record\n"
