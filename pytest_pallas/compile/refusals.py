"""Say in a few lines what a compiler rejected (``short``).

A message names what was rejected, with the operand by its name (``NamedOperands``); how much memory
of which kind is too much (``overflow``); and the line of the user's kernel (``line_in_text``,
``line_in_traceback``, ``line_in_kernels``). ``cleaning`` removes what only the authors of a
compiler need.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_sim.findings import SourceLine, text_at
from pallas_sim.traces import (
    equations,
    is_call_stack,
    is_compiler_error,
    source_line,
    space_of,
    sub_jaxprs,
)
from pytest_pallas.compile.cleaning import CompilerMessage, clean
from pytest_pallas.errors import is_library, is_own
from pytest_pallas.grid.kernel_calls import KernelCall, kernel_calls

#: A frame as MLIR prints it in a location: ``"name"("file":line:column``, innermost first.
_LOCATION_FRAME = re.compile(r'"[^"\n]*"\("(?P<file>[^"\n]+)":(?P<line>\d+):\d+')

#: A line in a sentence of JAX: ``pallas_call kernel at /path/file.py:12``.
_SENTENCE = re.compile(r"\bat (?P<file>/[^\s:]+|[A-Z]:[^\s:]+):(?P<line>\d+)")

_JAX = re.compile(
    r"[\\/](site|dist)-packages[\\/]jax(lib)?[\\/]|[\\/]jax[\\/](_src|experimental)[\\/]"
)
_KERNELS_OF_JAX = re.compile(r"[\\/]jax[\\/]experimental[\\/]pallas[\\/]ops[\\/]")

#: The primitive that a lowering of Pallas does not know; or the instruction that an assembler does
#: not know, which is named like the primitive.
_PRIMITIVE = re.compile(r"[Uu]nimplemented primitive [^:\n]*: (\w+)|Instruction '(\w+)\.")


def line_in_text(text: str, pattern: re.Pattern[str] = _LOCATION_FRAME) -> str | None:
    """Return ``file:line`` of the innermost frame of the user that a pattern finds in a message."""
    return _innermost((m["file"], int(m["line"])) for m in pattern.finditer(text))


def line_in_traceback(error: BaseException) -> str | None:
    """Return ``file:line`` of the innermost frame of the user that JAX called, or put there.

    Frames before the first one of JAX (or of this package) belong to the caller. JAX appends the
    frames of the operation that it was lowering, or raises from an exception that has them.
    """
    line: str | None = None
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and line is None and id(link) not in seen:
        seen.add(id(link))
        frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(link.__traceback__)]
        if not is_call_stack(link):
            first = next((i for i, (file, _) in enumerate(frames) if _is_inner(file)), len(frames))
            frames = frames[first:]
        line = _innermost(reversed(frames))
        link = link.__cause__
    return line


def line_in_kernels(text: str, kernels: Sequence[KernelCall]) -> str | None:
    """Return ``file:line`` of the operation that a message names, else of the kernel."""
    match = _PRIMITIVE.search(text)
    if match is not None:
        name = match[1] or match[2]
        for kernel in kernels:
            line = _line_of(kernel.eqn, name, kernel.source)
            if line is not None:
                return line
    sources = (kernel.source or _definition(kernel.eqn) for kernel in kernels)
    return next((source for source in sources if source), None)


def _innermost(frames: Iterable[tuple[str, int]]) -> str | None:
    """Return the first frame of the user, else the first one in a kernel that comes with JAX."""
    fallback: str | None = None
    for file, line in frames:
        if not (_is_inner(file) or is_library(file)):
            return str(SourceLine(file, line))
        if fallback is None and _KERNELS_OF_JAX.search(file):
            fallback = str(SourceLine(file, line))
    return fallback


def _is_inner(file: str) -> bool:
    """Return whether a file is JAX's or this package's."""
    return bool(_JAX.search(file)) or is_own(file)


def _line_of(eqn: Any, primitive: str, around: str | None) -> str | None:
    """Return the line of the first ``primitive`` inside an equation.

    The body of a jitted function of ``jax.numpy`` has no frame of the user. Then it is the line of
    the equation around it.
    """
    for inner in (inner for jaxpr in sub_jaxprs(eqn) for inner in jaxpr.eqns):
        line = source_line(inner) or around
        if inner.primitive.name == primitive or inner.primitive.name.startswith(f"{primitive}_"):
            return line
        if (nested := _line_of(inner, primitive, line)) is not None:
            return nested
    return None


def _definition(eqn: Any) -> str | None:
    """Return the line of the first function of the user inside an equation.

    ``debug_info.func_src_info`` ends in "at file:line". Seen in JAX 0.11.2 and 0.12.0.1.
    """
    for jaxpr in sub_jaxprs(eqn):
        info = str(getattr(getattr(jaxpr, "debug_info", None), "func_src_info", ""))
        inner = map(_definition, jaxpr.eqns)
        line = line_in_text(info, _SENTENCE) or next(filter(None, inner), None)
        if line is not None:
            return line
    return None


# The operands of a kernel under the names that its body gives them.


@dataclass(frozen=True)
class NamedOperand:
    """An operand of a kernel.

    Attributes:
      name: of the parameter.
      dtype: as numpy spells it, or "" for a semaphore.
      shape: of the block, window or scratch buffer.
      space: memory space in small letters, such as ``"vmem"``.
      nbytes: its size, of one buffer.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    space: str
    nbytes: int

    def __str__(self) -> str:
        """Write it as ``x_ref f32[8,128]``, with the memory space if that is unusual."""
        dtype = _short_dtype(self.dtype, "i") if self.dtype else "semaphore"
        shape = f"[{','.join(map(str, self.shape))}]" if self.dtype else ""
        ordinary = self.space in ("", "vmem", "gmem", "default", "none")
        return f"{self.name} {dtype}{shape}" + ("" if ordinary else f" in {self.space.upper()}")


