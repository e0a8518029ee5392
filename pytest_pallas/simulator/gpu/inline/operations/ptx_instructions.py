"""What the instructions of inline assembly compute (PTX ISA 9.0, "Instruction Set").

A function gets the types and the modes that the instruction names, and the registers that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pytest_pallas.sim_errors import MissingRuleError
from pytest_pallas.simulator.gpu.inline.memory import bits_of, from_bytes, to_bytes
from pytest_pallas.simulator.gpu.inline.operations.arithmetic import (
    bit_count,
    leading_zeros,
    reversed_bits,
)

Array = np.ndarray[Any, Any]


#: Dtypes by the type of an instruction; those of two numbers in a register are the dtype of one.
PTX_TYPES: dict[str, Any] = {
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16x2": np.dtype(np.float16),
    "bf16x2": np.dtype(ml_dtypes.bfloat16),
    "f32x2": np.dtype(np.float32),
    "e4m3x2": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2x2": np.dtype(ml_dtypes.float8_e5m2),
    "e2m1x2": np.dtype(ml_dtypes.float4_e2m1fn),
    "ue8m0x2": np.dtype(ml_dtypes.float8_e8m0fnu),
    "pred": np.dtype(np.bool_),
}


def register_of(value: Array) -> Array:
    """The register of a value: of narrow ones the low bits."""
    if value.dtype == np.bool_:
        return value
    raw = to_bytes(value)
    size = max(2, raw.shape[1])
    raw = np.pad(raw, ((0, 0), (0, size - raw.shape[1])))
    return from_bytes(raw, np.dtype(f"u{size}"), ())


def _as(register: Array, kind: str) -> Array:
    """A register as numbers: of two in it, along a new last axis."""
    dtype = PTX_TYPES[kind]
    if dtype == np.bool_:
        return register.astype(np.bool_)
    count = 2 if "x2" in kind else 1
    size = -(-count * bits_of(dtype) // 8)
    if register.dtype == np.bool_ or register.dtype.itemsize < size:
        register = register.astype(np.dtype(f"u{size}"))
    found = from_bytes(to_bytes(register)[:, :size], dtype, (count,))
    return found if count > 1 else found[:, 0]


def _from(value: Array, kind: str) -> Array:
    return register_of(value.astype(PTX_TYPES[kind]).reshape(value.shape[0], -1))


def _wide(value: Array) -> Array:
    return value if value.dtype.kind in "iu" else value.astype(np.float64)


def _plain(function: Callable[..., Array]) -> Callable[..., Array]:
    """An instruction whose operands and result have its type; floats are rounded once."""

    def compute(kinds: list[str], modes: list[str], *values: Array) -> Array:
        if set(modes) - {"NaN"}:
            raise MissingRuleError(f"inline assembly with {'.'.join(modes)} is not simulated")
        return _from(function(*(_wide(_as(each, kinds[0])) for each in values)), kinds[0])

    return compute


def _extreme(keep_nan: Any, drop_nan: Any) -> Callable[..., Array]:
    def compute(kinds: list[str], modes: list[str], *values: Array) -> Array:
        parts = [_as(each, kinds[0]) for each in values]
        if parts[0].dtype.kind in "iu":
            return _from(keep_nan(*parts), kinds[0])
        wide = [_wide(each) for each in parts]
        return _from((keep_nan if "NaN" in modes else drop_nan)(*wide), kinds[0])

    return compute


def _multiply(kinds: list[str], modes: list[str], a: Array, b: Array, *more: Array) -> Array:
    """``mul`` and ``mad``: of integers the low half, ``hi`` or ``wide``."""
    kind = kinds[-1]
    left, right = _as(a, kind), _as(b, kind)
    if left.dtype.kind not in "iu":
        return _from(_wide(left) * _wide(right) + sum(_wide(_as(c, kind)) for c in more), kind)
    bits = 8 * left.dtype.itemsize
    product = left.astype(object) * right.astype(object)
    if "hi" in modes:
        product = product >> bits
    width = 2 * bits if "wide" in modes else bits
    for c in more:
        product = product + c.astype(object)
    wrapped = np.asarray(product & (1 << width) - 1)
    return wrapped.astype(np.dtype(f"u{width // 8}"))


def _convert(kinds: list[str], modes: list[str], *values: Array) -> Array:
    """To floats it rounds to the nearest; to integers as it says, and saturates."""
    to, given = kinds[0], kinds[-1]
    parts = [_as(each, given) for each in values]
    if "x2" in to and len(parts) == 2:  # the first operand goes to the upper half
        rows = max(each.shape[0] for each in parts)
        both = np.stack([np.broadcast_to(each, rows) for each in reversed(parts)], axis=-1)
        return _from(_narrowed(both, to, modes), to)
    (value,) = parts
    target = PTX_TYPES[to]
    if target.kind in "iu" and value.dtype.kind not in "iu":
        rounded = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
        round_ = next((rounded[each] for each in modes if each in rounded), np.trunc)
        whole = round_(np.nan_to_num(value.astype(np.float64), posinf=2.0**70, neginf=-(2.0**70)))
        limits = np.iinfo(target)
        return _from(np.clip(whole, float(limits.min), float(limits.max)), to)
    return _from(_narrowed(value, to, modes), to)


def _narrowed(value: Array, to: str, modes: list[str]) -> Array:
    dtype = PTX_TYPES[to]
    if "relu" in modes:
        value = np.where(value > 0, value, np.zeros((), value.dtype))
    if set(modes) - {"relu", "rzi", "rni", "rmi", "rpi", "rz"}:
        raise MissingRuleError(f"a conversion with {'.'.join(modes)} is not simulated")
    if dtype.name.startswith(("float8_e4", "float8_e5", "float4")):
        limit = float(ml_dtypes.finfo(dtype).max)
        value = np.clip(value.astype(np.float32), -limit, limit)
    if "rz" in modes and dtype.kind not in "iu":
        wide = value.astype(np.float32)
        near = wide.astype(dtype)
        away = np.abs(near.astype(np.float32)) > np.abs(wide)
        raw = near.view(np.dtype(f"u{dtype.itemsize}"))
        return np.where(away, raw - 1, raw).astype(raw.dtype).view(dtype)
    return value


def _bitwise(function: Callable[..., Array]) -> Callable[..., Array]:
    def compute(kinds: list[str], modes: list[str], *values: Array) -> Array:
        del modes
        return function(*(_as(each, kinds[0]) for each in values))

    return compute


def _shift_left(kinds: list[str], modes: list[str], a: Array, b: Array) -> Array:
    del modes
    value, bits = _as(a, kinds[0]), 8 * PTX_TYPES[kinds[0]].itemsize
    return np.where(b < bits, value << np.minimum(b, bits - 1).astype(value.dtype), 0).astype(
        value.dtype
    )


def _shift_right(kinds: list[str], modes: list[str], a: Array, b: Array) -> Array:
    """It fills with the sign of numbers that have one; shifts by too many bits are by all."""
    del modes
    value, bits = _as(a, kinds[0]), 8 * PTX_TYPES[kinds[0]].itemsize
    moved = value >> np.minimum(b, bits - 1).astype(value.dtype)
    if value.dtype.kind == "u":
        moved = np.where(b < bits, moved, 0)
    return moved.astype(value.dtype).view(np.dtype(f"u{value.dtype.itemsize}"))


def _logic(kinds: list[str], modes: list[str], a: Array, b: Array, c: Array, table: Array) -> Array:
    """``lop3``: the bits of the table say the result for each of the eight inputs."""
    del kinds, modes
    wanted = int(table.reshape(-1)[0])
    found: Array = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
    for number in range(8):
        if wanted >> number & 1:
            x, y, z = (
                each if number >> shift & 1 else ~each for each, shift in ((a, 2), (b, 1), (c, 0))
            )
            found = np.bitwise_or(found, x & y & z)
    return found


def _permute(kinds: list[str], modes: list[str], a: Array, b: Array, selector: Array) -> Array:
    """``prmt``: each nibble of the selector chooses a byte, or its sign."""
    del kinds
    if modes:
        raise MissingRuleError(f"prmt with {'.'.join(modes)} is not simulated")
    rows = max(each.shape[0] for each in (a, b, selector))
    parts = [np.broadcast_to(to_bytes(each), (rows, 4)) for each in (a, b)]
    pool = np.concatenate(parts, axis=1)
    nibbles = np.broadcast_to(selector, rows)[:, None] >> np.arange(0, 16, 4, dtype=np.uint32) & 15
    chosen = np.take_along_axis(pool, (nibbles & 7).astype(np.int64), axis=1)
    signs = np.where(chosen & 0x80, 0xFF, 0).astype(np.uint8)
    return from_bytes(np.where(nibbles & 8, signs, chosen), np.uint32, ())


def _set_predicate(kinds: list[str], modes: list[str], a: Array, b: Array) -> Array:
    compare: Any = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "lo": np.less,
        "ls": np.less_equal,
        "hi": np.greater,
        "hs": np.greater_equal,
    }.get(modes[0] if modes else "lo")
    if compare is None or len(modes) > 1:
        raise MissingRuleError(f"setp.{'.'.join(modes)} is not simulated")
    return compare(_wide(_as(a, kinds[-1])), _wide(_as(b, kinds[-1])))


def _select(kinds: list[str], modes: list[str], a: Array, b: Array, where: Array) -> Array:
    del modes
    return np.where(where.astype(np.bool_), _as(a, kinds[-1]), _as(b, kinds[-1]))


def _extract_bits(kinds: list[str], modes: list[str], a: Array, at: Array, count: Array) -> Array:
    """``bfe``, of numbers without a sign."""
    if kinds[0].startswith("s") or modes:
        raise MissingRuleError("bfe of numbers with a sign is not simulated")
    value = a.astype(np.uint64) >> (at & 255).astype(np.uint64)
    mask = (np.uint64(1) << np.minimum(count & 255, 63).astype(np.uint64)) - np.uint64(1)
    return (value & mask).astype(PTX_TYPES[kinds[0]])


INSTRUCTIONS: dict[str, Callable[..., Array]] = {
    "mov": _bitwise(lambda a: a),
    "cvt": _convert,
    "add": _plain(lambda a, b: a + b),
    "sub": _plain(lambda a, b: a - b),
    "mul": _multiply,
    "mad": _multiply,
    "fma": _plain(lambda a, b, c: a * b + c),
    "div": _plain(lambda a, b: a / b if a.dtype.kind == "f" else a // b),
    "abs": _plain(np.abs),
    "neg": _plain(np.negative),
    "max": _extreme(np.maximum, np.fmax),
    "min": _extreme(np.minimum, np.fmin),
    "ex2": _plain(np.exp2),
    "lg2": _plain(np.log2),
    "sin": _plain(np.sin),
    "cos": _plain(np.cos),
    "tanh": _plain(np.tanh),
    "rcp": _plain(lambda a: 1 / a),
    "rsqrt": _plain(lambda a: 1 / np.sqrt(a)),
    "sqrt": _plain(np.sqrt),
    "and": _bitwise(np.bitwise_and),
    "or": _bitwise(np.bitwise_or),
    "xor": _bitwise(np.bitwise_xor),
    "not": _bitwise(np.invert),
    "shl": _shift_left,
    "shr": _shift_right,
    "lop3": _logic,
    "prmt": _permute,
    "brev": _bitwise(reversed_bits),
    "popc": _bitwise(lambda a: bit_count(a).astype(np.uint32)),
    "clz": _bitwise(lambda a: leading_zeros(a).astype(np.uint32)),
    "bfe": _extract_bits,
    "setp": _set_predicate,
    "selp": _select,
}
