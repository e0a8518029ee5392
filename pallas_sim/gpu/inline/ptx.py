"""PTX: operations of the threads of a warp together, and inline assembly.

The dialects ``nvvm`` and ``gpu`` name instructions one by one: numbers of threads, shuffles, votes,
barriers, fences, matrices between shared memory and registers. ``llvm.inline_asm`` has them as
text, which is run line by line. Its registers are bits: unsigned integers of 16, 32 or 64 bits, or
a predicate. An instruction has a name, modes such as the rounding, and types at its end. Its
function in ``INSTRUCTIONS`` takes these types, the modes, and the registers that it reads (PTX ISA
9.0, "Instruction Set").
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.errors import MissingRuleError
from pallas_sim.gpu.inline.arithmetic import (
    bit_count,
    combined,
    kind_of,
    leading_zeros,
    reversed_bits,
    saturated,
    spread,
)
from pallas_sim.gpu.inline.code import InlineOperation
from pallas_sim.gpu.inline.memory import (
    InlineFrame,
    as_type,
    bits_of,
    from_bytes,
    operation,
    pure,
    to_bytes,
)

# Operations of the threads of a warp together.


@operation(
    *("gpu.thread_id", "gpu.block_id", "gpu.block_dim", "gpu.grid_dim"),
    *("gpu.cluster_block_id", "gpu.cluster_dim_blocks"),
)
def _geometry(frame: InlineFrame, op: InlineOperation) -> Array:
    axis = "xyz".index(op.attributes["dimension"].rstrip(">")[-1])
    kind = op.name.partition(".")[2]
    value = frame.geometry[kind][axis]
    if kind == "thread_id" and axis == 0:
        return (np.arange(frame.threads) + frame.first).astype(np.uint64)
    return np.array([value], np.uint64)


@operation("nvvm.read.ptx.sreg.tid.x", "gpu.lane_id", "nvvm.read.ptx.sreg.laneid")
def _thread(frame: InlineFrame, op: InlineOperation) -> Array:
    numbers = (np.arange(frame.threads) + frame.first).astype(np.uint64)
    return as_type(numbers if op.name.endswith("tid.x") else numbers % 32, op)


def lanes(frame: InlineFrame, value: Array) -> Array:
    """Reshape a value to [warps, 32, ...]."""
    value = frame.all(value)
    return value.reshape(-1, 32, *value.shape[1:])


@operation("nvvm.shfl.sync")
def _shuffle(
    frame: InlineFrame, op: InlineOperation, _mask: Array, value: Array, at: Array, clamp: Array
) -> Array:
    """Exchange values between lanes (PTX ISA, "shfl.sync")."""
    kind = kind_of(op)
    values = lanes(frame, value)
    here = np.broadcast_to(np.arange(32), values.shape[:2])
    other = lanes(frame, at).astype(np.int64) & 31
    bound = lanes(frame, clamp).astype(np.int64)
    segment = bound >> 8 & 31
    low = here & segment
    high = low | (bound & 31 & ~segment)
    source = {
        "up": here - other,
        "down": here + other,
        "bfly": here ^ other,
        "idx": low | (other & ~segment),
    }[kind]
    # A thread whose source is outside of its segment keeps its own value.
    source = np.where(source >= high if kind == "up" else source <= high, source, here)
    return np.take_along_axis(values, source, axis=1).reshape(frame.threads)


@operation("nvvm.elect.sync")
def _elect(frame: InlineFrame, _op: InlineOperation, *_mask: Array) -> Array:
    """Elect an active thread of each warp. PTX leaves open which one; here it is the first."""
    active = np.ones(frame.threads, np.bool_) if frame.active is None else frame.active
    elected = np.zeros_like(active)
    for warp in range(0, frame.threads, 32):
        candidates = np.flatnonzero(active[warp : warp + 32])
        if candidates.size:
            elected[warp + candidates[0]] = True
    return elected


@operation("nvvm.vote.sync")
def _vote(frame: InlineFrame, op: InlineOperation, _mask: Array, value: Array) -> Array:
    kind = kind_of(op)
    values = lanes(frame, value)
    if kind == "ballot":
        ballots = (values.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1)
        return as_type(np.repeat(ballots, 32), op)
    if kind == "uni":
        answers = (values == values[:, :1]).all(1)
    else:
        answers = values.all(1) if kind == "all" else values.any(1)
    return np.repeat(answers, 32)


@operation("nvvm.redux.sync")
def _reduce(frame: InlineFrame, op: InlineOperation, value: Array, _mask: Array) -> Array:
    kind = kind_of(op)
    values = lanes(frame, value)
    parts = (values[:, lane] for lane in range(32))
    total = functools.reduce(functools.partial(combined, _REDUCTIONS.get(kind, kind)), parts)
    return as_type(np.repeat(total, 32), op)


#: Reductions by the names that the dialect ``vector`` has for them.
_REDUCTIONS = {
    "umax": "maxui",
    "umin": "minui",
    "max": "maxsi",
    "min": "minsi",
    "fmax": "maximumf",
    "fmin": "minimumf",
}


@pure("nvvm.bar.warp.sync", "gpu.printf", "nvvm.nanosleep", "llvm.intr.assume")
def _nothing(_op: InlineOperation, *_: Any) -> None:
    """Do nothing: all threads of a warpgroup go on together, and nothing is printed."""


@operation("gpu.barrier", "nvvm.barrier0", "nvvm.barrier")
def _barrier(frame: InlineFrame, op: InlineOperation, *operands: Array) -> None:
    """Let threads meet: those of the second operand, or of the block."""
    numbers = [_one(operand, op.name) for operand in operands]
    meet(frame, *numbers)


def meet(
    frame: InlineFrame, number: int = 0, count: int | None = None, *, waits: bool = True
) -> None:
    """Let threads meet at a barrier of the block: so many, by default all of them."""
    count = frame.geometry["block_dim"][0] if count is None else count
    if count != frame.threads:  # those that run the code go on together anyway
        frame.meet(number, count, waits)


def _one(value: Array, name: str) -> int:
    """Return a number that all threads have.

    Raises:
      MissingRuleError: they have different ones.
    """
    numbers = np.unique(value)
    if numbers.size != 1:
        raise MissingRuleError(f"{name} with a number of its own for each thread is not simulated")
    return int(numbers[0])


@operation("nvvm.fence.proxy")
def _proxy_fence(frame: InlineFrame, op: InlineOperation) -> None:
    """Order accesses of threads and engines (PTX ISA, "fence.proxy.async")."""
    frame.fence("async" in op.attributes["kind"])


@operation("nvvm.fence.sc.cluster", "nvvm.memory.barrier", "nvvm.fence.mbarrier.init")
def _fence(frame: InlineFrame, _op: InlineOperation) -> None:
    frame.fence(False)


# Matrices between shared memory and the registers of a warp: ``ldmatrix`` and ``stmatrix``.


def _is_transposed(op: InlineOperation) -> bool:
    """Return whether a thread has two elements of a column, and not of a row.

    Raises:
      MissingRuleError: the matrices are not of 8 by 8 elements of 16 bits.
    """
    shape = "".join(op.attributes["shape"].split())
    if "b16" not in op.attributes["eltType"] or "m=8,n=8" not in shape:
        raise MissingRuleError(
            f"{op.name} of {op.attributes['shape']} {op.attributes['eltType']} is not simulated"
        )
    return "col" in op.attributes["layout"]


def _rows(addresses: Array, number: int) -> Array:
    """Return the addresses of the rows of a matrix, which eight threads of each warp have."""
    rows = addresses.reshape(-1, 32)[:, 8 * number : 8 * number + 8]
    return np.ascontiguousarray(rows).reshape(-1)


@operation("nvvm.ldmatrix")
def _load(frame: InlineFrame, op: InlineOperation, pointer: Array) -> Any:
    """Load matrices: thread ``t`` gets elements ``2 t % 8`` and the next of row ``t / 4``."""
    transposed, matrices = _is_transposed(op), []
    addresses = frame.all(pointer)
    for number in range(int(op.attributes["num"])):
        raw = frame.space.load(_rows(addresses, number), 16, None)
        matrix = from_bytes(raw, np.uint16, (8,)).reshape(-1, 8, 8)
        if transposed:
            matrix = matrix.transpose(0, 2, 1)
        matrices.append(from_bytes(to_bytes(matrix.reshape(frame.threads, 2)), np.uint32, ()))
    if len(matrices) == 1:
        return matrices[0]
    return {(number,): value for number, value in enumerate(matrices)}


@operation("nvvm.stmatrix")
def _store(frame: InlineFrame, op: InlineOperation, pointer: Array, *values: Array) -> None:
    transposed, addresses = _is_transposed(op), frame.all(pointer)
    for number, value in enumerate(values):
        raw = to_bytes(frame.all(value))
        matrix = from_bytes(raw, np.uint16, (2,)).reshape(-1, 8, 8)
        if transposed:
            matrix = matrix.transpose(0, 2, 1)
        raw = to_bytes(np.ascontiguousarray(matrix).reshape(-1, 8))
        frame.space.store(_rows(addresses, number), raw, None)


# Inline assembly: its instructions one after the other.


#: Modes that make no difference here: each result is rounded to the nearest, and conversions to
#: narrow floats saturate.
_ADJECTIVES = frozenset(
    {
        *("rn", "rna", "approx", "ftz", "noftz", "satfinite", "full", "lo"),
        *("sync", "aligned", "release", "acquire", "relaxed"),
    }
)


@operation("llvm.inline_asm")
def _assembly(frame: InlineFrame, op: InlineOperation, *operands: Array) -> Any:
    registers: dict[str, Array] = {}
    constraints = list(filter(None, op.attributes["constraints"].split(",")))
    outputs = [constraint for constraint in constraints if constraint.startswith("=")]
    inputs = [constraint for constraint in constraints if not constraint.startswith(("=", "~"))]
    for number, (constraint, value) in enumerate(zip(inputs, operands, strict=True)):
        registers[f"${number + len(outputs)}"] = register_of(value)
        if constraint.isdigit():  # the same register as a result
            registers[f"${constraint}"] = register_of(value)
    for line in instructions(op.attributes["asm_string"]):
        _execute(frame, line, registers)
    if not op.results:
        return ()
    kind = op.types[0]
    if kind.kind != "other":
        return _value(registers["$0"], kind.dtype, kind.shape) if outputs else ()
    fields = re.findall(r"i\d+|f\d+|bf16", kind.text)
    names: dict[str, str] = {"i1": "pred", **{f"i{bits}": f"u{bits}" for bits in (8, 16, 32, 64)}}
    return {
        (number,): _value(registers[f"${number}"], PTX_TYPES[names.get(str(name), str(name))], ())
        for number, name in enumerate(fields)
    }


def instructions(text: str) -> list[str]:
    """Split inline assembly into instructions, without comments, outer braces and declarations."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    lines = [" ".join(line.split()) for line in text.split(";")]
    return [line for line in lines if line and not line.startswith(".reg")]


