"""Which elements of a kernel's outputs nobody has written, and in which blocks they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_pallas.backends.fills import FILLS
from pytest_pallas.compat.grids import grid_facts

#: The fills of two runs. No element that is written holds 0 in one and the largest number in the
#: other: what holds both was never written, or is copied from what was not.
PAIR = ("zero", "high")

#: How many blocks of an output are named.
_SHOWN = 4

#: What a kernel was called with and returned: the parameters of its equation, and its outputs.
Told = tuple[Any, Sequence[Any]]


def never_written(first: Sequence[Told], second: Sequence[Told]) -> Iterator[str]:
    """What was never written, a line for each output that has such elements.

    Args:
      first: what the kernels of a run returned, in order, with outputs filled by ``PAIR[0]``.
      second: that of a run with ``PAIR[1]``.
    """
    said: set[str] = set()
    for (params, before), (_, after) in zip(first, second, strict=False):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            missing = _missing(np.asarray(old), np.asarray(new))
            if missing is None or not missing.any():
                continue
            name, where = f"output {number}", _box_of(missing)
            if "grid_mapping" in params:
                block = grid_facts(SimpleNamespace(params=params)).outputs[number]
                name, where = f"{name} ({block.name})", _blocks(missing, block.dims)
            text = f"{name} of {_kernel(params)}: {where}"
            if text not in said:
                said.add(text)
                yield text


def _missing(old: Any, new: Any) -> Any:
    """Which elements hold the fill in both runs; None if the dtype has none."""
    fills = [FILLS[name](old.dtype) for name in PAIR]
    if old.shape != new.shape or any(fill is None for fill in fills):
        return None
    return (old == np.asarray(fills[0], old.dtype)) & (new == np.asarray(fills[1], old.dtype))


def _kernel(params: Any) -> str:
    body = params["jaxpr"] if "jaxpr" in params else params["jaxprs"][0]
    return str(params.get("name") or body.debug_info.func_name or "the kernel")


def _box_of(missing: Any) -> str:
    """What was never written of an output without blocks."""
    if missing.all():
        return "no element was ever written"
    count = f"{np.count_nonzero(missing)} of {missing.size} elements were never written"
    return f"{count}: {_box(missing)}"


def _blocks(missing: Any, dims: Sequence[tuple[str, int, tuple[int, int]]]) -> str:
    """The blocks without a written element, and those with some: ``block (1, 0)``."""
    if missing.all() or any(kind not in ("Blocked", "Squeezed") for kind, _, _ in dims):
        return _box_of(missing)
    count = f"{np.count_nonzero(missing)} of {missing.size} elements were never written"
    sizes = [size for _, size, _ in dims]
    indices = np.unique(np.argwhere(missing) // np.asarray(sizes), axis=0)
    if all(size >= length for size, length in zip(sizes, missing.shape, strict=True)):
        return f"{count}: {_box(missing)}"
    words: list[str] = []
    for index in indices[:_SHOWN]:
        window = tuple(
            slice(int(i) * size, (int(i) + 1) * size) for i, size in zip(index, sizes, strict=True)
        )
        inside = missing[window]
        at = tuple(int(i) for i in index)
        words.append(f"block {at}" if inside.all() else f"in block {at} {_box(inside)}")
    more = len(indices) - _SHOWN
    if more > 0:
        words.append(f"{more} more blocks")
    total = int(np.prod([-(-n // size) for n, size in zip(missing.shape, sizes, strict=True)]))
    return f"{count}, in {len(indices)} of {total} blocks: {', '.join(words)}"


def _box(missing: Any) -> str:
    """The least box around the missing elements, ``[0:8, 3]``, and whether it has others."""
    where = np.argwhere(missing)
    low, high = where.min(axis=0), where.max(axis=0) + 1
    ranges = [
        f"{a}" if b == a + 1 and n > 1 else f"{a}:{b}"
        for a, b, n in zip(low, high, missing.shape, strict=True)
    ]
    full = int(np.prod(high - low)) == len(where)
    return f"[{', '.join(ranges)}]" if full else f"{len(where)} elements of [{', '.join(ranges)}]"
