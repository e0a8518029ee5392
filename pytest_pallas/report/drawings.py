"""Draw the pictures of the report as SVG, without a library, a script or a further file.

The module begins with elements, which escape their text, and with an array as a matrix of cells.
Error maps, masks and ids are made of such cells; then come the blocks of a grid, races and
deadlocks. Bars and charts are in ``report.charts``.

The data comes from ``report.pictures``, often through a file of another run. Numbers that do not
fit together raise ``ArithmeticError``, ``LookupError``, ``TypeError`` or ``ValueError``; an absurd
size must not cost time or memory. Cells have colours of their own; all other colours are those of
the page's style sheet, by class.
"""

from __future__ import annotations

import base64
import itertools
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pallas_sim.findings import Access, Owner, Wait, short


class Svg(str):
    """Text that is SVG already: Jinja does not escape it again."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the text, which was escaped when it was made."""
        return str(self)


def element(name: str, *children: str, **attributes: object) -> Svg:
    """Make an element from ``class_="t"``, ``text_anchor="end"``; None is left out."""
    pairs = [
        f'{key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inner = "".join(c if isinstance(c, Svg) else escape(clean(c)) for c in children)
    return Svg(f"<{' '.join([name, *pairs])}>{inner}</{name}>")


def picture(width: float, height: float, title: str, *children: Svg, **attributes: object) -> Svg:
    """Make a whole picture, with a title for screen readers."""
    return element(
        "svg",
        element("title", title),
        *children,
        viewBox=f"0 0 {_text(width)} {_text(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=title,
        **attributes,
    )


def text(x: float, y: float, label: str, *, anchor: str = "start", kind: str = "t") -> Svg:
    """Draw text at a position, in the style ``kind`` of the page."""
    return element("text", label, x=x, y=y, text_anchor=anchor, class_=kind)


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Svg:
    """Draw a rectangle with a tooltip."""
    children = [element("title", title)] if title else []
    return element("rect", *children, x=x, y=y, width=width, height=height, class_=kind)


def line(x: float, y: float, x2: float, y2: float, kind: str) -> Svg:
    """Draw a line from one point to another."""
    return element("line", x1=x, y1=y, x2=x2, y2=y2, class_=kind)


def cut(label: str, most: int) -> str:
    """Cut text at its beginning, because the end of a path is the most useful part."""
    return label if len(label) <= most else "…" + label[-(most - 1) :]


def clean(label: str) -> str:
    """Replace control characters, which HTML does not allow."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in label)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return clean(str(value))


def squares(
    x: float, y: float, step: float, *entries: tuple[str, str], kind: str = "t"
) -> Iterator[Svg]:
    """Draw squares in styles of the page, with their labels; ``step``: width of a character."""
    for square, label in entries:
        yield rect(x, y, 10, 10, square)
        yield text(x + 15, y + 9, label, kind=kind)
        x += 24 + step * len(label)


# An array of any rank as a matrix of cells: rows of its last axis.

#: Width of a character of a small label, in the units of the picture.
CHARACTER = 6.0

#: The largest picture of an array.
_WIDTH, _HEIGHT, _LEAST = 440.0, 300.0, 44.0

#: Limit on the parts of one block that are drawn: a block of an array of rank 4 may have many.
_PARTS = 64


@dataclass(frozen=True)
class Matrix:
    """Positions of the elements of an array in a picture.

    Attributes:
      shape: of the array.
      x: where it begins.
      y: where it begins.
    """

    shape: tuple[int, ...]
    x: float = 40.0
    y: float = 18.0

    @property
    def rows(self) -> int:
        """Rows of the last axis."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """The size of the last axis."""
        return self.shape[-1] if self.shape else 1

    @property
    def width(self) -> float:
        """Of the picture of the array."""
        wide = self.columns * _HEIGHT / max(1, self.rows)
        return min(_WIDTH, max(_LEAST, wide))

    @property
    def height(self) -> float:
        """Of the picture of the array."""
        high = self.rows * self.width / max(1, self.columns)
        return min(_HEIGHT, max(_LEAST, high))

    def box(self, kind: str) -> Svg:
        """Draw a rectangle of the whole array."""
        return rect(self.x, self.y, self.width, self.height, kind)

    def frame(self) -> Iterator[Svg]:
        """Draw a frame, with the first and the last index of both sides."""
        right, bottom = self.x + self.width, self.y + self.height
        yield self.box("frame")
        yield text(self.x, self.y - 5, "0")
        yield text(right, self.y - 5, f"{self.columns:,}", anchor="end")
        yield text(self.x - 5, self.y + 10, "0", anchor="end")
        yield text(self.x - 5, bottom, f"{self.rows:,}", anchor="end")

    def block(
        self, starts: Sequence[int], lengths: Sequence[int], kind: str, tooltip: str, label: str
    ) -> Iterator[Svg]:
        """Draw a block, with its label if there is room."""
        for x, y, width, height in self.parts(starts, lengths):
            yield rect(x, y, width, height, kind, tooltip)
            if label and width >= 10 + CHARACTER * len(label) and height >= 14:
                yield text(x + 3, y + 12, label, kind="t halo")

    def position(self, row: float, column: float) -> tuple[float, float]:
        """Compute the position of an element."""
        return (
            self.x + self.width * column / max(1, self.columns),
            self.y + self.height * row / max(1, self.rows),
        )

    def parts(
        self, starts: Sequence[int], lengths: Sequence[int]
    ) -> Iterator[tuple[float, float, float, float]]:
        """Compute the rectangles (x, y, width, height) of a block inside of the array."""
        if len(starts) != len(self.shape):
            return
        whole = [(0, 1)] * (2 - len(starts))
        spans = [
            (max(0, s), min(s + n, size))
            for s, n, size in zip(starts, lengths, self.shape, strict=True)
        ]
        *leading, (top, bottom), (left, right) = [*whole, *spans]
        if bottom <= top or right <= left:
            return
        sizes = self.shape[:-2]
        rows = self.shape[-2] if len(self.shape) > 1 else 1
        # a damaged file may have more indices of an axis than can be listed
        parts = itertools.product(*(range(a, min(b, a + _PARTS)) for a, b in leading))
        for indices in itertools.islice(parts, _PARTS):
            first = 0
            for index, size in zip(indices, sizes, strict=True):
                first = first * size + index
            x, y = self.position(first * rows + top, left)
            x2, y2 = self.position(first * rows + bottom, right)
            yield x, y, x2 - x, y2 - y


# Cells as a PNG of a few colours: a hundred times smaller than as many rectangles. The format needs
# no more than this (https://www.w3.org/TR/png-3/), and Pillow would be a dependency for one call.

#: A colour with its opacity, each of the four from 0 to 255.
Color = tuple[int, int, int, int]


def pixels(rows: Sequence[bytes], palette: Sequence[Color], **box: float) -> Svg:
    """Draw rows of palette indices as an image of one pixel each, stretched to a box."""
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0),
        b"PLTE": b"".join(bytes(color[:3]) for color in palette),
        b"tRNS": bytes(color[3] for color in palette),
        b"IDAT": zlib.compress(b"".join(b"\0" + row for row in rows), 9),
        b"IEND": b"",
    }
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    )
    source = "data:image/png;base64," + base64.b64encode(png).decode("ascii")
    return element("image", **box, preserveAspectRatio="none", href=source, class_="pixels")


#: Allowed errors, from the smallest; visible on white and on black.
_RIGHT: tuple[Color, ...] = ((120, 144, 168, 50), (96, 128, 160, 150))

#: Wrong elements, from the smallest error to the largest.
_WRONG: tuple[Color, ...] = (
    (250, 204, 80, 255), (246, 150, 40, 255), (236, 92, 48, 255), (206, 32, 72, 255),
)  # fmt: skip

_NOTHING: Color = (0, 0, 0, 0)
_CLASS: Color = (148, 70, 216, 255)

#: Limit on the lines between blocks; more would be a grey area.
_LINES = 64


def heat(errors: Mapping[str, Any], programs: Mapping[str, Any] | None = None) -> Svg:
    """Draw the error map of an output: the worst error of each cell, wrong blocks framed.

    Args:
      errors: ``pictures["errors"]``.
      programs: ``pictures["programs"]``, if known.
    """
    shape = tuple(int(n) for n in errors["shape"])
    matrix = Matrix(shape)
    rows: Sequence[str] = errors["rows"]
    strange = any("!" in row for row in rows)
    palette, index, (low, high) = _palette(rows)
    parts = [matrix.box("paper"), _cells_of(matrix, errors, palette, index)]
    if programs:
        parts += _blocks(matrix, programs)
    parts += [*matrix.frame(), *_legend(matrix, errors, low, high, strange)]
    width = max(matrix.x + matrix.width + 30, 400.0)
    title = (
        f"Error map of {errors['output']}, {errors['dtype']}{list(shape)}: "
        f"{errors['wrong']:,} of {math.prod(shape):,} elements are wrong"
    )
    return picture(width, matrix.y + matrix.height + (50 if strange else 32), title, *parts)


def _cells_of(
    matrix: Matrix, errors: Mapping[str, Any], palette: Sequence[Color], index: Mapping[str, int]
) -> Svg:
    """Draw the cells. An inner picture cuts off the parts of the last cells beyond the array."""
    rows: Sequence[str] = errors["rows"]
    high, wide = errors["cell"]
    image = pixels(
        [bytes(index[letter] for letter in row) for row in rows],
        palette,
        width=matrix.width * len(rows[0]) * wide / max(1, matrix.columns),
        height=matrix.height * len(rows) * high / max(1, matrix.rows),
    )
    return element("svg", image, x=matrix.x, y=matrix.y, width=matrix.width, height=matrix.height)


def _palette(rows: Sequence[str]) -> tuple[list[Color], dict[str, int], tuple[int, int]]:
    """Choose colours; returns them, their indices by letter, and the levels of wrong cells."""
    letters = sorted(set("".join(rows)))
    wrong = [ord(c) - ord("A") + 1 for c in letters if c.isupper()]
    low, high = min(wrong, default=1), max(wrong, default=LEVELS)

    def color(letter: str) -> Color:
        if letter == "!":
            return _CLASS
        if letter.isupper():
            level = ord(letter) - ord("A") + 1
            return _between(_WRONG, (level - low) / (high - low) if high > low else 1.0)
        share = (ord(letter) - ord("a")) / LEVELS
        return _between(_RIGHT, share) if letter.islower() else _NOTHING

    index = {letter: number for number, letter in enumerate(letters)}
    return [color(letter) for letter in letters], index, (low, high)


def _between(colors: Sequence[Color], share: float) -> Color:
    """Interpolate a colour between the first and the last."""
    position = min(max(share, 0.0), 1.0) * (len(colors) - 1)
    first = min(int(position), len(colors) - 2)
    pairs = zip(colors[first], colors[first + 1], strict=True)
    r, g, b, a = (round(c + (position - first) * (d - c)) for c, d in pairs)
    return r, g, b, a


def _blocks(matrix: Matrix, programs: Mapping[str, Any]) -> Iterator[Svg]:
    """Draw lines between the blocks, and a frame around each wrong one."""
    sizes = [int(n) for n in programs["block"]]
    if len(sizes) != len(matrix.shape) or not sizes:
        return
    yield from _lines(matrix, sizes)
    for block in programs["wrong"]:
        starts = [int(i) * n for i, n in zip(block["block"], sizes, strict=True)]
        names = ", ".join(point(program) for program in block["programs"])
        tooltip = f"program {names or 'unknown'}: {block['wrong']:,} wrong elements"
        yield from matrix.block(starts, sizes, "wrong-block", tooltip, names)


def _lines(matrix: Matrix, sizes: Sequence[int]) -> Iterator[Svg]:
    rows = matrix.shape[-2] if len(matrix.shape) > 1 else 1
    high = max(1, sizes[-2] if len(sizes) > 1 else 1)
    batches, steps = matrix.rows // max(1, rows), range(0, rows, high)
    across = range(0, matrix.columns, max(1, sizes[-1]))
    marks: list[str] = []
    right, bottom = matrix.x + matrix.width, matrix.y + matrix.height
    if 1 < batches * len(steps) <= _LINES:
        down = [b * rows + r for b in range(batches) for r in steps]
        marks += [f"M{matrix.x:.1f} {matrix.position(r, 0)[1]:.1f}H{right:.1f}" for r in down[1:]]
    if 1 < len(across) <= _LINES:
        columns = (matrix.position(0, column)[0] for column in across[1:])
        marks += [f"M{x:.1f} {matrix.y:.1f}V{bottom:.1f}" for x in columns]
    if marks:
        yield element("path", d="".join(marks), class_="block-line")


def _legend(
    matrix: Matrix, errors: Mapping[str, Any], low: int, high: int, classes: bool
) -> Iterator[Svg]:
    y = matrix.y + matrix.height + 14
    if not errors["measured"]:
        yield _swatch(matrix.x, y, _WRONG[-1], "holds wrong elements")
        return
    yield _swatch(matrix.x, y, _between(_RIGHT, 0.5), "allowed")
    if any(c.isupper() for row in errors["rows"] for c in row):
        for step in range(24):
            x, color = matrix.x + 72 + 4 * step, _hex(_between(_WRONG, step / 23))
            yield element("rect", x=x, y=y, width=4, height=10, fill=color)
        # The last level has no upper end.
        last = high == LEVELS
        worst = f"≥ {short_number(lower(high))}" if last else f"< {short_number(lower(high + 1))}"
        unit = " ulps" if errors["unit"] == "ulps" else ""
        yield text(matrix.x + 174, y + 9, f"wrong: {short_number(lower(low))} to {worst}{unit}")
    if classes:
        yield _swatch(matrix.x, y + 18, _CLASS, "NaN or infinite on one side only")


def _swatch(x: float, y: float, color: Color, label: str) -> Svg:
    opacity = f"{color[3] / 255:.2f}"
    box = element("rect", x=x, y=y, width=10, height=10, fill=_hex(color), fill_opacity=opacity)
    return element("g", box, text(x + 15, y + 9, label))


def _hex(color: Color) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color[:3])


# Masks and ids: a cell for each element.

#: Of False and True; visible on white and on black.
_MASK: tuple[Color, ...] = ((120, 144, 168, 50), (60, 120, 200, 255))

#: Of ids in their order: neighbors differ, and later ones repeat.
_IDS: tuple[Color, ...] = (
    (60, 120, 200, 255), (246, 150, 40, 255), (72, 160, 96, 255), (206, 32, 72, 255),
    (148, 70, 216, 255), (120, 144, 168, 255), (250, 204, 80, 255),
)  # fmt: skip


def cells(argument: Mapping[str, Any]) -> Svg:
    """Draw the cells of an entry of ``pictures["arguments"]``."""
    rows: list[str] = argument["rows"]
    mask = argument["role"] == "mask"
    indices = [
        bytes(int(letter) if mask else (ord(letter) - ord("a")) % len(_IDS) for letter in row)
        for row in rows
    ]
    x, y, width, height = 34.0, 18.0, 7.0 * len(rows[0]), 7.0 * len(rows)
    image = pixels(indices, _MASK if mask else _IDS, x=x, y=y, width=width, height=height)
    parts = [
        rect(x, y, width, height, "paper"),
        image,
        rect(x, y, width, height, "frame"),
        text(x, y - 5, "column 0", kind="t small"),
        text(x - 5, y + 9, "row 0", anchor="end", kind="t small"),
    ]
    title = f"{argument['where']}: {argument['words']}"
    return picture(max(x + width + 10, 120.0), y + height + 8, title, *parts)


# Numbers.

#: Levels of errors: ``a`` is below 2**-3 ulps, each next one doubles, ``z`` is everything beyond.
LEVELS = 26


def lower(level: int) -> float:
    """Compute the smallest error of a level from 1 to ``LEVELS``, in ulps."""
    return 0.0 if level <= 1 else 2.0 ** (level - 5)


def short_number(number: float) -> str:
    """Format a number in a few characters."""
    if not math.isfinite(number):
        return "∞"
    if number >= 1e6 or 0 < number < 0.01:
        return f"{number:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    if number >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.3g}"


def number(value: float | str | None) -> float | None:
    """Read a number of a record, where infinities are texts as JSON has none."""
    return None if value is None else float(value)


# The blocks of a grid; races and deadlocks.


def grid(operand: Mapping[str, Any]) -> Svg:
    """Draw an operand with the blocks of its programs; parts without a block are hatched."""
    shape = tuple(int(n) for n in operand["shape"])
    matrix = Matrix(shape)
    blocks: dict[tuple[tuple[int, ...], tuple[int, ...]], list[list[int]]] = {}
    for program, starts, lengths in operand["programs"]:
        blocks.setdefault((tuple(starts), tuple(lengths)), []).append(program)
    shown = [list(program) for program in operand["shown"]]
    parts = [matrix.box("uncovered")]
    verb = "written" if operand["output"] else "read"
    for (starts, lengths), programs in blocks.items():
        beyond = any(
            s < 0 or s + n > size for s, n, size in zip(starts, lengths, shape, strict=True)
        )
        accused = any(program in shown for program in programs)
        several = operand["output"] and len(programs) > 1
        kind = "block-bad" if accused else "block-twice" if several else "block"
        names = ", ".join(map(point, programs[:3])) + (" …" if len(programs) > 3 else "")
        tooltip = f"{verb} by program {names}" + ("; reaches beyond the array" if beyond else "")
        parts += matrix.block(starts, lengths, kind, tooltip, names)
    bottom = matrix.y + matrix.height
    key = (("uncovered", f"never {verb}"), ("block", f"{verb} once"),
           ("block-twice", "several programs"), ("block-bad", "finding"))  # fmt: skip
    parts += [*matrix.frame(), *squares(matrix.x, bottom + 12, 6.3, *key, kind="t small")]
    title = f"Blocks of {operand['operand']} {list(shape)}, by {operand['count']:,} programs"
    return picture(max(matrix.x + matrix.width + 24, 400.0), bottom + 30, title, *parts)


_GRID_WIDTH = 520.0

#: Limit on the waits that are drawn.
MOST_WAITS = 16


def timeline(accesses: Sequence[Access]) -> Svg:
    """Draw the two accesses of a race, a lane for each; their order is not determined."""
    parts: list[Svg] = [text(112, 14, "time", kind="t"), _arrow(142, 10, _GRID_WIDTH - 8, 10)]
    for lane, access in enumerate(accesses):
        y = 34.0 + 74 * lane
        x = 112.0 + 150 * lane
        parts += [
            text(0, y + 22, cut(_who(access), 17)),
            text(0, y + 37, cut(_where(access), 17), kind="t"),
            line(112, y + 25, _GRID_WIDTH - 8, y + 25, "rule"),
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
    return picture(_GRID_WIDTH, 170, title, *parts)


#: Of a lane, of the names of lanes, and the width of a moment at most.
_LANE, _NAMES, _MOMENT = 26.0, 150.0, 36.0


def order(run: Mapping[str, Any]) -> Svg:
    """Draw waits, signals and copies of a run in their order, a lane for each core."""
    lanes, spans = run["lanes"], run["spans"]
    most = max((span["end"] for span in spans), default=0) + 1
    wide = min(_MOMENT, max(6.0, 700.0 / most))
    right, bottom = _NAMES + wide * most, 24.0 + _LANE * len(lanes)

    def middle(span: Mapping[str, Any]) -> float:
        return 24 + _LANE * (span["lane"] + 0.5)

    parts: list[Svg] = [text(_NAMES, 12, "time"), _arrow(_NAMES + 34, 8, right, 8)]
    for lane, name in enumerate(lanes):
        y = 24 + _LANE * (lane + 0.5)
        parts += [text(0, y + 4, cut(name, 22)), line(_NAMES, y, right, y, "rule")]
    for span in spans:
        kind = "access-write" if span["stuck"] else f"order-{span['kind']}"
        tooltip = f"{span['name']} at {span['line']}" + (", did not end" if span["stuck"] else "")
        x, width = _NAMES + wide * span["begin"], wide * (span["end"] - span["begin"] + 0.7)
        parts.append(rect(x, middle(span) - 8, width, 16, kind, tooltip))
    for first, second in run["arrows"]:
        source, target = spans[first], spans[second]
        begin = _NAMES + wide * (source["end"] + 0.35)
        end = _NAMES + wide * (target["end"] + 0.35)
        parts.append(line(begin, middle(source), end, middle(target), "axis"))
    for moment, what in run["turns"]:
        x = _NAMES + wide * min(moment, most)
        tooltip = element("title", what)
        parts.append(element("path", tooltip, d=f"M{x:.1f} 20V{bottom:.1f}", class_="bad-line"))
    key = (("order-wait", "wait"), ("order-signal", "signal"), ("order-copy", "copy"),
           ("access-write", "never ends"))  # fmt: skip
    parts += squares(_NAMES, bottom + 8, 7.0, *key)
    title = f"The order of a run: {len(spans)} waits, signals and copies on {len(lanes)} lanes"
    return picture(max(right + 10, 480.0), bottom + 26, title, *parts)


def part(access: Access) -> str:
    """Name the part of a buffer that is accessed: ``o_ref[0:8]``."""
    index = ", ".join(f"{start}:{stop}" for start, stop in access.index)
    return (access.ref or "memory") + (f"[{index}]" if index else "")


def point(program: Sequence[int]) -> str:
    """Format a grid point: ``(0, 1)``; "" outside of a grid."""
    return f"({', '.join(map(str, program))})" if program else ""


def _who(access: Access) -> str:
    """Name the owner of an access."""
    return _name(access.owner) + (", copy" if access.copy else "")


def _name(owner: Owner) -> str:
    if owner.thread:
        return owner.thread if owner.device == 0 else str(owner)
    return f"device {owner.device}" + ("" if owner.core is None else f" core {owner.core}")


def _where(access: Access) -> str:
    """Name the device of the memory, or the program of the access."""
    if access.home is not None and access.home != access.owner.device:
        return f"to device {access.home}"
    return f"program {point(access.program)}" if access.program else ""


def graph(waits: Sequence[Wait]) -> Svg:
    """Draw blocked cores (left), and the semaphores and barriers that they wait for (right)."""
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
    return picture(_GRID_WIDTH, 70.0 * count, title, *parts)


def resource(wait: Wait) -> str:
    """Name the resource of a wait; "" at the end of the kernel."""
    if not wait.on and wait.unit == "arrivals":
        return f"the barrier at {short(wait.line) or 'an unknown line'}"
    return wait.on


def _middle(row: int, rows: int, count: int) -> float:
    """Compute the height of one of ``rows`` boxes beside ``count`` others."""
    return 35.0 + 70 * (row + (count - rows) / 2)


def _arrow(x: float, y: float, x2: float, y2: float, *, bad: bool = False) -> Svg:
    kind = "bad-line" if bad else "axis"
    shaft = line(x, y, x2 - 6, y2, kind)
    head = f"M{x2:.1f} {y2:.1f}l-8 -4v8z"
    return element("g", shaft, element("path", d=head, class_=f"head {kind}"))
