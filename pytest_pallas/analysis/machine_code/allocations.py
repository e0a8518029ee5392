"""On-chip memory that a TPU kernel allocates, read off libtpu's low-level code (LLO).

Formats as libtpu 0.0.51 writes them.
"""

from __future__ import annotations

import re

#: An allocation of the kernel's own; those at a fixed address (``fixed_abs``) are the system's.
_ALLOCATION = re.compile(
    r"^ *#allocation\w+ \[shape = '[^']*', space=(?P<space>\w+), size = (?P<size>0x[0-9a-f]+|\d+), "
    r"offset = (?P<offset>0x[0-9a-f]+|\d+), scoped\b",
    re.MULTILINE,
)


def allocated_bytes(code: str, space: str) -> int | None:
    """Bytes that a kernel allocates at once in one memory space.

    This is the distance from the lowest to the highest address that the compiler gave to the
    kernel's scoped allocations: windows of operands (twice each where they are double buffered),
    scratch operands, ``run_scoped`` buffers, the compiler's internal scratch and slots of spilled
    registers. Scopes that are not live at the same time share addresses and count once; gaps
    between allocations count.

    Not counted: operands that XLA itself put into the memory space before the kernel starts, which
    are its own allocations; memory that is reserved at fixed addresses.

    Args:
      code: the kernel's code with final addresses of allocations (``post-delay-converter``).
      space: ``"vmem"`` or ``"smem"``.

    Returns:
      Bytes, 0 if the kernel allocates nothing there; None if ``code`` is incomplete.
    """
    if not is_complete(code):
        return None
    found = [
        (int(match["offset"], 0), int(match["size"], 0))
        for match in _ALLOCATION.finditer(code)
        if match["space"] == space
    ]
    if not found:
        return 0
    return max(offset + size for offset, size in found) - min(offset for offset, _ in found)


def is_complete(code: str) -> bool:
    """Whether a kernel's code is there from its first region to the empty one that closes it."""
    return "$region0:" in code and code.rstrip().endswith("_")