@dataclass(frozen=True)
class NamedOperands:
    """All operands of a kernel in the order of its body's parameters.

    Attributes:
      all: scalars that are prefetched, inputs, outputs and scratch.
      inputs: how many are scalars or inputs.
      outputs: how many are outputs; 0 where the outputs are not known.
    """

    all: tuple[NamedOperand, ...]
    inputs: int
    outputs: int

    def input(self, position: int) -> str:
        """Return the name of an input, counted with the scalars before it; "" without one."""
        return self.all[position].name if position < self.inputs else ""

    def output(self, position: int) -> str:
        """Return the name of an output, or ""."""
        return self.all[self.inputs + position].name if position < self.outputs else ""

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> str:
        """Return the name of the only scratch buffer of a type (dtype as in XLA); else ""."""
        names = [
            operand.name
            for operand in self.all[self.inputs + self.outputs :]
            if operand.shape == shape and _short_dtype(operand.dtype, "s") == dtype
        ]
        return names[0] if len(names) == 1 else ""


NONE = NamedOperands((), 0, 0)


def operands_of(call: KernelCall) -> NamedOperands:
    """Return the operands of a kernel, or ``NONE`` where JAX does not keep their names.

    ``grid_mapping`` and ``debug_info.arg_names`` were seen in JAX 0.11.2 and 0.12.0.1.
    """
    body: Any = next(sub_jaxprs(call.eqn), None)
    if body is None or not _parameters(body):
        return NONE
    operands = (*_parameters(body), *_scoped(body))
    mapping = call.eqn.params.get("grid_mapping")
    if mapping is None or getattr(mapping, "num_dynamic_grid_bounds", 0):
        return NamedOperands(operands, 0, 0)
    inputs = mapping.num_index_operands + mapping.num_inputs
    return NamedOperands(operands, inputs, int(mapping.num_outputs))


