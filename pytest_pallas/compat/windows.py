"""Private names of JAX: how an equation says which part of a reference it reads or writes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_pallas.compat.peers import Peer, peer_in


@dataclass(frozen=True, slots=True)
class Operand:
    """A number or array that an equation gets when it is evaluated.

    Attributes:
      position: among the operands of the equation.
    """

    position: int


@dataclass(frozen=True, slots=True)
class Span:
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
class Indexed:
    """One index for each axis: a slice, a number, or an array of indices.

    Attributes:
      indices: one for each axis.
      shape: of the reference that is indexed.
      joint: the common shape of the arrays of indices.
      repeated: the axes whose slice has stride 0: it is one element, again and again.
    """

    indices: tuple[Span | Operand | Listed | int, ...]
    shape: tuple[int, ...]
    joint: tuple[int | Operand, ...]
    repeated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The same elements in another shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transposed:
    """The axes in another order."""

    permutation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bitcast:
    """The same bits as another dtype; the second last axis grows or shrinks."""

    dtype: Any


@dataclass(frozen=True, slots=True)
class Untiled:
    """The tiles of the last axes put together: ``(m // a, n // b, a, b)`` is ``(m, n)``."""

    tiling: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expanded:
    """Columns divided among leading axes: ``(m, batch * n)`` is ``(*batch, m, n)``."""

    batch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aliased:
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
class Im2Col:
    """Windows of an array ``(n, *spatial, channels)``: ``(windows, *window, channels)``.

    Attributes:
      window: its shape.
      padding: zeros before and after each spatial axis.
    """

    window: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AtPeer:
    """The same memory on another device."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class AtBlock:
    """The same memory of another block of the cluster.

    Attributes:
      axes: names of axes of the cluster, and the index along them.
    """

    axes: tuple[tuple[tuple[Any, ...], Operand | int], ...]


@dataclass(frozen=True, slots=True)
class AtAll:
    """The same memory on all devices along some axes of the mesh."""

    axes: tuple[Any, ...]


#: Names memory that is not the thread's own.
Elsewhere = AtPeer | AtBlock | AtAll


@dataclass(frozen=True, slots=True)
class Unknown:
    """A transform that is none of the others."""

    name: str


Transform = (
    Indexed
    | Reshaped
    | Transposed
    | Bitcast
    | Untiled
    | Expanded
    | Aliased
    | Im2Col
    | AtPeer
    | AtBlock
    | AtAll
    | Unknown
)


def transforms_of(tree: Any, first: int, count: int) -> tuple[Transform, ...]:
    """The transforms that a pytree makes of the last operands of an equation.

    Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      tree: parameter ``tree`` of the equation.
      first: position of the first of these operands.
      count: how many there are.
    """
    util = importlib.import_module("jax.tree_util")
    leaves = [Operand(first + number) for number in range(count)]
    return transforms_in(util.tree_unflatten(tree, leaves))


def transforms_in(transforms: Any) -> tuple[Transform, ...]:
    """JAX's transforms of a reference as ours, without those that change nothing."""
    given: Sequence[Any] = transforms if isinstance(transforms, (tuple, list)) else (transforms,)
    found = [each for each in map(_transform, given) if each is not None]
    for number, each in enumerate(found[:-1]):
        after = found[number + 1]
        if isinstance(each, Aliased) and isinstance(after, Untiled):
            found[number] = replace(each, tiling=after.tiling)
    return tuple(found)


def is_indexer(transform: Any) -> bool:
    """Whether a transform of JAX is one with ``indices``, one for each axis, and a ``shape``."""
    return type(transform).__name__ == "NDIndexer"


def is_at_peer(transform: Any) -> bool:
    """Whether a transform of JAX names the memory of other devices."""
    return type(transform).__name__ in ("PeerMemRef", "MulticastRef")


def split_elsewhere(
    transforms: Sequence[Transform],
) -> tuple[tuple[Transform, ...], tuple[Elsewhere, ...]]:
    """The transforms of a reference, apart from those that say whose memory it is."""
    places = tuple(each for each in transforms if isinstance(each, AtPeer | AtBlock | AtAll))
    rest = tuple(each for each in transforms if not isinstance(each, AtPeer | AtBlock | AtAll))
    return rest, places


def _transform(transform: Any) -> Transform | None:
    kind = type(transform).__name__
    if kind == "NDIndexer":
        indices = tuple(map(_index, transform.indices))
        return Indexed(
            indices,
            tuple(transform.shape),
            tuple(transform.int_indexer_shape),
            tuple(
                axis
                for axis, index in enumerate(indices)
                if isinstance(index, Span) and index.stride == 0
            ),
        )
    if kind in ("ReshapeTransform", "RefReshaper"):
        return Reshaped(tuple(transform.shape))
    if kind in ("TransposeTransform", "RefTransposer"):
        return Transposed(tuple(transform.permutation))
    if kind in ("BitcastTransform", "RefBitcaster"):
        return Bitcast(transform.dtype)
    if kind in ("MemorySpaceCastTransform", "AccessAssumptionTransform"):
        return None
    return _gpu_transform(kind, transform)


def _gpu_transform(kind: str, transform: Any) -> Transform | None:
    """The transforms of Mosaic GPU. Swizzling changes where elements lie, and nothing else."""
    if kind in ("UnswizzleRef", "IdentityTransform"):
        return None
    if kind in ("UntilingTransform", "UntileRef"):
        return Untiled(tuple(transform.tiling))
    if kind == "ExpandLeadingBatchDimensionsTransform":
        return Expanded(tuple(transform.batch_shape))
    if kind == "ExtractAliasedRef":
        layout = getattr(transform, "layout", None)
        dtype, group = transform.dtype, getattr(transform, "alias_group_idx", 0)
        return Aliased(transform.offset, tuple(transform.shape), dtype, (), group, layout)
    if kind == "Im2ColTransform":
        return Im2Col(tuple(transform.window_shape), tuple(map(tuple, transform.padding)))
    if kind == "PeerMemRef":
        peer = peer_in(transform.device_id, None, transform.device_id_type)
        assert peer is not None
        return AtPeer(peer)
    if kind == "ClusterRefTransform":
        named = zip(transform.dims, transform.idxs, strict=True)
        return AtBlock(tuple((_names(dim), _number(index)) for dim, index in named))
    if kind == "MulticastRef":
        return AtAll(_names(transform.collective_axes))
    return Unknown(kind)


def _names(axes: Any) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def _index(index: Any) -> Span | Operand | Listed | int:
    if isinstance(index, Operand):
        return index
    if type(index).__name__ == "TransformedRef":
        return Listed(index.ref.position, transforms_in(index.transforms))
    if type(index).__name__ == "Indices":
        listed = _index(index.values)
        transforms = listed.transforms if isinstance(listed, Listed) else ()
        assert isinstance(listed, (Listed, Operand))
        return Listed(listed.position, transforms, index.ignored_value)
    if hasattr(index, "stride") and hasattr(index, "start"):
        return Span(_number(index.start), _number(index.size), int(index.stride))
    return _number(index)


def _number(value: Any) -> Any:
    return value if isinstance(value, Operand) else int(value)
