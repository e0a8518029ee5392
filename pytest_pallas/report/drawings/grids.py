"""Blocks of an operand and the number of their writes; races and deadlocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pallas_sim.findings import Access, Owner, Wait, short
from pytest_pallas.report.drawings.matrix import Matrix
from pytest_pallas.report.drawings.svg import Svg, cut, element, line, picture, rect, text

_NAMED = (40.0, 14.0)


def grid(operand: Mapping[str, Any]) -> Svg:
    """An operand with the blocks of its programs; parts without a block stay hatched."""
    shape = tuple(int(n) for n in operand["shape"])
    matrix = Matrix(shape)
    blocks: dict[tuple[tuple[int, ...], tuple[int, ...]], list[list[int]]] = {}
    for program, starts, lengths in operand["programs"]:
        blocks.setdefault((tuple(starts), tuple(lengths)), []).append(program)
    shown = [list(program) for program in operand["shown"]]
    parts = [rect(matrix.x, matrix.y, matrix.width, matrix.height, "uncovered")]
    verb = "written" if operand["output"] else "read"
    for (starts, lengths), programs in blocks.items():
        beyond = any(
            s < 0 or s + n > size for s, n, size in zip(starts, lengths, shape, strict=True)
        )
        accused = any(program in shown for program in programs)
        several = operand["output"] and len(programs) > 1
        kind = "block-bad" if accused else "block-twice" if several else "block"
        names = ", ".join(f"({', '.join(map(str, p))})" for p in programs[:3])
        names += " …" if len(programs) > 3 else ""
        tooltip = f"{verb} by program {names}" + ("; reaches beyond the array" if beyond else "")
        for x, y, width, height in matrix.parts(starts, lengths):
            parts.append(rect(x, y, width, height, kind, tooltip))
            if width >= _NAMED[0] + 6 * len(names) - 30 and height >= _NAMED[1]:
                parts.append(text(x + 3, y + 12, names, kind="t halo"))
    right, bottom = matrix.x + matrix.width, matrix.y + matrix.height
    parts += [
        rect(matrix.x, matrix.y, matrix.width, matrix.height, "frame"),
        text(matrix.x, matrix.y - 5, "0"),
        text(right, matrix.y - 5, f"{matrix.columns:,}", anchor="end"),
        text(matrix.x - 5, bottom, f"{matrix.rows:,}", anchor="end"),
    ]
    x, y = matrix.x, bottom + 12
    for kind, words in (("uncovered", f"never {verb}"), ("block", f"{verb} once"),
                        ("block-twice", "several programs"), ("block-bad", "finding")):  # fmt: skip
        parts += [rect(x, y, 10, 10, kind), text(x + 14, y + 9, words, kind="t small")]
        x += 26 + 6.2 * len(words)
    title = f"Blocks of {operand['operand']} {list(shape)}, by {operand['count']:,} programs"
    return picture(max(right + 24, 400.0), bottom + 30, title, *parts)


_WIDE = 520.0

#: Limit on the waits that are drawn.
MOST_WAITS = 16


def timeline(accesses: Sequence[Access]) -> Svg:
    """The two accesses of a race, one lane for each, at an undetermined time."""
    parts: list[Svg] = [text(112, 14, "time", kind="t"), _arrow(142, 10, _WIDE - 8, 10)]
    for lane, access in enumerate(accesses):
        y = 34.0 + 74 * lane
        x = 112.0 + 150 * lane
        parts += [
            text(0, y + 22, cut(_who(access), 17)),
            text(0, y + 37, cut(_where(access), 17), kind="t"),
            line(112, y + 25, _WIDE - 8, y + 25, "rule"),
            rect(x, y, 250, 50, f"access-{'write' if access.kind == 'write' else 'read'}"),
            text(x + 10, y + 20, cut(f"{access.kind}s {part(access)}", 32), kind="t strong"),
            text(x + 10, y + 38, cut(short(access.line), 36), kind="t small"),
        ]
    parts += [
        line(300, 84, 300, 108, "bad-line"),
        text(310, 100, "not ordered", kind="t bad"),
    ]
    first, second = (f"{_who(a)} {a.kind}s {part(a)}" for a in accesses)
    title = f"Race: {first}, and {second}; the two accesses are not ordered"
    return picture(_WIDE, 170, title, *parts)


def part(access: Access) -> str:
    """The part of a buffer that is accessed: ``o_ref[0:8]``."""
    index = ", ".join(f"{start}:{stop}" for start, stop in access.index)
    return (access.ref or "memory") + (f"[{index}]" if index else "")


def point(program: tuple[int, ...]) -> str:
    """A grid point: ``(0, 1)``; "" outside of a grid."""
    return f"({', '.join(map(str, program))})" if program else ""


def _who(access: Access) -> str:
    """The owner of an access."""
    return _name(access.owner) + (", copy" if access.copy else "")


def _name(owner: Owner) -> str:
    if owner.thread:
        return owner.thread if owner.device == 0 else str(owner)
    return f"device {owner.device}" + ("" if owner.core is None else f" core {owner.core}")


def _where(access: Access) -> str:
    """The device of the memory, or the program of the access."""
    if access.home is not None and access.home != access.owner.device:
        return f"to device {access.home}"
    return f"program {point(access.program)}" if access.program else ""


def graph(waits: Sequence[Wait]) -> Svg:
    """Blocked cores (left), what each waits for (right), and its value."""
    waits = waits[:MOST_WAITS]
    resources = list(dict.fromkeys(resource(wait) or "nothing" for wait in waits))
    count = max(len(waits), len(resources), 1)
    parts: list[Svg] = []
    for row, wait in enumerate(waits):
        y = _middle(row, len(waits), count)
        at = _middle(resources.index(resource(wait) or "nothing"), len(resources), count)
        unit = f" {wait.unit}" if wait.unit else ""
        need = f"needs {wait.needed}{unit}, has {wait.had}" if wait.needed else ""
        parts += [
            rect(2, y - 29, 190, 58, "node"),
            text(12, y - 11, cut(_name(wait.owner), 25), kind="t strong"),
            text(12, y + 5, cut(short(wait.line), 29), kind="t small"),
            text(12, y + 21, need, kind="t small"),
            _arrow(194, y, 326, at, bad=True),
        ]
    for row, name in enumerate(resources):
        y = _middle(row, len(resources), count)
        parts.append(rect(328, y - 18, 190, 36, "node resource"))
        parts.append(text(338, y + 4, cut(name, 25), kind="t strong"))
    title = "Deadlock: " + "; ".join(
        f"{wait.owner} waits for {resource(wait) or 'nothing'}" for wait in waits
    )
    return picture(_WIDE, 70.0 * count, title, *parts)


def resource(wait: Wait) -> str:
    """The resource of a wait; "" at the end of the kernel."""
    if not wait.on and wait.unit == "arrivals":
        return f"the barrier at {short(wait.line) or 'an unknown line'}"
    return wait.on


def _middle(row: int, rows: int, count: int) -> float:
    """The height of one of ``rows`` boxes beside ``count`` others."""
    return 35.0 + 70 * (row + (count - rows) / 2)


def _arrow(x: float, y: float, x2: float, y2: float, *, bad: bool = False) -> Svg:
    kind = "bad-line" if bad else "axis"
    shaft = line(x, y, x2 - 6, y2, kind)
    head = f"M{x2:.1f} {y2:.1f}l-8 -4v8z"
    return element("g", shaft, element("path", d=head, class_=f"head {kind}"))
