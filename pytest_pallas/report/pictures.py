"""Gather the data of the pictures of a failure, as plain values for its record.

The page is made after the arrays and traces of a failure are gone, often in another process. So a
record carries small pictures of them, at most about 15 KiB as JSON, and ``report.drawings`` draws
them. ``pictures_of`` gathers those of one failure: masks and ids, the blocks of a grid, and the
errors of an output.
"""

from __future__ import annotations

import bisect
import itertools
import linecache
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_sim.dtypes import Array, is_complex, is_exact, wide
from pallas_sim.errors import PallasError
from pallas_sim.findings import Finding, read, short
from pytest_pallas.backends.protocol import UNOBSERVED
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.checks.context import CheckResult, ComparedOutputs
from pytest_pallas.checks.verdict import contents_of, failing_call, raised_frames, writer_of
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import facts_of, witness_of
from pytest_pallas.grid.analysis import Analysis
from pytest_pallas.grid.model import GridCall, GridWindow, writers_of
from pytest_pallas.judge.explanation import in_words
from pytest_pallas.judge.tolerance import Comparison, measure
from pytest_pallas.report.drawings import LEVELS

if TYPE_CHECKING:
    from pytest_pallas.run.result import Result


def pictures_of(error: BaseException, builder: Result) -> dict[str, Any]:
    """Gather the pictures of a failure.

    A picture must not break its report: if one cannot be made, the entry ``unavailable`` has the
    reason.
    """
    pictures: dict[str, Any] = {}
    try:
        if isinstance(error, PallasError):
            pictures |= shown_of(error)
        pictures["examples"] = examples_of(builder)
    except Exception as problem:
        pictures["unavailable"] = f"{type(problem).__name__}: {problem}"[:300]
    return {name: value for name, value in pictures.items() if value}


def shown_of(error: PallasError) -> Mapping[str, Any]:
    """Gather the pictures of arrays and grids."""
    pictures: dict[str, Any] = {}
    if facts_of(error).failure is not None:
        if facts_of(error).failure.result is not None:
            pictures |= errors_of(facts_of(error).failure.result)
        if witness_of(error):
            pictures["order"] = order_of(error)
        pictures["arguments"] = arguments_of(facts_of(error).failure.context.arguments)
    if facts_of(error).analysis is not None:
        pictures["grids"] = grids_of(facts_of(error).analysis)
    pictures["sources"] = sources_of([*lines_of(error.findings), *_raised_at(error)])
    return pictures


def examples_of(builder: Result) -> list[dict[str, Any]]:
    """List the errors of the examples that were measured, if dims were drawn."""
    return [
        {
            "dims": dict(point.dims),
            "error": plain(point.error),
            "baseline": plain(point.baseline or 0.0),
            "failed": point.failed,
        }
        for point in builder.points
        if point.error is not None and point.dims
    ]


def plain(number: float) -> float | str:
    """Round a number to the digits that a picture needs, for JSON."""
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)


# The order of threads and copies in which a failure shows.

#: Limit on what cores and copies do in a picture; the last things are kept.
_SPANS = 120


def order_of(error: PallasError) -> dict[str, Any]:
    """Picture the run in which a failure shows: its waits, signals and copies.

    The picture has the names of its ``lanes``; the ``spans`` on them, with ``lane``, ``kind``,
    ``name``, ``line``, ``begin``, ``end`` and ``stuck``, whether it did not end; the ``arrows``
    from one span to another, by number; and the ``turns`` where the order leaves the plain one,
    each with its moment and what happened. Time counts the moments at which something happens.
    """
    backend = facts_of(error).failure.context.backend
    if not isinstance(backend, Simulator):
        return {}
    timeline, _ = backend.trace(failing_call(error).with_settings(observer=UNOBSERVED))
    timeline.close()
    every: list[Any] = [span for span in timeline.spans if span.kind in ("wait", "signal")]
    every = sorted((*every, *timeline.copies), key=lambda span: (span.begin, span.end))
    shown = every[-_SPANS:]
    lanes = _lanes(shown)
    names = sorted(set(lanes.values()))
    times = sorted({time for span in shown for time in (span.begin, span.end)})
    numbers = {id(span): number for number, span in enumerate(shown)}
    ends = [(numbers.get(id(a.source)), numbers.get(id(a.target))) for a in timeline.arrows]
    return {
        "lanes": [name for *_, name in names],
        "spans": [
            {
                "lane": names.index(lanes[id(span)]),
                "kind": getattr(span, "kind", "copy"),
                "name": span.name,
                "line": short(str(span.facts.get("line", ""))),
                "begin": times.index(span.begin),
                "end": times.index(span.end),
                "stuck": getattr(span, "unfinished", False),
            }
            for span in shown
        ],
        "arrows": [list(pair) for pair in ends if None not in pair],
        "turns": [
            [bisect.bisect_left(times, time), what]
            for time, _, what in timeline.turns
            if times and time >= times[0]
        ],
        "left_out": len(every) - len(shown),
    }


