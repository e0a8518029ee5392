"""Private names of JAX: the device or core that an operation names."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


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


def peer_in(device: Any, core: Any, kind: Any) -> Peer | None:
    """A ``device_id`` and a ``core_index``, as ``device_id_to_logical`` understands them.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
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
    leaves = importlib.import_module("jax.tree_util").tree_leaves(device)
    return Peer(point=tuple(each.position for each in leaves), core=at)
