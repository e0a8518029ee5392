"""Changes of the memory of references: what changed, by whom, and a short picture of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytest_pallas.findings import Owner
from pytest_pallas.simulator.memory.references import Ref

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class RefChange:
    """A change of the values of a watched reference.

    Attributes:
      ref: its name.
      kind: ``"new"``: the name stands for memory that was not seen before, or that changed while no
        program had it, such as the next block. ``"store"``: an equation of a core changed it.
        ``"copy"``: a copy (DMA) did.
      owner: the core whose reference it is.
      by: who changed it: the core, or who started the copy.
      line: ``file:line`` of the equation, or of the start of the copy, or "".
      program: the grid point of ``by``, or ().
      kernel: the kernel that ``by`` is in, or "".
      time: equations evaluated so far.
      index: the first element that changed; None if it is new.
      changed: how many elements did.
      before: the element at ``index``; None if it is new.
      values: all of them, after the change; those of semaphores are their counts.
    """

    ref: str
    kind: Literal["new", "store", "copy"]
    owner: Owner
    by: Owner
    line: str
    program: tuple[int, ...]
    kernel: str
    time: int
    index: tuple[int, ...] | None
    changed: int
    before: Any
    values: Array

    def __str__(self) -> str:
        """What changed, who did it and where, and a short picture of the values."""
        shape = f"{self.values.dtype}{list(self.values.shape)}"
        if self.index is None:
            what = f"{self.ref} is {shape}"
        else:
            at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
            what = (
                f"{self.ref}{at}: {_number(self.before)} -> {_number(self.values[self.index])}, "
                f"{self.changed} of {self.values.size} elements of {shape}"
            )
        if self.kind == "copy":
            what += f", by a copy of {self.by}"
        place = f" in program {_point(self.program)}" if self.program else ""
        place += f" of {self.kernel}" if self.kernel and place else ""
        line = f" at {self.line}" if self.line else ""
        return f"{what}{line}{place} on {self.owner}\n{picture(self.values)}"


def picture(values: Array) -> str:
    """A few of the values of an array, and of many their range, as indented text."""
    plain = values if values.dtype.kind in "iufbc" else values.astype(np.float32)
    edge = 1 if values.ndim > 1 else 3
    text = np.array2string(plain, precision=4, threshold=8, edgeitems=edge, max_line_width=96)
    if plain.dtype.kind in "iuf" and plain.size > 8:
        real = plain[~np.isnan(plain)]
        parts = [f"from {_number(real.min())} to {_number(real.max())}"] if real.size else []
        parts += [f"{plain.size - real.size} NaN"] if real.size < plain.size else []
        text += f"\n{', '.join(parts)}"
    return f"  {text}".replace("\n", "\n  ")


def values_of(ref: Ref) -> Array:
    """A copy of what is in memory: of semaphores, their counts."""
    if ref.data.dtype != object:
        return np.array(ref.data)
    counts = [getattr(each, "count", 0) for each in ref.data.flat]
    return np.array(counts, np.int64).reshape(ref.data.shape)


def same_bits(first: Array, second: Array) -> bool:
    """Whether the bits of two arrays are the same: NaN is NaN."""
    shapes = (first.shape, first.dtype) == (second.shape, second.dtype)
    return shapes and first.tobytes() == second.tobytes()


def differing(first: Array, second: Array) -> Any:
    """Which elements of arrays of one shape and dtype have other bits."""
    size = first.dtype.itemsize
    bits = [
        np.frombuffer(each.tobytes(), np.uint8).reshape(*each.shape, size)
        for each in (first, second)
    ]
    return (bits[0] != bits[1]).any(axis=-1)


def _number(value: Any) -> str:
    return str(np.asarray(value)[()])


def _point(program: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, program))})"
