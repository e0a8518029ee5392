"""Numbers and vectors: the dialects ``arith``, ``math`` and ``vector``, and ``llvm``'s like them.

Most operations are a table of numpy functions. Integers have no sign: an operation that means one
takes its operands as ``signed``. Floats narrower than float32 are computed in float32 (``wide``),
and each operation rounds its result once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.gpu.inline.code import InlineOperation
from pallas_sim.gpu.inline.memory import (
    as_type,
    bits_of,
    from_bytes,
    pure,
    signed,
    to_bytes,
)


def wide(value: Array) -> Array:
    """Narrow floats as float32: each operation rounds its result once."""
    return value if value.dtype in (np.float32, np.float64) else value.astype(np.float32)


def _whole(value: Array) -> Array:
    """Integers without a sign that numpy can add and multiply."""
    return value.astype(np.uint8) if value.dtype.name in ("uint4", "uint2", "bool") else value


def _divided(a: Array, b: Array) -> tuple[Array, Array]:
    """Quotient and rest towards zero; a divisor of 0 is undefined, and gives 0 here."""
    safe = np.where(b == 0, 1, b)
    quotient = np.trunc(a / safe) if a.dtype.kind == "f" else None
    if quotient is None:
        quotient = a // safe
        if a.dtype.kind == "i":
            rest = a - quotient * safe
            quotient = quotient + ((rest != 0) & ((rest < 0) != (a < 0)))
    return quotient, a - quotient * safe


def _divided_up(a: Array, b: Array) -> Array:
    quotient, rest = _divided(a, b)
    return quotient + (rest != 0).astype(a.dtype)


def _shifted(shift: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Shifts by as many bits as there are or more are undefined, and give 0 here."""

    def compute(a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        return np.where(b < bits, shift(a, np.where(b < bits, b, 0)), np.zeros((), a.dtype))

    return compute


def _floats(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *values: function(*map(wide, values))


def _signs(function: Callable[..., Array]) -> Callable[..., Array]:
    """Of integers with a sign; the result has the bits of one without."""
    return lambda *values: function(*map(signed, values))


#: Names of operations, and what they compute.
_NUMBERS: dict[str, Callable[..., Any]] = {
    "arith.addi llvm.add": lambda a, b: _whole(a) + _whole(b),
    "arith.subi llvm.sub": lambda a, b: _whole(a) - _whole(b),
    "arith.muli llvm.mul": lambda a, b: _whole(a) * _whole(b),
    "arith.divui llvm.udiv": lambda a, b: _divided(_whole(a), _whole(b))[0],
    "arith.remui llvm.urem": lambda a, b: _divided(_whole(a), _whole(b))[1],
    "arith.divsi llvm.sdiv": _signs(lambda a, b: _divided(a, b)[0]),
    "arith.remsi llvm.srem": _signs(lambda a, b: _divided(a, b)[1]),
    "arith.floordivsi": _signs(lambda a, b: a // np.where(b == 0, 1, b)),
    "arith.ceildivsi": _signs(lambda a, b: -(-a // np.where(b == 0, 1, b))),
    "arith.ceildivui": _divided_up,
    "arith.andi llvm.and": lambda a, b: a & b if a.dtype != "uint4" else _whole(a) & _whole(b),
    "arith.ori llvm.or": lambda a, b: a | b if a.dtype != "uint4" else _whole(a) | _whole(b),
    "arith.xori llvm.xor": lambda a, b: a ^ b if a.dtype != "uint4" else _whole(a) ^ _whole(b),
    "arith.shli llvm.shl": _shifted(lambda a, b: a << b),
    "arith.shrui llvm.lshr": _shifted(lambda a, b: a >> b),
    "arith.shrsi llvm.ashr": lambda a, b: signed(a) >> np.minimum(b, 8 * a.dtype.itemsize - 1),
    "arith.maxsi llvm.intr.smax": _signs(np.maximum),
    "arith.minsi llvm.intr.smin": _signs(np.minimum),
    "arith.maxui llvm.intr.umax": lambda a, b: np.maximum(_whole(a), _whole(b)),
    "arith.minui llvm.intr.umin": lambda a, b: np.minimum(_whole(a), _whole(b)),
    "arith.addf llvm.fadd": _floats(np.add),
    "arith.subf llvm.fsub": _floats(np.subtract),
    "arith.mulf llvm.fmul": _floats(np.multiply),
    "arith.divf llvm.fdiv": _floats(np.divide),
    "arith.remf llvm.frem": _floats(np.fmod),
    "arith.negf llvm.fneg": lambda a: np.negative(a),
    "arith.maximumf llvm.intr.maximum": _floats(np.maximum),
    "arith.minimumf llvm.intr.minimum": _floats(np.minimum),
    "arith.maxnumf llvm.intr.maxnum": _floats(np.fmax),
    "arith.minnumf llvm.intr.minnum": _floats(np.fmin),
    "arith.extf arith.truncf llvm.fpext llvm.fptrunc": wide,
    "arith.extui arith.trunci llvm.zext llvm.trunc arith.index_castui": _whole,
    "arith.extsi llvm.sext": signed,
    "arith.index_cast": lambda a: a if a.dtype == np.bool_ else signed(a),
    "arith.uitofp llvm.uitofp": lambda a: _whole(a).astype(np.float64),
    "arith.sitofp llvm.sitofp": lambda a: signed(a).astype(np.float64),
    "math.absi llvm.intr.abs": _signs(np.abs),
    "math.absf llvm.intr.fabs": _floats(np.abs),
    "math.exp llvm.intr.exp": _floats(np.exp),
    "math.exp2 llvm.intr.exp2": _floats(np.exp2),
    "math.expm1": _floats(np.expm1),
    "math.log llvm.intr.log": _floats(np.log),
    "math.log2 llvm.intr.log2": _floats(np.log2),
    "math.log1p": _floats(np.log1p),
    "math.sin llvm.intr.sin": _floats(np.sin),
    "math.cos llvm.intr.cos": _floats(np.cos),
    "math.tanh": _floats(np.tanh),
    "math.sqrt llvm.intr.sqrt": _floats(np.sqrt),
    "math.rsqrt": _floats(lambda a: 1 / np.sqrt(a.astype(np.float64))),
    "math.erf": _floats(lambda a: np.vectorize(math.erf, otypes=[np.float64])(a)),
    "math.roundeven llvm.intr.rint llvm.intr.roundeven": _floats(np.rint),
    "math.round llvm.intr.round": _floats(lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a)),
    "math.floor llvm.intr.floor": _floats(np.floor),
    "math.ceil llvm.intr.ceil": _floats(np.ceil),
    "math.trunc llvm.intr.trunc": _floats(np.trunc),
    "math.atan2": _floats(np.arctan2),
    "math.copysign llvm.intr.copysign": _floats(np.copysign),
    "math.powf llvm.intr.pow": _floats(np.power),
    "math.fma llvm.intr.fma vector.fma": _floats(
        lambda a, b, c: a.astype(np.float64) * b + c  # exact for float32 but for a double rounding
    ),
    "llvm.intr.bitreverse": lambda a: reversed_bits(a),
    "math.ctpop llvm.intr.ctpop": lambda a: bit_count(a),
    "math.ctlz llvm.intr.ctlz": lambda a: leading_zeros(a),
    "math.cttz llvm.intr.cttz": lambda a: leading_zeros(reversed_bits(a)),
}


def _register(names: str, compute: Callable[..., Any]) -> None:
    """Register operations whose result is in the dtype that they name."""

    @pure(*names.split())
    def evaluate(op: InlineOperation, *operands: Array) -> Array:
        return as_type(np.asarray(compute(*operands)), op)


for _names, _function in _NUMBERS.items():
    _register(_names, _function)


def bits_in(value: Array) -> Array:
    """The bits of integers, the lowest first, along a new last axis."""
    raw = np.ascontiguousarray(value)[..., None].view(np.uint8)
    return np.unpackbits(raw, axis=-1, bitorder="little")


def reversed_bits(value: Array) -> Array:
    """Integers with their bits in reverse order."""
    packed = np.packbits(bits_in(value)[..., ::-1], axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(value.dtype)[..., 0]


def bit_count(value: Array) -> Array:
    """How many bits are set."""
    return bits_in(value).sum(-1).astype(value.dtype)


def leading_zeros(value: Array) -> Array:
    """How many bits above the highest one that is set are not."""
    bits = bits_in(value)[..., ::-1]
    return np.where(bits.any(-1), bits.argmax(-1), bits.shape[-1]).astype(value.dtype)


@pure("arith.constant", "llvm.mlir.constant")
def _constant(op: InlineOperation) -> Array:
    return _filled(op, op.attributes["value"])


@pure("llvm.mlir.undef", "llvm.mlir.zero", "llvm.mlir.poison", "ub.poison")
def _undefined(op: InlineOperation) -> Any:
    return {} if op.types[0].dtype is None else _filled(op, 0)


def _filled(op: InlineOperation, value: Any) -> Array:
    kind = op.types[0]
    if kind.dtype.kind in "u" or kind.dtype.name in ("uint4", "uint2"):
        bits = bits_of(kind.dtype)
        wrap = (1 << bits) - 1
        value = np.vectorize(lambda each: int(each) & wrap, otypes=[object])(value)
    return np.broadcast_to(np.asarray(value).astype(kind.dtype), (1, *kind.shape))


@pure("arith.fptosi", "llvm.fptosi", "arith.fptoui", "llvm.fptoui")
def _to_integer(op: InlineOperation, a: Array) -> Array:
    whole = np.trunc(a.astype(np.float64))
    with_sign = op.name.endswith("si")
    return as_type(saturated(whole, bits_of(op.types[0].dtype), with_sign=with_sign), op)


def saturated(whole: Array, bits: int, *, with_sign: bool) -> Array:
    """Integers for whole float64 numbers: the nearest ones there are, and 0 for NaN.

    PTX ISA, "cvt".
    """
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if with_sign else (0, (1 << bits) - 1)
    dtype = np.int64 if with_sign else np.uint64
    whole = np.nan_to_num(whole, nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
    inside = (whole > low) & (whole < high)
    edge = np.where(whole <= low, np.array(low, dtype), np.array(high, dtype))
    return np.where(inside, np.where(inside, whole, 0).astype(dtype), edge)


_COMPARE_INTEGERS: tuple[Callable[[Array, Array], Array], ...] = (
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: signed(a) < signed(b),
    lambda a, b: signed(a) <= signed(b),
    lambda a, b: signed(a) > signed(b),
    lambda a, b: signed(a) >= signed(b),
    lambda a, b: _whole(a) < _whole(b),
    lambda a, b: _whole(a) <= _whole(b),
    lambda a, b: _whole(a) > _whole(b),
    lambda a, b: _whole(a) >= _whole(b),
)

_COMPARE_FLOATS: tuple[Callable[[Array, Array], Array], ...] = (
    lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    lambda a, b: a == b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: (a < b) | (a > b),
    lambda a, b: ~(np.isnan(a) | np.isnan(b)),
)


@pure("arith.cmpi", "llvm.icmp")
def _compare(op: InlineOperation, a: Array, b: Array) -> Array:
    return _COMPARE_INTEGERS[op.attributes["predicate"]](a, b)


@pure("arith.cmpf", "llvm.fcmp")
def _compare_floats(op: InlineOperation, a: Array, b: Array) -> Array:
    """The first half of the predicates is false for NaN, and the second half is true."""
    a, b = wide(a), wide(b)
    number = op.attributes["predicate"]
    if number < 8:
        return _COMPARE_FLOATS[number](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if number == 14:
        return unordered
    if number == 15:
        return np.ones_like(unordered)
    return unordered | _COMPARE_FLOATS[number - 7](a, b)


@pure("arith.select", "llvm.select")
def _select(_op: InlineOperation, where: Array, a: Any, b: Any) -> Any:
    return chosen(where, a, b)


def chosen(where: Array, a: Any, b: Any) -> Any:
    """One value or the other, thread by thread."""
    if not isinstance(a, np.ndarray):
        return a if bool(where.reshape(-1)[0]) else b
    extra = max(a.ndim, b.ndim) - where.ndim
    merged = np.where(where.reshape(where.shape + (1,) * extra), a, b)
    return merged.astype(a.dtype, copy=False)


@pure("arith.bitcast", "llvm.bitcast", "vector.bitcast")
def _bitcast(op: InlineOperation, a: Array) -> Array:
    kind = op.types[0]
    if kind.dtype == a.dtype and kind.shape == a.shape[1:]:
        return a
    return from_bytes(to_bytes(a), kind.dtype, kind.shape)


# Several elements: the dialect ``vector``, and structures of ``llvm``.


#: What MLIR writes where an index is an operand.
_DYNAMIC = -(1 << 63)


def spread(*values: Array) -> list[Array]:
    """Values with as many rows as the longest one has."""
    rows = max(each.shape[0] for each in values)
    return [np.broadcast_to(each, (rows, *each.shape[1:])) for each in values]


@pure("vector.broadcast", "vector.splat")
def _broadcast(op: InlineOperation, a: Array) -> Array:
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


@pure("vector.extract")
def _extract(op: InlineOperation, a: Array, *dynamic: Array) -> Array:
    a, *dynamic_ = spread(a, *dynamic)
    return a[_rows(_index(op, dynamic_), a.shape[0])]


@pure("vector.insert")
def _insert(op: InlineOperation, value: Array, a: Array, *dynamic: Array) -> Array:
    value, a, *dynamic_ = spread(value, a, *dynamic)
    result = a.copy()
    result[_rows(_index(op, dynamic_), a.shape[0])] = value
    return result


@pure("vector.extractelement", "llvm.extractelement")
def _element(_op: InlineOperation, a: Array, *at: Array) -> Array:
    if not at:
        return a
    a, at_ = spread(a, at[0])
    return a[np.arange(a.shape[0]), at_.astype(np.int64)]


@pure("vector.insertelement")
def _with_element(_op: InlineOperation, value: Array, a: Array, *at: Array) -> Array:
    if not at:
        return value.reshape(value.shape[0], *a.shape[1:])
    return _replaced(value, a, at[0])


@pure("llvm.insertelement")
def _replaced_element(_op: InlineOperation, a: Array, value: Array, at: Array) -> Array:
    return _replaced(value, a, at)


def _replaced(value: Array, a: Array, at: Array) -> Array:
    value, a, at = spread(value, a, at)
    result = a.copy()
    result[np.arange(a.shape[0]), at.astype(np.int64)] = value
    return result


@pure("vector.extract_strided_slice")
def _slice(op: InlineOperation, a: Array) -> Array:
    corner = zip(op.attributes["offsets"], op.attributes["sizes"], strict=True)
    return a[(slice(None), *(slice(at, at + size) for at, size in corner))]


@pure("vector.insert_strided_slice")
def _insert_slice(op: InlineOperation, value: Array, a: Array) -> Array:
    value, a = spread(value, a)
    result = a.copy()
    offsets = op.attributes["offsets"]
    missing = len(offsets) - (value.ndim - 1)
    sizes = (1,) * missing + value.shape[1:]
    key = tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))
    result[(slice(None), *key)] = value.reshape(value.shape[0], *sizes)
    return result


@pure("vector.shape_cast")
def _reshape(op: InlineOperation, a: Array) -> Array:
    return a.reshape(a.shape[0], *op.types[0].shape)


@pure("vector.from_elements")
def _from_elements(op: InlineOperation, *elements: Array) -> Array:
    parts = spread(*elements)
    return np.stack(parts, axis=1).reshape(parts[0].shape[0], *op.types[0].shape)


@pure("vector.to_elements")
def _to_elements(_op: InlineOperation, a: Array) -> Any:
    flat = a.reshape(a.shape[0], -1)
    return [flat[:, at] for at in range(flat.shape[1])]


@pure("vector.shuffle")
def _shuffle(op: InlineOperation, a: Array, b: Array) -> Array:
    return np.concatenate(spread(a, b), axis=1)[:, list(op.attributes["mask"])]


def kind_of(op: InlineOperation) -> str:
    """What an operation does by its attribute ``kind``, as ``#vector.kind<add>``."""
    return op.attributes["kind"].rpartition("<")[2].rstrip(">")


@pure("vector.reduction")
def _reduce(op: InlineOperation, a: Array, *more: Array) -> Array:
    """From the first element to the last one; each step rounds."""
    parts = (*more, *(a[:, at] for at in range(a.shape[1])))
    return functools.reduce(lambda x, y: as_type(combined(kind_of(op), x, y), op), parts)


def combined(kind: str, a: Array, b: Array) -> Array:
    """What a reduction of a kind makes of two values: ``"add"``, ``"maxsi"``, ``"minnumf"``, ..."""
    if kind in ("maxsi", "minsi"):
        a, b = signed(a), signed(b)
    elif a.dtype.kind not in "uib":
        a, b = wide(a), wide(b)
    return _COMBINING[kind](a, b)


_COMBINING: dict[str, Callable[[Array, Array], Array]] = {
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
}


@pure("llvm.extractvalue")
def _field(op: InlineOperation, a: Any) -> Any:
    return a[tuple(op.attributes["position"])]


@pure("llvm.insertvalue")
def _with_field(op: InlineOperation, a: Any, value: Any) -> Any:
    return {**a, tuple(op.attributes["position"]): value}
