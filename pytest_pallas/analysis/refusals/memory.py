"""Refusals for lack of memory: how much, of what, for which operand."""

from __future__ import annotations

import re
from collections.abc import Callable

from pytest_pallas.analysis.refusals.operands import NamedOperands, with_names

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
    """Bytes of shared memory that a refused kernel asks for; None if a message says nothing of it.

    Args:
      text: of the GPU compiler.
    """
    match = _SHARED.search(text)
    return None if match is None else int(match[1] or match[3])


def overflow(text: str, operands: NamedOperands) -> list[str] | None:
    """What does not fit, in up to three lines; None if a message is about something else.

    The forms are those of libtpu 0.0.40 and later, XLA's GPU compiler and Mosaic GPU.
    """
    for say in (_one_allocation, _all_allocations, _scoped, _shared, _sparse_core):
        lines = say(text, operands)
        if lines is not None:
            return lines
    return None


def human(nbytes: float) -> str:
    """Bytes in binary units with one decimal, such as ``256.0 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _one_allocation(text: str, operands: NamedOperands) -> list[str] | None:
    """libtpu: a single allocation is larger than the memory."""
    match = re.search(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)", text)
    if match is None:
        return None
    space, shape, tag = (
        (found[1] if (found := re.search(pattern, text)) else "")
        for pattern in (r"space=(\w+)", r"shape = '([^']*)'", r"tag = '([^']*)'")
    )
    head = f"{human(int(match[1]))} of {space.upper() or 'memory'}, the chip has "
    return [head + human(int(match[2])), *([_purpose(tag, shape, operands)] if tag else [])]


def _all_allocations(text: str, operands: NamedOperands) -> list[str] | None:
    """libtpu: all allocations together are; it lists the largest."""
    match = re.search(
        r"Ran out of memory in memory space (\w+)\. Used ([\d.]+)([KMG]?) of ([\d.]+)([KMG]?)", text
    )
    if match is None:
        return None
    used, limit = _parsed(match[2], match[3]), _parsed(match[4], match[5])
    lines = [f"{human(used)} of {match[1].upper()}, a kernel may use {human(limit)}; the largest:"]
    for size, unit, about in re.findall(r"\d+\. Size: ([\d.]+)([KMG]?)\n(.*?)={5}", text, re.S):
        found = dict(re.findall(r"^\s*([\w ]+): (.*)$", about, re.M))
        purpose = found.get("Tag") or found.get("XLA label", "").partition(" :: ")[0]
        named = _purpose(purpose, found.get("Shape", ""), operands)
        lines.append(f"  {human(_parsed(size, unit))}: {named}")
    return lines[:4]


def _scoped(text: str, operands: NamedOperands) -> list[str] | None:
    """libtpu: more than the kernel's share, which ``vmem_limit_bytes`` sets."""
    match = re.search(
        r"Scoped allocation with size ([\d.]+)([KMG]?) and limit ([\d.]+)([KMG]?) exceeded "
        r"scoped (\w+) limit",
        text,
    )
    if match is None:
        return None
    used, limit = _parsed(match[1], match[2]), _parsed(match[3], match[4])
    space = match[5].upper()
    return [
        f"{human(used)} of {space} for windows, scratch and temporaries, the kernel's limit is "
        f"{human(limit)} (vmem_limit_bytes)",
        *_largest(operands, lambda s: s in ("vmem", "default", "")),
    ]


def _shared(text: str, operands: NamedOperands) -> list[str] | None:
    """XLA for Triton kernels, and Mosaic GPU: shared memory of a block."""
    match = _SHARED.search(text)
    if match is None:
        return None
    used, limit = int(match[1] or match[3]), int(match[2] or match[4])
    return [
        f"{human(used)} of SMEM (shared memory), a block may use {human(limit)}",
        *_largest(operands, lambda s: s == "smem"),
    ]


def _sparse_core(text: str, operands: NamedOperands) -> list[str] | None:
    """libtpu for a SparseCore, in words."""
    match = re.search(
        r"user allocatable offset upper bound \((\d+) words\) in memory space (\w+) when "
        r"allocating (\d+) words",
        text,
    )
    if match is None:
        return None
    used, limit = int(match[3]) * _WORD, (int(match[1]) + 1) * _WORD
    return [
        f"{human(used)} of {match[2].upper()} in one allocation of all subcores together, kernels "
        f"may use {human(limit)}",
        *_largest(operands, lambda s: s not in ("hbm", "any")),
    ]


def _purpose(tag: str, shape: str, operands: NamedOperands) -> str:
    """What an allocation is for."""
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
    found = [o for o in operands.all if o.dtype and o.nbytes and counts(o.space)]
    found.sort(key=lambda operand: -operand.nbytes)
    if not found:
        return []
    return ["largest operands: " + ", ".join(f"{o} {human(o.nbytes)}" for o in found[:3])]


def _parsed(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]