def with_names(text: str, operands: NamedOperands) -> str:
    """Add the names of parameters behind ``args[0]``, ``outputs`` and the like."""

    def named(match: re.Match[str]) -> str:
        position = int(match["position"] or match["number"] or 0)
        kind = match["kind"] or match["word"]
        one = operands.output if kind.startswith("output") else operands.input
        if kind == "outputs" and not match["position"] and operands.outputs != 1:
            return match[0]
        name = one(position)
        return f"{match[0]} ({name})" if name else match[0]

    return re.sub(
        r"\b(?P<kind>args|outputs)(?:\[(?P<position>\d+)\]|(?= in pallas_call))"
        r"|\b(?P<word>input|output) (?P<number>\d+)\b",
        named,
        text,
    )


def _parameters(jaxpr: Any) -> tuple[NamedOperand, ...]:
    names = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None)
    if names is None or len(names) != len(jaxpr.invars):
        return ()
    return tuple(_operand(str(n), v.aval) for n, v in zip(names, jaxpr.invars, strict=True))


def _scoped(jaxpr: Any) -> tuple[NamedOperand, ...]:
    """Return what ``pl.run_scoped`` allocates, such as the scratch of ``plgpu.kernel``."""
    operands: list[NamedOperand] = []
    for eqn in equations(jaxpr):
        for inner in sub_jaxprs(eqn) if eqn.primitive.name == "run_scoped" else ():
            operands += _parameters(inner)
    return tuple(operands)


def _operand(name: str, aval: Any) -> NamedOperand:
    inner = getattr(aval, "inner_aval", aval)
    space = space_of(aval)
    shape = tuple(d for d in getattr(inner, "shape", ()) if isinstance(d, int))
    dtype = getattr(inner, "dtype", None)
    size = getattr(dtype, "itemsize", 0)
    return NamedOperand(
        name=name,
        dtype="" if dtype is None else str(dtype),
        shape=shape,
        space=space,
        nbytes=size * math.prod(shape) if isinstance(size, int) else 0,
    )


def _short_dtype(dtype: str, signed: str) -> str:
    """Shorten ``float32`` to ``f32``; ``int8`` is ``i8`` to JAX and ``s8`` to XLA."""
    letters = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", signed), ("complex", "c"))
    return next((new + dtype[len(old) :] for old, new in letters if dtype.startswith(old)), dtype)


# Refusals for lack of memory: how much, of what, for which operand.

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

#: Words of the SparseCore's memories have 4 bytes.
_WORD = 4

#: A window's tag in libtpu's messages.
_WINDOW = re.compile(
    r"window allocation for operator (?P<operand>\w+ \d+)\. The window shape is (?P<shape>\S+\]),"
)


#: What XLA says of Triton kernels, and Mosaic GPU, for lack of shared memory.
_SHARED = re.compile(
    r"Shared memory size limit exceeded: requested (\d+), available: (\d+)"
    r"|smem_bytes=(\d+) > max_smem_bytes=(\d+)"
)


def requested_shared_bytes(text: str) -> int | None:
    """Return the bytes of shared memory that a refused kernel asks for; None if not in the text.

    Args:
      text: of the GPU compiler.
    """
    match = _SHARED.search(text)
    return None if match is None else int(match[1] or match[3])


def overflow(text: str, operands: NamedOperands) -> list[str] | None:
    """Say what does not fit, in a few lines; None if a message is about something else.

    The forms are those of libtpu 0.0.40 and later, XLA's GPU compiler and Mosaic GPU.
    """
    for pattern, form in _OVERFLOWS:
        if match := re.search(pattern, text):
            return form(match, text, operands)
    return None


