"""Registers of several elements: the dialect ``vector``, and structures of ``llvm``."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.gpu.inline.code import InlineOperation
from pytest_pallas.simulator.gpu.inline.frame import InlineFrame, as_type, operation, signed
from pytest_pallas.simulator.gpu.inline.operations.arithmetic import wide

Array = np.ndarray[Any, Any]

#: What MLIR writes where an index is an operand.
_DYNAMIC = -(1 << 63)


def spread(*values: Array) -> list[Array]:
    """Values with as many rows as the longest one has."""
    rows = max(each.shape[0] for each in values)
    return [np.broadcast_to(each, (rows, *each.shape[1:])) for each in values]


@operation("vector.broadcast", "vector.splat")
def _broadcast(frame: InlineFrame, op: InlineOperation, a: Array) -> Array:
    del frame
    shape = op.types[0].shape
    inner = a.shape[1:]
    a = a.reshape(a.shape[0], *(1,) * (len(shape) - len(inner)), *inner)
    return np.broadcast_to(a, (a.shape[0], *shape))


def _index(op: InlineOperation, dynamic: Any) -> list[Any]:
    given = iter(dynamic)
    return [
        next(given).astype(np.int64) if at == _DYNAMIC else int(at)
        for at in op.attributes["static_position"]
    ]


def _rows(index: list[Any], count: int) -> tuple[Any, ...]:
    """An index of [threads, ...] by numbers and by arrays of a number for each thread."""
    if not any(isinstance(at, np.ndarray) for at in index):
        return (slice(None), *index)
    return (np.arange(count), *index)


@operation("vector.extract")
def _extract(frame: InlineFrame, op: InlineOperation, a: Array, *dynamic: Array) -> Array:
    del frame
    a, *dynamic_ = spread(a, *dynamic)
    return a[_rows(_index(op, dynamic_), a.shape[0])]


@operation("vector.insert")
def _insert(
    frame: InlineFrame, op: InlineOperation, value: Array, a: Array, *dynamic: Array
) -> Array:
    del frame
    value, a, *dynamic_ = spread(value, a, *dynamic)
    found = a.copy()
    found[_rows(_index(op, dynamic_), a.shape[0])] = value
    return found


@operation("vector.extractelement", "llvm.extractelement")
def _element(frame: InlineFrame, op: InlineOperation, a: Array, *at: Array) -> Array:
    del frame, op
    if not at:
        return a
    a, at_ = spread(a, at[0])
    return a[np.arange(a.shape[0]), at_.astype(np.int64)]


@operation("vector.insertelement")
def _with_element(
    frame: InlineFrame, op: InlineOperation, value: Array, a: Array, *at: Array
) -> Array:
    del frame, op
    if not at:
        return value.reshape(value.shape[0], *a.shape[1:])
    return _replaced(value, a, at[0])


@operation("llvm.insertelement")
def _replaced_element(
    frame: InlineFrame, op: InlineOperation, a: Array, value: Array, at: Array
) -> Array:
    del frame, op
    return _replaced(value, a, at)


def _replaced(value: Array, a: Array, at: Array) -> Array:
    value, a, at = spread(value, a, at)
    found = a.copy()
    found[np.arange(a.shape[0]), at.astype(np.int64)] = value
    return found


@operation("vector.extract_strided_slice")
def _slice(frame: InlineFrame, op: InlineOperation, a: Array) -> Array:
    del frame
    return a[(slice(None), *_slices(op, "sizes"))]


@operation("vector.insert_strided_slice")
def _insert_slice(frame: InlineFrame, op: InlineOperation, value: Array, a: Array) -> Array:
    del frame
    value, a = spread(value, a)
    found = a.copy()
    offsets = op.attributes["offsets"]
    missing = len(offsets) - (value.ndim - 1)
    sizes = (1,) * missing + value.shape[1:]
    key = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
    found[(slice(None), *key)] = value.reshape(value.shape[0], *sizes)
    return found


def _slices(op: InlineOperation, sizes: str) -> list[slice]:
    return [
        slice(at, at + size)
        for at, size in zip(op.attributes["offsets"], op.attributes[sizes], strict=True)
    ]


@operation("vector.shape_cast")
def _reshape(frame: InlineFrame, op: InlineOperation, a: Array) -> Array:
    del frame
    return a.reshape(a.shape[0], *op.types[0].shape)


@operation("vector.from_elements")
def _from_elements(frame: InlineFrame, op: InlineOperation, *elements: Array) -> Array:
    del frame
    parts = spread(*elements)
    return np.stack(parts, axis=1).reshape(parts[0].shape[0], *op.types[0].shape)


@operation("vector.to_elements")
def _to_elements(frame: InlineFrame, op: InlineOperation, a: Array) -> Any:
    del frame
    flat = a.reshape(a.shape[0], -1)
    parts = [flat[:, at] for at in range(flat.shape[1])]
    return parts[0] if len(op.results) == 1 else parts


@operation("vector.shuffle")
def _shuffle(frame: InlineFrame, op: InlineOperation, a: Array, b: Array) -> Array:
    del frame
    return np.concatenate(spread(a, b), axis=1)[:, list(op.attributes["mask"])]


@operation("vector.reduction")
def _reduce(frame: InlineFrame, op: InlineOperation, a: Array, *more: Array) -> Array:
    """From the first element to the last one; each step rounds."""
    del frame
    kind = op.attributes["kind"].rpartition("<")[2].rstrip(">")
    parts = [a[:, at] for at in range(a.shape[1])]
    parts = [*more, *parts]
    found = parts[0]
    for each in parts[1:]:
        found = as_type(_combined(kind, found, each), op)
    return found


def _combined(kind: str, a: Array, b: Array) -> Array:
    if kind in ("maxsi", "minsi"):
        a, b = signed(a), signed(b)
    elif a.dtype.kind not in "uib":
        a, b = wide(a), wide(b)
    combine: Any = {
        "add": np.add,
        "mul": np.multiply,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "maximumf": np.maximum,
        "minimumf": np.minimum,
        "maxnumf": np.fmax,
        "minnumf": np.fmin,
        "maxsi": np.maximum,
        "minsi": np.minimum,
        "maxui": np.maximum,
        "minui": np.minimum,
    }[kind]
    return combine(a, b)


@operation("llvm.extractvalue")
def _field(frame: InlineFrame, op: InlineOperation, a: Any) -> Any:
    del frame
    return a[tuple(op.attributes["position"])]


@operation("llvm.insertvalue")
def _with_field(frame: InlineFrame, op: InlineOperation, a: Any, value: Any) -> Any:
    del frame
    return {**a, tuple(op.attributes["position"]): value}
