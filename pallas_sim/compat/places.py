"""Private names of JAX: which parts of which references an equation names.

The first functions convert JAX's transforms of a reference to those of ``pallas_sim.transforms``.
The others read the operands of copies and of operations on semaphores.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.experimental.pallas`` exports the classes of
transforms. Probe: ``tests/pallas_sim/compat/test_places.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallas_sim.transforms import (
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
    """Return the transforms of a reference, whose indices are the last operands of an equation.

    Args:
      tree: the pytree of the transforms, parameter ``tree`` of the equation.
      first: position of the first operand that is a leaf of the tree.
      count: the number of leaves.
    """
    leaves = [Operand(first + number) for number in range(count)]
    return transforms_in(tree.unflatten(leaves))


def transforms_in(transforms: Any) -> tuple[Transform, ...]:
    """Convert JAX's transforms of a reference to ours; leave out those that change nothing."""
    sequence: Sequence[Any] = transforms if isinstance(transforms, (tuple, list)) else (transforms,)
    ours = [transform for transform in map(_transform, sequence) if transform is not None]
    for number, transform in enumerate(ours[:-1]):
        # JAX gives this part of a union its tiled shape. Our memory has no tiles, so ``windows``
        # needs the tiling of the next transform to find the elements.
        following = ours[number + 1]
        if isinstance(transform, Aliased) and isinstance(following, Untiled):
            ours[number] = replace(transform, tiling=following.tiling)
    return tuple(ours)


def is_indexer(transform: Any) -> bool:
    """Return whether a transform of JAX has ``indices``, one for each axis, and a ``shape``."""
    return type(transform).__name__ == "NDIndexer"


def is_at_peer(transform: Any) -> bool:
    """Return whether a transform of JAX names the memory of other devices."""
    return type(transform).__name__ in ("PeerMemRef", "MulticastRef")


def _transform(transform: Any) -> Transform | None:
    """Convert a transform of JAX to ours; None if it changes nothing."""
    kind = type(transform).__name__
    convert = _TRANSFORMS.get(kind)
    return UnknownTransform(kind) if convert is None else convert(transform)


def _indexed(transform: Any) -> Indexed:
    indices = tuple(map(_index, transform.indices))
    strides = [index.stride if isinstance(index, AxisSlice) else 1 for index in indices]
    repeated = tuple(axis for axis, stride in enumerate(strides) if stride == 0)
    shape, joint = tuple(transform.shape), tuple(transform.int_indexer_shape)
    return Indexed(indices, shape, joint, repeated)


def _aliased(transform: Any) -> Aliased:
    layout, group = getattr(transform, "layout", None), getattr(transform, "alias_group_idx", 0)
    shape, dtype = tuple(transform.shape), transform.dtype
    return Aliased(transform.offset, shape, dtype, (), group, layout)


def _at_peer(transform: Any) -> AtPeer:
    peer = peer_in(transform.device_id, None, transform.device_id_type)
    assert peer is not None
    return AtPeer(peer)


def _at_block(transform: Any) -> AtBlock:
    indices = zip(transform.dims, transform.idxs, strict=True)
    return AtBlock(tuple((_names(dim), _number(index)) for dim, index in indices))


#: How to convert each transform, by the name of JAX's class; versions of JAX name it differently.
#: Swizzling only changes where elements lie in memory, so it becomes None.
_TRANSFORMS: dict[str, Callable[[Any], Transform | None]] = {
    "NDIndexer": _indexed,
    **dict.fromkeys(("ReshapeTransform", "RefReshaper"), lambda t: Reshaped(tuple(t.shape))),
    **dict.fromkeys(
        ("TransposeTransform", "RefTransposer"), lambda t: Transposed(tuple(t.permutation))
    ),
    **dict.fromkeys(("BitcastTransform", "RefBitcaster"), lambda t: Bitcast(t.dtype)),
    **dict.fromkeys(("MemorySpaceCastTransform", "AccessAssumptionTransform"), lambda _: None),
    **dict.fromkeys(("UnswizzleRef", "IdentityTransform"), lambda _: None),
    **dict.fromkeys(("UntilingTransform", "UntileRef"), lambda t: Untiled(tuple(t.tiling))),
    "ExpandLeadingBatchDimensionsTransform": lambda t: Expanded(tuple(t.batch_shape)),
    "ExtractAliasedRef": _aliased,
    "Im2ColTransform": lambda t: Im2Col(tuple(t.window_shape), tuple(map(tuple, t.padding))),
    "PeerMemRef": _at_peer,
    "ClusterRefTransform": _at_block,
    "MulticastRef": lambda t: AtAll(_names(t.collective_axes)),
}


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


def place_in(transformed: Any) -> RefPart:
    """Convert a reference with its transforms, whose leaves are ``Operand``s, to a ``RefPart``."""
    if isinstance(transformed, Operand):
        return RefPart(transformed.position, ())
    if hasattr(transformed.ref, "transforms"):  # a part of what ``select_ref`` chooses
        return _part_of(place_in(transformed.ref), transforms_in(transformed.transforms))
    if isinstance(transformed.ref, tuple):  # an index chooses one of several references
        (select,) = transformed.transforms
        choices: tuple[Any, ...] = transformed.ref
        index = select.idx if isinstance(select.idx, Operand) else int(select.idx)
        return RefPart(-1, (), tuple(map(place_in, choices)), index)
    return RefPart(transformed.ref.position, transforms_in(transformed.transforms))