def _value(register: Array, dtype: Any, shape: tuple[int, ...]) -> Array:
    if dtype == np.bool_:
        return register.astype(np.bool_)
    count = int(np.prod(shape, dtype=np.int64)) * bits_of(dtype) // 8
    raw = to_bytes(register)
    return from_bytes(raw[:, : max(count, 1)], dtype, shape)


def _execute(frame: InlineFrame, line: str, registers: dict[str, Array]) -> None:
    predicate = None
    if line.startswith("@"):
        guard, _, line = line[1:].partition(" ")
        predicate = registers[guard.lstrip("!")].astype(np.bool_)
        predicate = ~predicate if guard.startswith("!") else predicate
    name, _, rest = line.partition(" ")
    parts = name.split(".")
    kinds = [part for part in parts[1:] if part in PTX_TYPES]
    modes = [part for part in parts[1:] if part not in PTX_TYPES and part not in _ADJECTIVES]
    if parts[0] in ("fence", "membar"):
        frame.fence("proxy" in parts and "async" in parts)
        return
    if parts[0] in ("nanosleep", "griddepcontrol", "prefetch", "setmaxnreg"):
        return
    operands = _operands(rest)
    if parts[0] in ("bar", "barrier") and ("sync" in parts or "arrive" in parts):
        numbers = [_one(_read(operand, registers, "u32"), name) for operand in operands]
        meet(frame, *numbers, waits="arrive" not in parts)
        return
    compute = INSTRUCTIONS.get(parts[0])
    if compute is None or not kinds:
        raise MissingRuleError(
            f"the simulator does not know the instruction {line!r}, which inline_mgpu inlines"
        )
    target, *sources = operands
    if parts[0] == "mov" and any(operand.startswith("{") for operand in operands):
        _move_parts(target, sources, kinds[0], registers)
        return
    # These name the type of their operands last, if that of the result is another one.
    kind = kinds[-1] if parts[0] in ("cvt", "setp", "set", "mul", "mad", "selp") else kinds[0]
    values = [source if source[0] == "{" else _read(source, registers, kind) for source in sources]
    result = compute(kinds, modes, *values)
    if target == "_":  # the result is not used
        return
    register = target.partition("|")[0]
    if predicate is not None and register in registers:
        result = np.where(predicate, result, registers[register]).astype(result.dtype)
    registers[register] = result


