"""What masks and ids hold, in words: bool arrays, and small integers that name something."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from pallas_sim.dtypes import Array

#: Arrays of up to this many ids are written as they are.
WHOLE = 16

#: Ids beyond this are no names of segments, pages or rows, but numbers.
_MOST = 2**20


def role_of(array: Any) -> Literal["mask", "ids", ""]:
    """What an argument is by its values: a mask (bools), ids, or "" for numbers.

    Ids are 32-bit and wider integers of one or two axes, from -1 (for "none") on.
    """
    if not isinstance(array, np.ndarray) or not array.ndim or not array.size:
        return ""
    if array.dtype == np.bool_:
        return "mask"
    wide = array.dtype.kind in "iu" and array.dtype.itemsize >= 4
    if wide and array.ndim <= 2 and array.min() >= -1 and array.max() <= _MOST:
        return "ids"
    return ""


def in_words(array: Array) -> str:
    """A mask or ids, in one line.

    Such as ``"causal 5x5"``, ``"bool[7, 9], 31 of 63 True, first False at (0, 1)"`` or ``"int32[5]
    [0 0 1 1 2]"``.
    """
    return _mask_in_words(array) if array.dtype == np.bool_ else _ids_in_words(array)


def _mask_in_words(mask: Array) -> str:
    typed = f"bool[{', '.join(map(str, mask.shape))}]"
    count = int(np.count_nonzero(mask))
    if count in (0, mask.size):
        return f"{typed}, all {bool(count)}"
    pattern = _pattern(mask)
    if pattern:
        return pattern
    place = np.unravel_index(int(np.argmin(mask)), mask.shape)
    first = ", ".join(str(int(index)) for index in place)
    return f"{typed}, {count} of {mask.size} True, first False at ({first})"


def _pattern(mask: Array) -> str:
    """A name for the pattern of the last two axes, if all others repeat it; else ""."""
    if mask.ndim < 2:
        lengths = _lengths(mask[None])
        return "" if lengths is None else f"bool[{mask.size}], the first {lengths[0]} True"
    flat = mask.reshape(-1, *mask.shape[-2:])
    if not (flat == flat[0]).all():
        return ""
    size = "x".join(map(str, mask.shape))
    rows, columns = np.indices(mask.shape[-2:])
    for name, sign in (("causal", 1), ("anti-causal", -1)) if min(mask.shape[-2:]) > 1 else ():
        distance = sign * (columns - rows)
        kept = distance[flat[0]]
        offset = int(kept.max())
        if (flat[0] == (distance <= offset)).all() and abs(offset) < min(mask.shape[-2:]):
            moved = f", moved by {sign * offset} columns" if offset else ""
            return f"{name} {size}{moved}"
    lengths = _lengths(flat[0])
    if lengths is None:
        return ""
    if len(set(lengths)) == 1:
        return f"bool[{', '.join(map(str, mask.shape))}], the first {lengths[0]} of each row True"
    some = " ".join(map(str, lengths[:WHOLE])) + (" ..." if len(lengths) > WHOLE else "")
    return f"bool[{', '.join(map(str, mask.shape))}], each row True up to lengths {some}"


def _lengths(rows: Array) -> list[int] | None:
    """How many elements of each row are True, if these are the first ones; else None."""
    counts = np.count_nonzero(rows, axis=-1)
    first = np.arange(rows.shape[-1]) < counts[:, None]
    return [int(count) for count in counts] if (rows == first).all() else None


def _ids_in_words(ids: Array) -> str:
    typed = f"{ids.dtype}[{', '.join(map(str, ids.shape))}]"
    if ids.size <= WHOLE:
        return f"{typed} {_written(ids)}"
    flat = ids.ravel()
    ordered = ", in order" if (np.diff(flat) >= 0).all() else ""
    some = " ".join(map(str, flat[: WHOLE // 2].tolist()))
    return (
        f"{typed} [{some} ...], {int(flat.min())} to {int(flat.max())}, "
        f"{len(np.unique(flat))} different{ordered}"
    )


def _written(ids: Array) -> str:
    if ids.ndim == 1:
        return f"[{' '.join(map(str, ids.tolist()))}]"
    return f"[{' '.join(map(_written, ids))}]"
