"""Inline assembly: its instructions one after the other, and the registers that they name.

Registers hold bits: unsigned integers of 16, 32 or 64 of them, or a predicate. An instruction is
found by its name without rounding and the like, and by the type at its end.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from pytest_pallas.sim_errors import MissingRuleError
from pytest_pallas.simulator.gpu.inline.code import InlineOperation
from pytest_pallas.simulator.gpu.inline.frame import InlineFrame, operation
from pytest_pallas.simulator.gpu.inline.memory import bits_of, from_bytes, to_bytes
from pytest_pallas.simulator.gpu.inline.operations.lanes import meet
from pytest_pallas.simulator.gpu.inline.operations.ptx_instructions import (
    INSTRUCTIONS,
    PTX_TYPES,
    register_of,
)

Array = np.ndarray[Any, Any]


#: What an instruction says beside its name and its types, and what makes no difference here: each
#: result is rounded to the nearest, and ``satfinite`` is what conversions to narrow floats do.
_ADJECTIVES = frozenset(
    {
        *("rn", "rna", "approx", "ftz", "noftz", "satfinite", "full", "lo"),
        *("sync", "aligned", "release", "acquire", "relaxed"),
    }
)


@operation("llvm.inline_asm")
def _assembly(frame: InlineFrame, op: InlineOperation, *operands: Array) -> Any:
    registers: dict[str, Array] = {}
    constraints = [each for each in op.attributes["constraints"].split(",") if each]
    outputs = [each for each in constraints if each.startswith("=")]
    inputs = [each for each in constraints if not each.startswith(("=", "~"))]
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
    """The instructions of inline assembly, without comments, labels' braces and declarations."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    lines = [" ".join(each.split()) for each in text.split(";")]
    return [each for each in lines if each and not each.startswith(".reg")]


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
    words = name.split(".")
    kinds = [each for each in words[1:] if each in PTX_TYPES]
    modes = [each for each in words[1:] if each not in PTX_TYPES and each not in _ADJECTIVES]
    if words[0] in ("fence", "membar"):
        frame.fence("proxy" in words and "async" in words)
        return
    if words[0] in ("nanosleep", "griddepcontrol", "prefetch", "setmaxnreg"):
        return
    given = _operands(rest)
    if words[0] == "bar" and "sync" in words[1:]:
        count = 128 if len(given) < 2 else int(_read(given[1], registers, "u32").reshape(-1)[0])
        meet(frame, count, name)
        return
    compute = INSTRUCTIONS.get(words[0])
    if compute is None or not kinds:
        raise MissingRuleError(
            f"the simulator does not know the instruction {line!r}, which inline_mgpu inlines"
        )
    targets, *sources = given
    values = [
        each if each.startswith("{") else _read(each, registers, _source(words[0], kinds))
        for each in sources
    ]
    if words[0] == "mov" and any(each.startswith("{") for each in given):
        _move_parts(targets, sources, kinds[0], registers)
        return
    result = compute(kinds, modes, *values)
    _write(registers, targets, result, predicate)


def _source(name: str, kinds: list[str]) -> str:
    """The type of the operands, where that of the result is another one."""
    return kinds[-1] if name in ("cvt", "setp", "set", "mul", "mad", "selp") else kinds[0]


def _operands(text: str) -> list[str]:
    return [each.strip() for each in re.findall(r"\{[^}]*\}|[^,{}]+", text) if each.strip()]


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


def _write(
    registers: dict[str, Array], target: str, result: Array, predicate: Array | None
) -> None:
    if target == "_":
        return
    name = target.partition("|")[0]
    if predicate is not None and name in registers:
        result = np.where(predicate, result, registers[name]).astype(result.dtype)
    registers[name] = result


def _move_parts(target: str, sources: list[str], kind: str, registers: dict[str, Array]) -> None:
    """``mov`` between a register and the parts that it consists of."""
    size = PTX_TYPES[kind].itemsize
    if not target.startswith("{"):
        parts = [_read(each, registers, kind) for each in _operands(sources[0].strip("{}"))]
        rows = max(each.shape[0] for each in parts)
        raw = [np.broadcast_to(to_bytes(each), (rows, each.dtype.itemsize)) for each in parts]
        registers[target] = from_bytes(np.concatenate(raw, 1)[:, :size], PTX_TYPES[kind], ())
        return
    names = _operands(target.strip("{}"))
    raw_ = to_bytes(_read(sources[0], registers, kind))[:, :size]
    width = size // len(names)
    for number, name in enumerate(names):
        part = raw_[:, number * width : (number + 1) * width]
        registers[name] = from_bytes(part, np.dtype(f"u{width}"), ())