def _operands(text: str) -> list[str]:
    parts: list[str] = re.findall(r"\{[^}]*\}|[^,{}]+", text)
    return [part.strip() for part in parts if part.strip()]


def _read(name: str, registers: dict[str, Array], kind: str) -> Array:
    name = name.strip("[]")
    if name in registers:
        return registers[name]
    text = name.lstrip("-").lower()
    if text.startswith("0f") and len(text) == 10:
        return np.array([int(text[2:], 16)], np.uint32)
    try:
        number = int(name.rstrip("uU"), 0)
    except ValueError:
        if kind in ("f32", "f64") and re.fullmatch(r"-?[\d.]+(e-?\d+)?", name):
            return register_of(np.array([float(name)], PTX_TYPES[kind]))
        raise MissingRuleError(f"inline assembly reads {name}, which nothing has set") from None
    bits = max(8 * PTX_TYPES[kind].itemsize, 32)
    return np.array([number & (1 << bits) - 1], np.dtype(f"u{bits // 8}"))


def _move_parts(target: str, sources: list[str], kind: str, registers: dict[str, Array]) -> None:
    """Run ``mov`` between a register and its parts."""
    size = PTX_TYPES[kind].itemsize
    if not target.startswith("{"):
        parts = [_read(part, registers, kind) for part in _operands(sources[0].strip("{}"))]
        raw = np.concatenate([to_bytes(part) for part in spread(*parts)], axis=1)
        registers[target] = from_bytes(raw[:, :size], PTX_TYPES[kind], ())
        return
    names = _operands(target.strip("{}"))
    raw = to_bytes(_read(sources[0], registers, kind))[:, :size]
    width = size // len(names)
    for number, name in enumerate(names):
        part = raw[:, number * width : (number + 1) * width]
        registers[name] = from_bytes(part, np.dtype(f"u{width}"), ())