def _lanes(spans: Iterable[Any]) -> dict[int, tuple[int, int, str]]:
    """Return the lane of each span, by its id: device, number and name.

    The lanes of cores have number 0. Copies of a device that are under way at the same time have
    several.
    """
    lanes: dict[int, tuple[int, int, str]] = {}
    free: dict[tuple[int, int, str], int] = {}
    for span in spans:
        device, copy = span.owner.device, not hasattr(span, "kind")
        name = f"copies of device {device}" if copy else str(span.owner)
        numbers = itertools.count(1) if copy else (0,)
        lane = next(
            key
            for key in ((device, number, name) for number in numbers)
            if not copy or free.get(key, -1) < span.begin
        )
        free[lane] = span.end
        lanes[id(span)] = lane
    return lanes


# The source code around findings.

#: Number of places that are shown, lines before and after each, and characters of a line.
_PLACES, _AROUND, _COLUMNS = 4, 3, 160


def lines_of(findings: Iterable[Finding]) -> list[str]:
    """List the lines that findings name, ``file:line``, each once: of accesses and waits, too."""
    lines: list[str] = []
    for finding in findings:
        parts = (*finding.accesses, *finding.waits)
        lines += [finding.line, *(part.line for part in parts)]
    return list(dict.fromkeys(lines))


def _raised_at(error: PallasError) -> list[str]:
    """List the line where a kernel raised, or where the simulator could not continue."""
    line = getattr(error, "line", "")
    frames = raised_frames(facts_of(error).kernel_error)
    return [line, *(f"{frame.filename}:{frame.lineno}" for frame in frames)]


