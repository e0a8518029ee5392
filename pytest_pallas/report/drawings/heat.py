"""A PNG of a few colours: a hundred times smaller than as many rectangles."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_pallas.report.drawings.charts import LEVELS, lower, short
from pytest_pallas.report.drawings.matrix import Matrix
from pytest_pallas.report.drawings.svg import Svg, element, picture, rect, text

#: A colour with its opacity, each of the four from 0 to 255.
Color = tuple[int, int, int, int]


def data_uri(rows: Sequence[bytes], palette: Sequence[Color]) -> str:
    """Rows of palette indices as a ``data:`` address."""
    colors = b"".join(bytes(color[:3]) for color in palette)
    opacities = bytes(color[3] for color in palette)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    parts = ((b"IHDR", header), (b"PLTE", colors), (b"tRNS", opacities), (b"IDAT", pixels))
    body = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in (*parts, (b"IEND", b"")))
    return "data:image/png;base64," + base64.b64encode(body).decode("ascii")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


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

#: Smallest size of a block with room for the name of its program.
_NAMED = (34.0, 13.0)


def heat(errors: Mapping[str, Any], programs: Mapping[str, Any] | None = None) -> Svg:
    """The error map of an output: the worst of each cell, wrong blocks framed.

    Args:
      errors: ``pictures["errors"]``.
      programs: ``pictures["programs"]``, if known.
    """
    shape = tuple(int(n) for n in errors["shape"])
    matrix = Matrix(shape)
    rows: Sequence[str] = errors["rows"]
    strange = any("!" in row for row in rows)
    palette, index, (low, high) = _palette(rows)
    pixels = [bytes(index[letter] for letter in row) for row in rows]
    parts = [
        rect(matrix.x, matrix.y, matrix.width, matrix.height, "paper"),
        _pixels(matrix, data_uri(pixels, palette), errors),
    ]
    if programs:
        parts += _blocks(matrix, programs)
    parts.append(rect(matrix.x, matrix.y, matrix.width, matrix.height, "frame"))
    parts += _axes(matrix)
    parts += _legend(matrix, errors, low, high, strange)
    width = max(matrix.x + matrix.width + 30, 400.0)
    total = math.prod(shape)
    title = (
        f"Error map of {errors['output']}, {errors['dtype']}{list(shape)}: "
        f"{errors['wrong']:,} of {total:,} elements are wrong"
    )
    return picture(width, matrix.y + matrix.height + (50 if strange else 32), title, *parts)


def _pixels(matrix: Matrix, source: str, errors: Mapping[str, Any]) -> Svg:
    """The cells; the part beyond the array is cut off."""
    rows, columns = len(errors["rows"]), len(errors["rows"][0])
    high, wide = errors["cell"]
    image = element(
        "image",
        width=matrix.width * columns * wide / max(1, matrix.columns),
        height=matrix.height * rows * high / max(1, matrix.rows),
        preserveAspectRatio="none",
        href=source,
        class_="pixels",
    )
    return element("svg", image, x=matrix.x, y=matrix.y, width=matrix.width, height=matrix.height)


def _palette(rows: Sequence[str]) -> tuple[list[Color], dict[str, int], tuple[int, int]]:
    """Colours, the colour of each letter, and the levels of the smallest and largest wrong cell."""
    letters = sorted(set("".join(rows)))
    wrong = [ord(c) - ord("A") + 1 for c in letters if c.isupper()]
    low, high = min(wrong, default=1), max(wrong, default=LEVELS)
    colors: list[Color] = []
    for letter in letters:
        if letter == "!":
            colors.append(_CLASS)
        elif letter.isupper():
            level = ord(letter) - ord("A") + 1
            colors.append(_between(_WRONG, (level - low) / (high - low) if high > low else 1.0))
        elif letter.islower():
            colors.append(_between(_RIGHT, (ord(letter) - ord("a")) / LEVELS))
        else:
            colors.append(_NOTHING)
    return colors, {letter: i for i, letter in enumerate(letters)}, (low, high)


def _between(colors: Sequence[Color], share: float) -> Color:
    """A colour between the first and the last."""
    place = min(max(share, 0.0), 1.0) * (len(colors) - 1)
    first = min(int(place), len(colors) - 2)
    rest = place - first
    pairs = zip(colors[first], colors[first + 1], strict=True)
    r, g, b, a = (round(c + rest * (d - c)) for c, d in pairs)
    return r, g, b, a


def _blocks(matrix: Matrix, programs: Mapping[str, Any]) -> Iterator[Svg]:
    """Lines between the blocks, and a frame around each wrong one."""
    sizes = [int(n) for n in programs["block"]]
    if len(sizes) != len(matrix.shape) or not sizes:
        return
    yield from _lines(matrix, sizes)
    for each in programs["wrong"]:
        starts = [int(i) * n for i, n in zip(each["block"], sizes, strict=True)]
        names = ", ".join(f"({', '.join(map(str, p))})" for p in each["programs"])
        tooltip = f"program {names or 'unknown'}: {each['wrong']:,} wrong elements"
        for x, y, width, height in matrix.parts(starts, sizes):
            yield rect(x, y, width, height, "wrong-block", tooltip)
            if width >= _NAMED[0] + 6 * len(names) - 24 and height >= _NAMED[1] and names:
                yield text(x + 3, y + 11, names, kind="t halo")


def _lines(matrix: Matrix, sizes: Sequence[int]) -> Iterator[Svg]:
    rows = matrix.shape[-2] if len(matrix.shape) > 1 else 1
    high = max(1, sizes[-2] if len(sizes) > 1 else 1)
    batches, steps = matrix.rows // max(1, rows), range(0, rows, high)
    across = range(0, matrix.columns, max(1, sizes[-1]))
    marks: list[str] = []
    right, bottom = matrix.x + matrix.width, matrix.y + matrix.height
    if 1 < batches * len(steps) <= _LINES:
        down = [b * rows + r for b in range(batches) for r in steps]
        marks += [f"M{matrix.x:.1f} {matrix.place(r, 0)[1]:.1f}H{right:.1f}" for r in down[1:]]
    if 1 < len(across) <= _LINES:
        marks += [f"M{matrix.place(0, c)[0]:.1f} {matrix.y:.1f}V{bottom:.1f}" for c in across[1:]]
    if marks:
        yield element("path", d="".join(marks), class_="block-line")


def _axes(matrix: Matrix) -> Iterator[Svg]:
    """The first and the last index of both sides."""
    right, bottom = matrix.x + matrix.width, matrix.y + matrix.height
    yield text(matrix.x, matrix.y - 5, "0")
    yield text(right, matrix.y - 5, f"{matrix.columns:,}", anchor="end")
    yield text(matrix.x - 5, matrix.y + 10, "0", anchor="end")
    yield text(matrix.x - 5, bottom, f"{matrix.rows:,}", anchor="end")


def _legend(
    matrix: Matrix, errors: Mapping[str, Any], low: int, high: int, classes: bool
) -> Iterator[Svg]:
    y = matrix.y + matrix.height + 14
    if not errors["measured"]:
        yield _swatch(matrix.x, y, _WRONG[-1], "holds wrong elements")
        return
    unit = " ulps" if errors["unit"] == "ulps" else ""
    yield _swatch(matrix.x, y, _between(_RIGHT, 0.5), "allowed")
    if any(c.isupper() for row in errors["rows"] for c in row):
        for step in range(24):
            color = _between(_WRONG, step / 23)
            yield element(
                "rect", x=matrix.x + 72 + 4 * step, y=y, width=4, height=10, fill=_hex(color)
            )
        # The last level has no upper end.
        worst = f"≥ {short(lower(high))}" if high == LEVELS else f"< {short(2.0 ** (high - 4))}"
        yield text(matrix.x + 174, y + 9, f"wrong: {short(lower(low))} to {worst}{unit}")
    if classes:
        yield _swatch(matrix.x, y + 18, _CLASS, "NaN or infinite on one side only")


def _swatch(x: float, y: float, color: Color, words: str) -> Svg:
    opacity = f"{color[3] / 255:.2f}"
    box = element("rect", x=x, y=y, width=10, height=10, fill=_hex(color), fill_opacity=opacity)
    return element("g", box, text(x + 15, y + 9, words))


def _hex(color: Color) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color[:3])
