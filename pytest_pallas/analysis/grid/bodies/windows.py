"""Which part of a ref an access of a kernel's body names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallas_sim.compat.places import is_indexer


def window_of(ref_eqn: Any, operands: Sequence[Any]) -> list[Any] | None:
    """The index of each axis of a ref in a ``get``, ``swap`` or ``addupdate``.

    None if it cannot be followed: the ref is reshaped or indexed twice. An entry is a number or
    one of ``operands`` for a single index, or an object with ``start``, ``size`` and ``stride``.
    An empty list is the whole ref.

    Args:
      ref_eqn: the equation.
      operands: what it has after the ref, and the value if it has one.
    """
    transforms: Any = ref_eqn.params["tree"].unflatten(operands)
    transforms = transforms if isinstance(transforms, (tuple, list)) else (transforms,)
    return _indices(transforms)


def masked_window(ref_eqn: Any, operands: Sequence[Any]) -> tuple[list[Any] | None, Any, bool]:
    """The indices of a ``masked_load`` or ``masked_swap``, the value, and whether it has a mask.

    As ``window_of``; the value is None for a load.
    """
    parts: Any = ref_eqn.params["args_tree"].unflatten(operands)
    transforms, rest = parts[1], parts[2:]
    if ref_eqn.primitive.name == "masked_swap":
        return _indices(transforms), rest[0], rest[1] is not None
    return _indices(transforms), None, rest[0] is not None


def _indices(transforms: Sequence[Any]) -> list[Any] | None:
    if not transforms:
        return []
    if len(transforms) != 1 or not is_indexer(transforms[0]):
        return None
    return list(transforms[0].indices)
