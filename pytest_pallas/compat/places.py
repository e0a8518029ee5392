"""Private names of JAX: which part of a reference an equation reads or writes.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.experimental.pallas`` exports the classes of
transforms. Probe: ``tests/unit/compat/test_places.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_pallas.transforms import (
    Aliased,
    AtAll,
    AtBlock,
    AtPeer,
    AxisSlice,
    Bitcast,
    Expanded,
    Im2Col,
    Indexed,
    Listed,
    Operand,
    Peer,
    RefPart,
    Reshaped,
    Transform,
    Transposed,
    UnknownTransform,
    Untiled,
)


def transforms_of(tree: Any, first: int, count: int) -> tuple[Transform, ...]:
    """The transforms that a pytree makes of the last operands of an equation.

    Args:
      tree: parameter ``tree`` of the equation.
      first: position of the first of these operands.
      count: how many there are.
    """
    leaves = [Operand(first + number) for number in range(count)]
    return transforms_in(tree.unflatten(leaves))


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


def _transform(transform: Any) -> Transform | None:
    kind = type(transform).__name__
    if is_indexer(transform):
        indices = tuple(map(_index, transform.indices))
        return Indexed(
            indices,
            tuple(transform.shape),
            tuple(transform.int_indexer_shape),
            tuple(
                axis
                for axis, index in enumerate(indices)
                if isinstance(index, AxisSlice) and index.stride == 0
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
    return UnknownTransform(kind)


def _names(axes: Any) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def _index(index: Any) -> AxisSlice | Operand | Listed | int:
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
        return AxisSlice(_number(index.start), _number(index.size), int(index.stride))
    return _number(index)


def _number(value: Any) -> Any:
    return value if isinstance(value, Operand) else int(value)


def place_in(given: Any) -> RefPart:
    """A reference with its transforms, whose leaves are ``Operand``s."""
    if isinstance(given, Operand):
        return RefPart(given.position, ())
    if isinstance(given.ref, tuple):
        (select,) = given.transforms
        choices: tuple[Any, ...] = given.ref
        index = select.idx if isinstance(select.idx, Operand) else int(select.idx)
        return RefPart(-1, (), tuple(map(place_in, choices)), index)
    return RefPart(given.ref.position, transforms_in(given.transforms))


def peer_in(device: Any, core: Any, kind: Any) -> Peer | None:
    """A ``device_id`` and a ``core_index``, as ``device_id_to_logical`` understands them."""
    at = None if core is None else core.position
    if device is None:
        return None if at is None else Peer(core=at)
    if isinstance(device, dict):
        named: dict[Any, Any] = device
        axes = tuple(
            (axis if isinstance(axis, tuple) else (axis,), index.position)
            for axis, index in named.items()
        )
        return Peer(axes=axes, core=at)
    if kind.name == "LOGICAL":
        return Peer(number=device.position, core=at)
    import jax

    leaves = jax.tree.leaves(device)
    return Peer(point=tuple(each.position for each in leaves), core=at)
