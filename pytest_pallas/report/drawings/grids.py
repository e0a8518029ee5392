"""The blocks of an operand as the static analysis sees them: how often each is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_pallas.report.drawings.matrix import Matrix
from pytest_pallas.report.drawings.svg import Svg, picture, rect, text

_NAMED = (40.0, 14.0)


def grid(operand: Mapping[str, Any]) -> Svg:
    """An operand with the blocks of its programs; what no block covers keeps its hatching."""
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
        said = f"{verb} by program {names}" + ("; reaches beyond the array" if beyond else "")
        for x, y, width, height in matrix.parts(starts, lengths):
            parts.append(rect(x, y, width, height, kind, said))
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
