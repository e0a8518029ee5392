"""How an equation names a part of a reference, and whose memory it is: data, read by ``compat``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class Transform:
    """What an equation makes of a reference before it accesses it."""

    __slots__ = ()


class Elsewhere(Transform):
    """Names memory that is not the thread's own."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Operand:
    """A number or array that an equation gets when it is evaluated.

    Attributes:
      position: among the operands of the equation.
    """

    position: int


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """A slice of one axis.

    Attributes:
      start: the first index.
      size: how many elements.
      stride: from one to the next.
    """

    start: int | Operand
    size: int | Operand
    stride: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of indices in memory, or in a register, that a copy reads.

    Attributes:
      position: of the reference, or the array, among the operands.
      transforms: from the reference to the list.
      ignored: an index that names nothing, or None.
    """

    position: int
    transforms: tuple[Transform, ...] = ()
    ignored: int | None = None


@dataclass(frozen=True, slots=True)
class Indexed(Transform):
    """One index for each axis: a slice, a number, or an array of indices.

    Attributes:
      indices: one for each axis.
      shape: of the reference that is indexed.
      joint: the common shape of the arrays of indices.
      repeated: the axes whose slice has stride 0: it is one element, again and again.
    """

    indices: tuple[AxisSlice | Operand | Listed | int, ...]
    shape: tuple[int, ...]
    joint: tuple[int | Operand, ...]
    repeated: tuple[int, ...] = ()

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Indexed:
        """Return the index of all elements of a reference."""
        return cls(tuple(AxisSlice(0, size, 1) for size in shape), shape, ())


@dataclass(frozen=True, slots=True)
class Reshaped(Transform):
    """The same elements in another shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transposed(Transform):
    """The axes in another order."""

    permutation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bitcast(Transform):
    """The same bits as another dtype; the second last axis grows or shrinks."""

    dtype: Any


@dataclass(frozen=True, slots=True)
class Untiled(Transform):
    """The tiles of the last axes put together: ``(m // a, n // b, a, b)`` is ``(m, n)``."""

    tiling: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expanded(Transform):
    """Columns divided among leading axes: ``(m, batch * n)`` is ``(*batch, m, n)``."""

    batch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aliased(Transform):
    """A part of a union of references.

    Attributes:
      offset: of its first byte; of its first column in tensor memory.
      shape: of the part.
      dtype: of its elements.
      tiling: of its last axes, whose tiles the next transform puts together, or ().
      group: which of the alternatives of the union it belongs to.
      layout: JAX's layout of tensor memory, or None.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: Any
    tiling: tuple[int, ...] = ()
    group: int = 0
    layout: Any = None


@dataclass(frozen=True, slots=True)
class Im2Col(Transform):
    """Windows of an array ``(n, *spatial, channels)``: ``(windows, *window, channels)``.

    Attributes:
      window: its shape.
      padding: zeros before and after each spatial axis.
    """

    window: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """The device or core that an operation names. Numbers are positions of operands.

    Attributes:
      number: of the device in the mesh, row by row; None if it is named otherwise.
      point: indices along all axes of the mesh of devices; None if it is named otherwise.
      axes: index along some axes, each a tuple of names, of the mesh of devices or of cores.
      core: the index of the core, or None.
    """

    number: int | None = None
    point: tuple[int, ...] | None = None
    axes: tuple[tuple[tuple[str, ...], int], ...] = ()
    core: int | None = None


@dataclass(frozen=True, slots=True)
class AtPeer(Elsewhere):
    """The same memory on another device."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class AtBlock(Elsewhere):
    """The same memory of another block of the cluster.

    Attributes:
      axes: names of axes of the cluster, and the index along them.
    """

    axes: tuple[tuple[tuple[Any, ...], Operand | int], ...]


@dataclass(frozen=True, slots=True)
class AtAll(Elsewhere):
    """The same memory on all devices along some axes of the mesh."""

    axes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class UnknownTransform(Transform):
    """A transform that is none of the others."""

    name: str


@dataclass(frozen=True, slots=True)
class RefPart:
    """A part of a reference, as an equation names it.

    Attributes:
      position: of the reference among the operands.
      transforms: from the reference to the part.
      choices: the parts of references that an index chooses among, in place of all this, or ().
      chosen: that index.
      window: the transforms that do not say whose memory it is.
      places: those that do.
    """

    position: int
    transforms: tuple[Transform, ...] = ()
    choices: tuple[RefPart, ...] = ()
    chosen: Operand | int = 0
    window: tuple[Transform, ...] = field(init=False, repr=False, compare=False)
    places: tuple[Elsewhere, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Part the transforms once: an equation is evaluated many times."""
        window, places = split_elsewhere(self.transforms)
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "places", places)


def split_elsewhere(
    transforms: Sequence[Transform],
) -> tuple[tuple[Transform, ...], tuple[Elsewhere, ...]]:
    """Return the transforms of a reference, apart from those that say whose memory it is."""
    places = tuple(one for one in transforms if isinstance(one, Elsewhere))
    return tuple(one for one in transforms if not isinstance(one, Elsewhere)), places
