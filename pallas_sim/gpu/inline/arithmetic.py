"""Operations on numbers and vectors: the dialects ``arith``, ``math``, ``vector`` and ``llvm``.

Most of them are a table of numpy functions. Integers have no sign: an operation that means one
takes its operands as ``signed``. Floats narrower than float32 are computed in float32 (``wide``),
and each operation rounds its result once.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
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
    """Convert narrow floats to float32, so that an operation rounds once, at its end."""
    return value if value.dtype in (np.float32, np.float64) else value.astype(np.float32)


def _whole(value: Array) -> Array:
    """Convert narrow integers to a dtype that numpy can add and multiply."""
    return value.astype(np.uint8) if value.dtype.name in ("uint4", "uint2", "bool") else value


def _divided(a: Array, b: Array) -> tuple[Array, Array]:
    """Divide integers towards zero; returns quotient and rest. Dividing by 0 is undefined."""
    safe = np.where(b == 0, 1, b)
    quotient = a // safe
    if a.dtype.kind == "i":
        rest = a - quotient * safe
        quotient = quotient + ((rest != 0) & ((rest < 0) != (a < 0)))
    return quotient, a - quotient * safe


def _divided_up(a: Array, b: Array) -> Array:
    quotient, rest = _divided(a, b)
    return quotient + (rest != 0).astype(a.dtype)


def _shifted(shift: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Shift integers. A shift by all their bits or more is undefined, and returns 0 here."""

    def compute(a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        return np.where(b < bits, shift(a, np.where(b < bits, b, 0)), np.zeros((), a.dtype))

    return compute


def _floats(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *values: function(*map(wide, values))


def _wholes(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *values: function(*map(_whole, values))


def _signs(function: Callable[..., Array]) -> Callable[..., Array]:
    """Compute with the signs of integers; the result has the bits of one without a sign."""
    return lambda *values: function(*map(signed, values))


#: Functions of numbers by the names of operations.
_NUMBERS: dict[str, Callable[..., Any]] = {
    "arith.addi llvm.add": _wholes(operator.add),
    "arith.subi llvm.sub": _wholes(operator.sub),
    "arith.muli llvm.mul": _wholes(operator.mul),
    "arith.divui llvm.udiv": _wholes(lambda a, b: _divided(a, b)[0]),
    "arith.remui llvm.urem": _wholes(lambda a, b: _divided(a, b)[1]),
    "arith.divsi llvm.sdiv": _signs(lambda a, b: _divided(a, b)[0]),
    "arith.remsi llvm.srem": _signs(lambda a, b: _divided(a, b)[1]),
    "arith.floordivsi": _signs(lambda a, b: a // np.where(b == 0, 1, b)),
    "arith.ceildivsi": _signs(lambda a, b: -(-a // np.where(b == 0, 1, b))),
    "arith.ceildivui": _divided_up,
    "arith.andi llvm.and": _wholes(operator.and_),
    "arith.ori llvm.or": _wholes(operator.or_),
    "arith.xori llvm.xor": _wholes(operator.xor),
    "arith.shli llvm.shl": _shifted(lambda a, b: a << b),
    "arith.shrui llvm.lshr": _shifted(lambda a, b: a >> b),
    "arith.shrsi llvm.ashr": lambda a, b: signed(a) >> np.minimum(b, 8 * a.dtype.itemsize - 1),
    "arith.maxsi llvm.intr.smax": _signs(np.maximum),
    "arith.minsi llvm.intr.smin": _signs(np.minimum),
    "arith.maxui llvm.intr.umax": _wholes(np.maximum),
    "arith.minui llvm.intr.umin": _wholes(np.minimum),
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


_FUNCTIONS = {name: function for names, function in _NUMBERS.items() for name in names.split()}


@pure(*_FUNCTIONS)
def _compute(op: InlineOperation, *operands: Array) -> Array:
    return as_type(np.asarray(_FUNCTIONS[op.name](*operands)), op)


def combined(kind: str, a: Array, b: Array) -> Array:
    """Combine two values by a kind of reduction: ``"add"``, ``"and"``, ``"maxsi"``, ``"minnumf"``.

    These are the names of ``arith``, without the letter for integers or floats of the first ones.
    """
    letter = "i" if a.dtype.kind in "uib" or a.dtype.name in ("uint4", "uint2") else "f"
    short = kind in ("add", "mul", "and", "or", "xor")
    return _FUNCTIONS[f"arith.{kind}{letter if short else ''}"](a, b)


def bits_in(value: Array) -> Array:
    """Return the bits of integers, the lowest first, along a new last axis."""
    raw = np.ascontiguousarray(value)[..., None].view(np.uint8)
    return np.unpackbits(raw, axis=-1, bitorder="little")


def reversed_bits(value: Array) -> Array:
    """Reverse the bits of integers."""
    packed = np.packbits(bits_in(value)[..., ::-1], axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(value.dtype)[..., 0]


def bit_count(value: Array) -> Array:
    """Count the bits that are set."""
    return bits_in(value).sum(-1).astype(value.dtype)


def leading_zeros(value: Array) -> Array:
    """Count the bits above the highest one that is set."""
    bits = bits_in(value)[..., ::-1]
    return np.where(bits.any(-1), bits.argmax(-1), bits.shape[-1]).astype(value.dtype)


@pure(
    *("arith.constant", "llvm.mlir.constant"),
    *("llvm.mlir.undef", "llvm.mlir.zero", "llvm.mlir.poison", "ub.poison"),
)
def _constant(op: InlineOperation) -> Any:
    kind, value = op.types[0], op.attributes.get("value", 0)
    if kind.dtype is None:
        return {}  # a structure, whose fields are inserted later
    if kind.dtype.kind in "u" or kind.dtype.name in ("uint4", "uint2"):
        wrap = (1 << bits_of(kind.dtype)) - 1
        value = np.vectorize(lambda number: int(number) & wrap, otypes=[object])(value)
    return np.broadcast_to(np.asarray(value).astype(kind.dtype), (1, *kind.shape))


@pure("arith.fptosi", "llvm.fptosi", "arith.fptoui", "llvm.fptoui")
def _to_integer(op: InlineOperation, a: Array) -> Array:
    whole = np.trunc(a.astype(np.float64))
    with_sign = op.name.endswith("si")
    return as_type(saturated(whole, bits_of(op.types[0].dtype), with_sign=with_sign), op)


def saturated(whole: Array, bits: int, *, with_sign: bool) -> Array:
    """Convert whole float64 numbers to the nearest integers, NaN to 0 (PTX ISA, "cvt")."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if with_sign else (0, (1 << bits) - 1)
    dtype = np.int64 if with_sign else np.uint64
    whole = np.nan_to_num(whole, nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
    inside = (whole > low) & (whole < high)
    edge = np.where(whole <= low, np.array(low, dtype), np.array(high, dtype))
    return np.where(inside, np.where(inside, whole, 0).astype(dtype), edge)


_ORDERS = (operator.lt, operator.le, operator.gt, operator.ge)

#: Comparisons by the number of MLIR's predicate: with a sign, then without.
_COMPARE_INTEGERS: tuple[Callable[..., Array], ...] = (
    *(operator.eq, operator.ne, *map(_signs, _ORDERS), *map(_wholes, _ORDERS)),
)

#: As ``_COMPARE_INTEGERS``, up to the eight predicates that are true for NaN.
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
    """Compare floats; predicates from 8 on are true for NaN, the others false."""
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


def chosen(where: Array, a: Any, b: Any) -> Any:
    """Choose one value or the other, thread by thread."""
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


#: MLIR's number for an index that is an operand.
_DYNAMIC = -(1 << 63)


def spread(*values: Array) -> list[Array]:
    """Repeat the rows of values, so that all have as many as the longest one."""
    rows = max(value.shape[0] for value in values)
    return [np.broadcast_to(value, (rows, *value.shape[1:])) for value in values]


@pure("vector.broadcast", "vector.splat")
def _broadcast(op: InlineOperation, a: Array) -> Array:
    shape = op.types[0].shape
    inner = a.shape[1:]
    a = a.reshape(a.shape[0], *(1,) * (len(shape) - len(inner)), *inner)
    return np.broadcast_to(a, (a.shape[0], *shape))


def _elements(op: InlineOperation, dynamic: Iterable[Array], threads: int) -> tuple[Any, ...]:
    """Return the index of elements in an array [threads, ...].

    An operation names their position by numbers and by operands, or by one operand alone.
    """
    arrays = [operand.astype(np.int64) for operand in dynamic]
    rows = np.arange(threads) if arrays else slice(None)
    if "static_position" not in op.attributes:
        return (rows, *arrays)
    operands = iter(arrays)
    static = op.attributes["static_position"]
    return (rows, *(next(operands) if at == _DYNAMIC else int(at) for at in static))


@pure("vector.extract", "vector.extractelement", "llvm.extractelement")
def _extract(op: InlineOperation, a: Array, *dynamic: Array) -> Array:
    a, *operands = spread(a, *dynamic)
    return a[_elements(op, operands, a.shape[0])]


@pure("vector.insert", "vector.insertelement")
def _insert(op: InlineOperation, value: Array, a: Array, *dynamic: Array) -> Array:
    value, a, *operands = spread(value, a, *dynamic)
    result = a.copy()
    result[_elements(op, operands, a.shape[0])] = value
    return result


pure("llvm.insertelement")(lambda op, a, value, at: _insert(op, value, a, at))


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


@pure("vector.from_elements")
def _from_elements(op: InlineOperation, *elements: Array) -> Array:
    parts = spread(*elements)
    return np.stack(parts, axis=1).reshape(parts[0].shape[0], *op.types[0].shape)


@pure("vector.to_elements")
def _to_elements(_op: InlineOperation, a: Array) -> Any:
    flat = a.reshape(a.shape[0], -1)
    return [flat[:, at] for at in range(flat.shape[1])]


def kind_of(op: InlineOperation) -> str:
    """Return the attribute ``kind`` of an operation, such as ``#vector.kind<add>``."""
    return op.attributes["kind"].rpartition("<")[2].rstrip(">")


@pure("vector.reduction")
def _reduce(op: InlineOperation, a: Array, *more: Array) -> Array:
    """Reduce from the first element to the last one; each step rounds."""
    parts = (*more, *(a[:, at] for at in range(a.shape[1])))
    return functools.reduce(lambda x, y: as_type(combined(kind_of(op), x, y), op), parts)


pure("arith.select", "llvm.select")(lambda op, where, a, b: chosen(where, a, b))
pure("vector.shape_cast")(lambda op, a: a.reshape(a.shape[0], *op.types[0].shape))
pure("vector.shuffle")(
    lambda op, a, b: np.concatenate(spread(a, b), axis=1)[:, list(op.attributes["mask"])]
)
pure("llvm.extractvalue")(lambda op, a: a[tuple(op.attributes["position"])])
pure("llvm.insertvalue")(lambda op, a, value: {**a, tuple(op.attributes["position"]): value})