def sources_of(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Picture the source code around lines, ``file:line``, as far as it can be read.

    Each picture has the ``file``, the number of the ``first`` line that is shown, the ``lines``,
    and the numbers of those that are ``marked``. Lines that are near to each other share one.
    """
    sources: list[dict[str, Any]] = []
    for at in filter(None, map(read, lines)):
        near = [
            source
            for source in sources
            if source["file"] == at.file and 0 <= at.line - source["first"] < len(source["lines"])
        ]
        code = linecache.getlines(at.file)
        if near:
            near[0]["marked"] = sorted({*near[0]["marked"], at.line})
        elif 0 < at.line <= len(code) and len(sources) < _PLACES:
            first, last = max(1, at.line - _AROUND), min(len(code), at.line + _AROUND)
            text = [line.rstrip()[:_COLUMNS] for line in code[first - 1 : last]]
            sources.append({"file": at.file, "first": first, "lines": text, "marked": [at.line]})
    return sources


# Masks and ids among the arguments.

#: Cells of a picture along each side, at most: the first rows and columns of a larger array.
CELLS = 32

#: Number of arrays that are drawn.
_MOST = 3

#: Letters of ids: each id has one, in the order of the ids.
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def arguments_of(arguments: Arguments) -> list[dict[str, Any]]:
    """Picture the first masks and ids of a call.

    Each has ``where``, ``role``, ``words``, ``shape`` and ``rows``: a text for each row of the last
    axis, with a letter for each element. In masks, ``1`` is True and ``0`` False. In ids, equal
    letters are equal ids; letters repeat after ``z``.
    """
    return [
        {
            "where": where,
            "role": role,
            "words": in_words(array),
            "shape": list(array.shape),
            "rows": _rows(array, role),
        }
        for where, role, array in contents_of(arguments)[:_MOST]
    ]


def _rows(array: Array, role: str) -> list[str]:
    matrix = array.reshape(-1, array.shape[-1])[:CELLS, :CELLS]
    if role == "mask":
        letters = np.where(matrix, "1", "0")
    else:
        _, number = np.unique(matrix, return_inverse=True)
        letters = np.array(list(_LETTERS))[number.reshape(matrix.shape) % len(_LETTERS)]
    return ["".join(row) for row in letters.tolist()]


# The blocks that the programs of a grid read and write.

#: Number of findings whose operand is drawn.
_OPERANDS = 3

#: Number of programs of a grid that are drawn.
PROGRAMS = 256


def grids_of(analysis: Analysis) -> list[dict[str, Any]]:
    """Picture the operands of findings, with the blocks of their programs and the findings."""
    operands: dict[tuple[str, str], dict[str, Any]] = {}
    for finding in analysis.findings:
        for call in analysis.calls:
            for window in call.windows:
                key = call.call.name, window.name
                known = window.starts is not None and not window.whole and window.shape
                if not known or key != (finding.kernel, finding.operand):
                    continue
                operand = operands.setdefault(key, _drawn(call, window))
                text = {field: getattr(finding, field) for field in ("kind", "severity", "message")}
                if text not in operand["findings"] and len(operand["findings"]) < _OPERANDS:
                    operand["findings"].append(text)
                for program in ([int(i) for i in program] for program in finding.programs):
                    if program not in operand["shown"]:
                        operand["shown"].append(program)
    return list(operands.values())[:_OPERANDS]


def _drawn(call: GridCall, window: GridWindow) -> dict[str, Any]:
    """Picture an operand with the blocks of its first programs."""
    assert window.starts is not None
    lengths = np.broadcast_to(window.lengths, window.starts.shape)
    count = min(window.starts.shape[1], PROGRAMS)
    programs = [
        [
            list(call.point(number)),
            [int(n) for n in window.starts[:, number]],
            [int(n) for n in lengths[:, number]],
        ]
        for number in range(count)
    ]
    return {
        "kernel": call.call.name,
        "source": call.call.source,
        "operand": window.name,
        "output": window.output,
        "shape": list(window.shape),
        "grid": list(call.grid),
        "programs": programs,
        "count": int(window.starts.shape[1]),
        "findings": [],
        "shown": [],
    }


# A map and a histogram of the errors of an output, and the programs that wrote the wrong ones.

#: Cells of a map along each side, at most.
ERROR_CELLS = 96

#: Number of wrong blocks whose programs are looked up.
_BLOCKS = 24


@dataclass(frozen=True)
class _Measured:
    """Errors of the kernel and of the baseline in a unit; ``classes``: where the class is wrong."""

    errors: Array
    classes: Array | None
    baseline: Array
    unit: str = "ulps"


def errors_of(result: CheckResult) -> dict[str, Any]:
    """Gather the pictures of a wrong output; none without arrays to compare."""
    failed = result.failed
    if failed is None or failed.mask is None or not failed.mask.size:
        return {}
    measured = _measured(result.answer, failed)
    pictures: dict[str, Any] = {"errors": _map(failed, measured)}
    if measured is not None:
        pictures["histogram"] = {
            "kernel": _histogram(measured.errors, measured.classes),
            "baseline": _histogram(measured.baseline, None),
        }
    if result.outcome is not None and not result.subject:
        writer = writer_of(result.outcome, failed)
        if writer is not None and writer[0].eqn.primitive.name == "pallas_call":
            programs = _programs(*writer, failed)
            pictures |= {"programs": programs} if programs else {}
    return pictures


def _measured(answer: ComparedOutputs | None, failed: Comparison) -> _Measured | None:
    """Measure a kernel against the oracle; None if its arrays were not kept."""
    if answer is None:
        return None
    where = "" if failed.where == "output" else failed.where
    expected = answer.expected
    sides = [dict(leaves) for leaves in (answer.outputs, expected.oracle, expected.baseline)]
    if any(where not in side for side in sides):
        return None
    actual, oracle, baseline = (np.asarray(side[where]) for side in sides)
    if not actual.shape == oracle.shape == baseline.shape == failed.shape:
        return None
    dtype = actual.dtype
    if is_exact(dtype):
        with np.errstate(all="ignore"):
            errors = np.abs(wide(actual).astype(np.float64) - wide(baseline).astype(np.float64))
        nothing = np.zeros(0)  # the baseline is the right value
        return _Measured(errors, None, nothing, "difference")
    kind = np.complex128 if is_complex(dtype) else np.float64
    right, near = wide(oracle).astype(kind), wide(baseline).astype(kind)
    measured = measure(wide(actual), right, near, dtype)
    return _Measured(measured.errors, measured.misclassed, measured.baseline_errors)


def level(errors: Array) -> Array:
    """Compute the level of each error: 0 for no error, else 1 to ``LEVELS``."""
    with np.errstate(all="ignore"):
        levels = np.floor(np.log2(errors)) + 5
    levels = np.clip(np.nan_to_num(levels, nan=0.0, posinf=LEVELS, neginf=0.0), 1, LEVELS)
    return np.where(errors > 0, levels, 0).astype(np.int64)


def _map(failed: Comparison, measured: _Measured | None) -> dict[str, Any]:
    """Map the errors of an output, as rows of its last axis: the worst error of each cell."""
    assert failed.mask is not None
    errors, classes = (None, None) if measured is None else (measured.errors, measured.classes)
    wrong, sizes = _cells(failed.mask)
    # without measured errors, it still shows the wrong elements
    levels = wrong.astype(np.int64) if errors is None else _cells(level(errors))[0]
    other = np.zeros(wrong.shape, bool) if classes is None else _cells(classes)[0]
    rows: list[str] = []
    for line, bad, strange in zip(levels, wrong, other, strict=True):
        letters = [
            "!" if s else "." if not n and not b else chr(ord("A" if b else "a") + max(n, 1) - 1)
            for n, b, s in zip(line.tolist(), bad.tolist(), strange.tolist(), strict=True)
        ]
        rows.append("".join(letters))
    return {
        "output": failed.where or "output",
        "dtype": failed.dtype,
        "shape": list(failed.shape),
        "cell": sizes,
        "rows": rows,
        "unit": "ulps" if measured is None else measured.unit,
        "measured": errors is not None,
        "wrong": failed.wrong,
        "worst": list(failed.worst_index or ()),
    }


def _cells(values: Array) -> tuple[Array, list[int]]:
    """Reduce ``values``, as rows of the last axis, to the largest of each cell.

    Sizes of cells are powers of two, as those of most blocks are: a cell then lies in one block.

    Returns:
      The largest values, and the size of a cell.
    """
    matrix = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    sizes: list[int] = []
    for axis in (0, 1):
        least = -(-matrix.shape[axis] // ERROR_CELLS)
        size = 1 << (least - 1).bit_length()
        sizes.append(size)
        if size > 1:
            starts = np.arange(0, matrix.shape[axis], size)
            matrix = np.maximum.reduceat(matrix, starts, axis=axis)
    return matrix, sizes


def _histogram(errors: Array, classes: Array | None) -> list[int]:
    """Count the elements without an error, of each level, and of the wrong class."""
    flat = errors.ravel() if classes is None else errors[~classes]
    counts = np.bincount(level(flat), minlength=LEVELS + 1).tolist()
    return [*counts, 0 if classes is None else int(np.count_nonzero(classes))]


def _programs(kernel: Any, output: int, failed: Comparison) -> dict[str, Any]:
    """Picture the blocks with wrong elements, and the programs that wrote them."""
    assert failed.mask is not None
    if not kernel.eqn.params["grid_mapping"].grid:
        return {}  # one program
    first = np.unravel_index(int(np.argmax(failed.mask)), failed.mask.shape)
    writers = writers_of(kernel, output, [int(i) for i in first])
    if writers is None:
        return {}
    block_shape = [int(n) for n in writers[0]]
    sizes = np.array(block_shape, np.int64).reshape(-1, 1)
    where = np.array(np.nonzero(failed.mask), np.int64).reshape(len(block_shape), -1)
    blocks, counts = np.unique(where // sizes, axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_BLOCKS]
    wrong: list[dict[str, Any]] = []
    for number in sorted(order.tolist()):
        block = blocks[:, number]
        writers = writers_of(kernel, output, (block * sizes[:, 0]).tolist())
        programs = [] if writers is None else writers[2]
        wrong.append(
            {
                "block": block.tolist(),
                "programs": [list(program) for program in programs[:4]],
                "wrong": int(counts[number]),
            }
        )
    return {
        "kernel": kernel.name,
        "source": kernel.source,
        "grid": [int(n) for n in kernel.eqn.params["grid_mapping"].grid],
        "block": block_shape,
        "wrong": wrong,
        "count": int(blocks.shape[1]),
    }