# The functions of instructions.


#: Dtypes by the type of an instruction; for two numbers in a register it is the dtype of one.
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
    """Put a value into a register, narrow ones into its low bits."""
    if value.dtype == np.bool_:
        return value
    raw = to_bytes(value)
    size = max(2, raw.shape[1])
    raw = np.pad(raw, ((0, 0), (0, size - raw.shape[1])))
    return from_bytes(raw, np.dtype(f"u{size}"), ())


def _as(register: Array, kind: str) -> Array:
    """Read the numbers in a register: two of them along a new last axis."""
    dtype = PTX_TYPES[kind]
    if dtype == np.bool_:
        return register.astype(np.bool_)
    count = 2 if "x2" in kind else 1
    size = -(-count * bits_of(dtype) // 8)
    if register.dtype == np.bool_ or register.dtype.itemsize < size:
        register = register.astype(np.dtype(f"u{size}"))
    numbers = from_bytes(to_bytes(register)[:, :size], dtype, (count,))
    return numbers if count > 1 else numbers[:, 0]


def _from(value: Array, kind: str) -> Array:
    return register_of(value.astype(PTX_TYPES[kind]).reshape(value.shape[0], -1))


def _wide(value: Array) -> Array:
    return value if value.dtype.kind in "iu" else value.astype(np.float64)


def _plain(function: Callable[..., Array]) -> Callable[..., Array]:
    """Make an instruction whose operands and result have its type; it rounds floats once."""

    def compute(kinds: list[str], modes: list[str], *values: Array) -> Array:
        if set(modes) - {"NaN"}:
            raise MissingRuleError(f"inline assembly with {'.'.join(modes)} is not simulated")
        return _from(function(*(_wide(_as(value, kinds[0])) for value in values)), kinds[0])

    return compute


def _extreme(keep_nan: Any, drop_nan: Any) -> Callable[..., Array]:
    def compute(kinds: list[str], modes: list[str], *values: Array) -> Array:
        parts = [_as(value, kinds[0]) for value in values]
        if parts[0].dtype.kind in "iu":
            return _from(keep_nan(*parts), kinds[0])
        wide = [_wide(value) for value in parts]
        return _from((keep_nan if "NaN" in modes else drop_nan)(*wide), kinds[0])

    return compute


def _multiply(kinds: list[str], modes: list[str], a: Array, b: Array, *more: Array) -> Array:
    """Run ``mul`` and ``mad``: of integers the low half, ``hi`` or ``wide``."""
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
    """Run ``cvt``: it rounds to the nearest float, or by its mode to an integer, and saturates."""
    to = kinds[0]
    parts = [_as(value, kinds[-1]) for value in values]
    if "x2" in to and len(parts) == 2:  # the first operand goes to the upper half
        both = np.stack(spread(*reversed(parts)), axis=-1)
        return _from(_narrowed(both, to, modes), to)
    (value,) = parts
    target = PTX_TYPES[to]
    if target.kind in "iu" and value.dtype.kind not in "iu":
        roundings = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
        round_ = next((roundings[mode] for mode in modes if mode in roundings), np.trunc)
        whole = round_(value.astype(np.float64))
        return _from(saturated(whole, 8 * target.itemsize, with_sign=target.kind == "i"), to)
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
    def compute(kinds: list[str], _modes: list[str], *values: Array) -> Array:
        return function(*(_as(value, kinds[0]) for value in values))

    return compute


def _shifting(shift: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Make a shift; one by too many bits is by all of them, and a sign fills the bits."""

    def compute(kinds: list[str], _modes: list[str], a: Array, b: Array) -> Array:
        value, bits = _as(a, kinds[0]), 8 * PTX_TYPES[kinds[0]].itemsize
        moved = shift(value, np.minimum(b, bits - 1).astype(value.dtype))
        if shift is np.left_shift or value.dtype.kind == "u":
            moved = np.where(b < bits, moved, 0)
        return moved.astype(value.dtype).view(np.dtype(f"u{value.dtype.itemsize}"))

    return compute


def _logic(
    _kinds: list[str], _modes: list[str], a: Array, b: Array, c: Array, table: Array
) -> Array:
    """Run ``lop3``: a bit of the table is the result for each of the eight inputs."""
    results = int(table.reshape(-1)[0])
    result: Array = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
    for number in range(8):
        if results >> number & 1:
            x, y, z = (
                bits if number >> shift & 1 else ~bits for bits, shift in ((a, 2), (b, 1), (c, 0))
            )
            result = np.bitwise_or(result, x & y & z)
    return result


def _permute(_kinds: list[str], modes: list[str], a: Array, b: Array, selector: Array) -> Array:
    """Run ``prmt``: each nibble of the selector chooses a byte, or its sign."""
    if modes:
        raise MissingRuleError(f"prmt with {'.'.join(modes)} is not simulated")
    a, b, selector = spread(a, b, selector)
    pool = np.concatenate([to_bytes(a), to_bytes(b)], axis=1)
    nibbles = selector[:, None] >> np.arange(0, 16, 4, dtype=np.uint32) & 15
    chosen = np.take_along_axis(pool, (nibbles & 7).astype(np.int64), axis=1)
    signs = np.where(chosen & 0x80, 0xFF, 0).astype(np.uint8)
    return from_bytes(np.where(nibbles & 8, signs, chosen), np.uint32, ())


def _set_predicate(kinds: list[str], modes: list[str], a: Array, b: Array) -> Array:
    # "lo" is an adjective, too: that of the low half of a product.
    mode = modes[0] if modes else "lo"
    mode = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(mode, mode)
    if mode not in ("eq", "ne", "lt", "le", "gt", "ge") or len(modes) > 1:
        raise MissingRuleError(f"setp.{'.'.join(modes)} is not simulated")
    return getattr(operator, mode)(_wide(_as(a, kinds[-1])), _wide(_as(b, kinds[-1])))


def _select(kinds: list[str], _modes: list[str], a: Array, b: Array, where: Array) -> Array:
    return np.where(where.astype(np.bool_), _as(a, kinds[-1]), _as(b, kinds[-1]))


def _extract_bits(kinds: list[str], modes: list[str], a: Array, at: Array, count: Array) -> Array:
    """Run ``bfe`` of numbers without a sign."""
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
    "shl": _shifting(np.left_shift),
    "shr": _shifting(np.right_shift),
    "lop3": _logic,
    "prmt": _permute,
    "brev": _bitwise(reversed_bits),
    "popc": _bitwise(lambda a: bit_count(a).astype(np.uint32)),
    "clz": _bitwise(lambda a: leading_zeros(a).astype(np.uint32)),
    "bfe": _extract_bits,
    "setp": _set_predicate,
    "selp": _select,
}
