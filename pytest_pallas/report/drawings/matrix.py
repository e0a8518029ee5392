"""An array of any rank as a matrix for pictures: rows of its last axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

    def place(self, row: float, column: float) -> tuple[float, float]:
        """The position of an element."""
        return (
            self.x + self.width * column / max(1, self.columns),
            self.y + self.height * row / max(1, self.rows),
        )

    def parts(
        self, starts: Sequence[int], lengths: Sequence[int]
    ) -> Iterator[tuple[float, float, float, float]]:
        """Rectangles (x, y, width, height) of a block, cut at the edges of the array."""
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
        # more of an axis are not drawn, and may be too many to list
        places = itertools.product(*(range(a, min(b, a + _PARTS)) for a, b in leading))
        for indices in itertools.islice(places, _PARTS):
            first = 0
            for index, size in zip(indices, sizes, strict=True):
                first = first * size + index
            x, y = self.place(first * rows + top, left)
            x2, y2 = self.place(first * rows + bottom, right)
            yield x, y, x2 - x, y2 - y
