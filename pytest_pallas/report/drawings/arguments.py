"""Masks and ids: a cell for each element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_pallas.report.drawings.heat import Color, data_uri
from pytest_pallas.report.drawings.svg import Svg, element, picture, rect, text

#: Size of a cell, and where the cells begin.
_CELL, _X, _Y = 7.0, 34.0, 18.0

#: Of False and True; visible on white and on black.
_MASK: tuple[Color, ...] = ((120, 144, 168, 50), (60, 120, 200, 255))

#: Of ids in their order: neighbors differ, and later ones repeat.
_IDS: tuple[Color, ...] = (
    (60, 120, 200, 255), (246, 150, 40, 255), (72, 160, 96, 255), (206, 32, 72, 255),
    (148, 70, 216, 255), (120, 144, 168, 255), (250, 204, 80, 255),
)  # fmt: skip


def cells(argument: Mapping[str, Any]) -> Svg:
    """The cells of an entry of ``pictures["arguments"]``."""
    rows: list[str] = argument["rows"]
    mask = argument["role"] == "mask"
    palette = _MASK if mask else _IDS
    pixels = [
        bytes(int(letter) if mask else (ord(letter) - ord("a")) % len(_IDS) for letter in row)
        for row in rows
    ]
    width, height = _CELL * len(rows[0]), _CELL * len(rows)
    image = element(
        "image",
        x=_X,
        y=_Y,
        width=width,
        height=height,
        preserveAspectRatio="none",
        href=data_uri(pixels, palette),
        class_="pixels",
    )
    title = f"{argument['where']}: {argument['words']}"
    parts = [
        rect(_X, _Y, width, height, "paper"),
        image,
        rect(_X, _Y, width, height, "frame"),
        text(_X, _Y - 5, "column 0", kind="t small"),
        text(_X - 5, _Y + 9, "row 0", anchor="end", kind="t small"),
    ]
    return picture(max(_X + width + 10, 120.0), _Y + height + 8, title, *parts)