def _part_of(part: RefPart, transforms: tuple[Transform, ...]) -> RefPart:
    """Return a part of a part: of each that an index may choose."""
    choices = tuple(_part_of(choice, transforms) for choice in part.choices)
    return RefPart(part.position, (*part.transforms, *transforms), choices, part.chosen)


def peer_in(device: Any, core: Any, kind: Any) -> Peer | None:
    """Return the device and core that an equation names, or None if it names neither.

    Args:
      device: its ``device_id``, as ``device_id_to_logical`` of JAX reads it, or None.
      core: its ``core_index``, or None.
      kind: its ``device_id_type``.
    """
    core_position = None if core is None else core.position
    if device is None:
        return None if core_position is None else Peer(core=core_position)
    if isinstance(device, dict):
        indices: dict[Any, Any] = device
        axes = tuple(
            (axis if isinstance(axis, tuple) else (axis,), index.position)
            for axis, index in indices.items()
        )
        return Peer(axes=axes, core=core_position)
    if kind.name == "LOGICAL":
        return Peer(number=device.position, core=core_position)
    import jax

    leaves = jax.tree.leaves(device)
    return Peer(point=tuple(leaf.position for leaf in leaves), core=core_position)


# The operands of copies and of operations on semaphores.


@dataclass(frozen=True, slots=True)
class CopyParts:
    """The operands of a ``dma_start`` or ``dma_wait``.

    A ``dma_wait`` until the source is read (``wait_send``) exchanges source and target, and also
    the two semaphores.

    Attributes:
      source: the part that the copy reads.
      target: the part that the copy writes.
      done: the semaphore to which the copy adds its bytes when it has written them, or None.
      sent: the semaphore to which the copy adds its bytes when it has read them, or None.
      peer: the device or core that the copy names, or None.
    """

    source: RefPart
    target: RefPart
    done: RefPart | None
    sent: RefPart | None
    peer: Peer | None

    @property
    def chooses(self) -> bool:
        """Whether a part depends on an index that chooses among references, at run time."""
        parts = (self.source, self.target, self.done, self.sent)
        return any(part is not None and part.choices for part in parts)


@dataclass(frozen=True, slots=True)
class SemaphoreParts:
    """The operands of an operation on a semaphore.

    Attributes:
      semaphore: the part that is a semaphore.
      value: position of the operand that a signal adds or a wait waits for, or None.
      decrement: position of the operand that says whether a wait subtracts the value from the
        semaphore, or None.
      peer: the device or core that the operation names, or None.
    """

    semaphore: RefPart
    value: int | None = None
    decrement: int | None = None
    peer: Peer | None = None


def copy_parts(params: Any, count: int) -> CopyParts:
    """Return the parts of a ``dma_start`` or ``dma_wait``.

    Args:
      params: the parameters of the equation.
      count: the number of its operands.
    """
    source, target, done, sent, device = params["tree"].unflatten(
        [Operand(number) for number in range(count)]
    )
    peer = peer_in(device, None, params["device_id_type"])
    return CopyParts(
        place_in(source), place_in(target), _part_or_none(done), _part_or_none(sent), peer
    )


def semaphore_parts(name: str, params: Any, count: int) -> SemaphoreParts:
    """Return the parts of an operation on a semaphore.

    Args:
      name: ``"semaphore_signal"``, ``"semaphore_wait"`` or ``"semaphore_read"``.
      params: the parameters of the equation.
      count: the number of its operands.
    """
    operands = [Operand(number) for number in range(count)]
    ref, transforms, *rest = params["args_tree"].unflatten(operands)
    semaphore = RefPart(ref.position, transforms_in(transforms))
    if name == "semaphore_signal":
        value, device, core = rest
        peer = peer_in(device, core, params["device_id_type"])
        return SemaphoreParts(semaphore, value.position, peer=peer)
    if name == "semaphore_wait":
        value, decrement = rest
        return SemaphoreParts(semaphore, value.position, decrement.position)
    return SemaphoreParts(semaphore)


def names_a_device(eqn: Any, cores: Collection[Any] = ()) -> bool:
    """Return whether an equation copies to, or signals, a device that it names.

    Args:
      eqn: of a kernel.
      cores: names of the kernel's axes of cores: who names an index of these names no device.
    """
    name, count = eqn.primitive.name, len(eqn.invars)
    if name == "dma_start":
        peer = copy_parts(eqn.params, count).peer
    elif name == "semaphore_signal":
        peer = semaphore_parts(name, eqn.params, count).peer
    else:
        return False
    if peer is None:
        return False
    axes = {axis for names, _ in peer.axes for axis in names}
    return bool(peer.point) or peer.number is not None or not axes <= set(cores)


def _part_or_none(transformed: Any) -> RefPart | None:
    return None if transformed is None else place_in(transformed)