def human(nbytes: float) -> str:
    """Return bytes in binary units with one decimal, such as ``256.0 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _one_allocation(match: re.Match[str], text: str, operands: NamedOperands) -> list[str]:
    """Say that a single allocation is larger than the memory."""
    space, shape, tag = (
        (part[1] if (part := re.search(pattern, text)) else "")
        for pattern in (r"space=(\w+)", r"shape = '([^']*)'", r"tag = '([^']*)'")
    )
    head = f"{human(int(match[1]))} of {space.upper() or 'memory'}, the chip has "
    return [head + human(int(match[2])), *([_purpose(tag, shape, operands)] if tag else [])]


def _all_allocations(match: re.Match[str], text: str, operands: NamedOperands) -> list[str]:
    """Say that all allocations together are larger than the memory; libtpu lists the largest."""
    used, limit = _parsed(match[2], match[3]), _parsed(match[4], match[5])
    lines = [f"{human(used)} of {match[1].upper()}, a kernel may use {human(limit)}; the largest:"]
    for size, unit, entry in re.findall(r"\d+\. Size: ([\d.]+)([KMG]?)\n(.*?)={5}", text, re.S):
        fields = dict(re.findall(r"^\s*([\w ]+): (.*)$", entry, re.M))
        tag = fields.get("Tag") or fields.get("XLA label", "").partition(" :: ")[0]
        purpose = _purpose(tag, fields.get("Shape", ""), operands)
        lines.append(f"  {human(_parsed(size, unit))}: {purpose}")
    return lines[:4]


def _memory_scoped(match: re.Match[str], _text: str, operands: NamedOperands) -> list[str]:
    """Say that a kernel takes more than its share, which ``vmem_limit_bytes`` sets."""
    used, limit = _parsed(match[1], match[2]), _parsed(match[3], match[4])
    return [
        f"{human(used)} of {match[5].upper()} for windows, scratch and temporaries, the kernel's "
        f"limit is {human(limit)} (vmem_limit_bytes)",
        *_largest(operands, lambda space: space in ("vmem", "default", "")),
    ]


def _shared(match: re.Match[str], _text: str, operands: NamedOperands) -> list[str]:
    """Say that a block takes too much shared memory."""
    used, limit = int(match[1] or match[3]), int(match[2] or match[4])
    return [
        f"{human(used)} of SMEM (shared memory), a block may use {human(limit)}",
        *_largest(operands, lambda space: space == "smem"),
    ]


def _sparse_core(match: re.Match[str], _text: str, operands: NamedOperands) -> list[str]:
    """Say that an allocation is too large for a SparseCore."""
    used, limit = int(match[3]) * _WORD, (int(match[1]) + 1) * _WORD
    return [
        f"{human(used)} of {match[2].upper()} in one allocation of all subcores together, kernels "
        f"may use {human(limit)}",
        *_largest(operands, lambda space: space not in ("hbm", "any")),
    ]


#: Messages about memory: of libtpu, of XLA and Mosaic GPU, and of libtpu for a SparseCore.
_OVERFLOWS = (
    (r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)", _one_allocation),
    (
        r"Ran out of memory in memory space (\w+)\. Used ([\d.]+)([KMG]?) of ([\d.]+)([KMG]?)",
        _all_allocations,
    ),
    (
        r"Scoped allocation with size ([\d.]+)([KMG]?) and limit ([\d.]+)([KMG]?) exceeded scoped "
        r"(\w+) limit",
        _memory_scoped,
    ),
    (_SHARED, _shared),
    (
        r"user allocatable offset upper bound \((\d+) words\) in memory space (\w+) when "
        r"allocating (\d+) words",
        _sparse_core,
    ),
)


def _purpose(tag: str, shape: str, operands: NamedOperands) -> str:
    """Say what an allocation is for."""
    window = _WINDOW.search(tag)
    if window is not None:
        buffers = re.search(r"has (\d+) buffering levels", tag)
        many = f"{buffers[1]} buffers" if buffers else "single buffered"
        operand = with_names(window["operand"], operands)
        return f"window {window['shape']} of {operand}, {many}"
    if tag == "scratch operand":
        parts = re.match(r"(\w+)\[([\d,]*)\]", shape)
        if parts is None:
            return tag
        dims = tuple(int(d) for d in parts[2].split(",") if d)
        name = operands.scratch(parts[1], dims)
        return f"scratch operand {parts[0]}" + (f" ({name})" if name else "")
    return tag


def _largest(operands: NamedOperands, counts: Callable[[str], bool]) -> list[str]:
    arrays = [o for o in operands.all if o.dtype and o.nbytes and counts(o.space)]
    arrays.sort(key=lambda operand: -operand.nbytes)
    names = ", ".join(f"{operand} {human(operand.nbytes)}" for operand in arrays[:3])
    return [f"largest operands: {names}"] if names else []


def _parsed(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]


# The short message, put together.

#: Found in a message that names an operand, a shape or an operation.
_SPECIFIC = re.compile(r"[\[(]\d|\dx\d|args\[|(?:in|out)put \d|[Uu]nimplemented primitive")

#: Limit on the text of a source line.
_LONGEST_TEXT = 100

#: A line with nothing but ``file:line``.
_LINE_ALONE = re.compile(r"\s*at (\S+:\d+)\s*")


def short(
    error_or_text: BaseException | str, *, kernels: Sequence[KernelCall] = (), jaxpr: Any = None
) -> str:
    """Say in at most five lines what a compiler rejected.

    The lines have the operand, the limit and the number that exceeds it; the compiler's operation;
    the line of the user's kernel. No rule is fitted to one kernel. A message of an unknown form is
    kept, without the parts that do not help its reader.

    Args:
      error_or_text: what JAX raised while it traced or lowered, or the text that a compiler gave
        or left on stderr.
      kernels: the kernels of the program, to name operands and lines that the text leaves out.
      jaxpr: the program, if its kernels are not at hand.
    """
    kernels = kernels or (() if jaxpr is None else kernel_calls(jaxpr))
    text = error_or_text if isinstance(error_or_text, str) else full_text(error_or_text)
    message = clean(text)
    meant = [kernel for kernel in kernels if kernel.name == message.kernel] or list(kernels)
    operands = operands_of(meant[0]) if len(meant) == 1 else NONE
    lines = overflow(text, operands)
    if lines is None:
        lines = [with_names(line, operands) for line in message.lines]
        if message.operation:
            lines.append(f"in {message.operation}")
        elif not _SPECIFIC.search(text):
            arrays = [str(operand) for operand in operands.all if operand.nbytes]
            lines += [f"operands: {', '.join(arrays[:6])}"] if arrays else []
    source = line_in_text(text)
    if source is None and isinstance(error_or_text, BaseException):
        source = line_in_traceback(error_or_text)
    source = source or line_in_kernels(text, meant) or line_in_text(text, _SENTENCE)
    if not lines or (isinstance(error_or_text, BaseException) and not str(error_or_text)):
        lines = [_without_message(error_or_text, source)]
    lines = [line for line in lines if not _is_only(line, source)]
    return "\n".join([*lines, *_last_line(source, message, meant)])


def full_text(error: BaseException) -> str:
    """Return the whole message of a compiler: type and text of an error, or of the one it hides.

    JAX replaces libtpu's error by one whose text has no locations, and puts their frames into the
    traceback, which does not leave the process. The original error is its cause.
    """
    cause = error.__cause__
    if cause is not None and is_compiler_error(error) and str(cause):
        error = cause
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _without_message(error_or_text: BaseException | str, source: str | None) -> str:
    """Return the line for an error without a message, such as a bare assertion.

    It names the line that raised, unless that is ``source``, which the last line names.
    """
    if isinstance(error_or_text, str):
        return "the compiler gave no message"
    frames = traceback.extract_tb(error_or_text.__traceback__)
    where = ""
    if frames and f"{frames[-1].filename}:{frames[-1].lineno}" != source:
        where = f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}"
    return f"{type(error_or_text).__name__} without a message{where}"


def _is_only(line: str, source: str | None) -> bool:
    """Return whether a line of the message only names ``source``, with or without its folder."""
    match = _LINE_ALONE.fullmatch(line)
    return match is not None and f"/{source}".endswith(f"/{match[1]}")


def _last_line(
    source: str | None, message: CompilerMessage, kernels: Sequence[KernelCall]
) -> list[str]:
    """Return the kernel, its line ``source``, and the text of that line."""
    name = message.kernel or (kernels[0].name if len(kernels) == 1 else "")
    if source is None:
        return [f"in kernel {name}"] if name else []
    text = text_at(source)
    text = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
    return [(f"in kernel {name}, " if name else "at ") + source + (f": {text}" if text else "")]
