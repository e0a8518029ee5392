"""Which slots of its VLIW bundles a TPU kernel uses, from libtpu's table of static utilization.

The table has one row per scheduled bundle, in order, and a header with what the chip could do at
most in one bundle. Columns as libtpu 0.0.51 writes them, the same for v4, v5e, v5p, v6e and tpu7x:
MATMUL, MATPUSH, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU. libtpu 0.0.50
has one column MXU in place of the first two, which counts issued instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: The title of the first table is spelt "CAPACTIY" there.
_CAPACITY = "== CAPA"
_USE = "== UTILIZATION"

#: Units of the report and the columns that tell of them.
_UNITS = {
    "mxu": ("MATMUL", "MATPUSH", "MXU"),
    "xlu": ("XLU",),
    "valu": ("VALU",),
    "eup": ("EUP",),
    "load": ("VLOAD",),
    "store": ("VSTORE",),
    "scalar": ("SALU",),
}

#: Columns of units that compute on vectors.
_COMPUTING = ("MATMUL", "MATPUSH", "MXU", "XLU", "VALU", "EUP")

#: Slots by column.
Row = Mapping[str, int]


@dataclass(frozen=True)
class Utilization:
    """The table.

    Attributes:
      capacity: slots in a bundle, by column.
      rows: slots in use, by column; one row a bundle.
    """

    capacity: Row
    rows: tuple[Row, ...]

    def total(self, column: str) -> int | None:
        """Slots in use in all bundles; None if there is no such column."""
        if column not in self.capacity:
            return None
        return sum(row[column] for row in self.rows)

    def computing(self) -> set[int]:
        """Places of the bundles that do more than load, store, count and wait."""
        return {
            place
            for place, row in enumerate(self.rows)
            if any(row.get(column, 0) for column in _COMPUTING)
        }

    def shares(self, bundles: range) -> dict[str, float]:
        """Share of the slots in use in some bundles, from 0 to 1, by unit.

        An MXU is in use in a bundle in which it multiplies (MATMUL) or takes in weights (MATPUSH).
        It does both at once in some; the table does not tell which MXU does what, so the larger of
        both columns counts, which is the least number of MXUs that can be in use. Loads include
        fills, stores include spills.
        """
        shares: dict[str, float] = {}
        for unit, columns in _UNITS.items():
            slots = max(self.capacity.get(column, 0) for column in columns) * len(bundles)
            if slots:
                used = sum(
                    max(self.rows[place].get(column, 0) for column in columns) for place in bundles
                )
                shares[unit] = min(1.0, used / slots)
        return shares


def read_utilization(text: str) -> Utilization | None:
    """The table in a ``final_hlo-static-per-bundle-utilization`` dump; None if it is damaged."""
    lines = text.splitlines()
    if len(lines) < 4 or not lines[0].startswith(_CAPACITY) or not lines[3].startswith(_USE):
        return None
    columns = [name.strip() for name in lines[1].split(",")]
    try:
        capacity, *rows = (_row(columns, line) for line in _numbers(lines))
    except ValueError:
        return None
    return Utilization(capacity, tuple(rows))


def _numbers(lines: list[str]) -> Iterable[str]:
    return [lines[2], *(line for line in lines[4:] if line.strip())]


def _row(columns: list[str], line: str) -> Row:
    return dict(zip(columns, map(int, line.split()), strict=True))
