"""How much memory a TPU's kernel has, and how much of it an array takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.devices.tpus import TPUS

_LANES = 128
_SUBLANES = 8
_MIB = 2**20


@dataclass(frozen=True)
class OperandMemory:
    """Memory that one operand takes: ``count`` buffers of ``nbytes`` each."""

    name: str
    nbytes: int
    count: int

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return self.nbytes * self.count


@dataclass(frozen=True)
class Excess:
    """Memory that a chip does not have.

    Attributes:
      message: how much is taken, by what, and how much there is.
      remedy: what to do.
      largest: the name of what takes the most.
    """

    message: str
    remedy: str
    largest: str


def padded(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of an array in VMEM or SMEM: its last two dims are padded to tiles.

    A tile has 128 lanes, and 8 sublanes of 32 bits, which hold several rows of a narrow dtype. A
    few rows take no more sublanes than they need, rounded up to a power of two (libtpu 0.0.51,
    measured).
    """
    size = itemsize(dtype)
    if not shape:
        return 4
    *outer, rows, lanes = (1, 1, *shape)[-max(2, len(shape)) :]
    packing = max(1, int(4 / size))
    tile = min(
        _SUBLANES * packing, packing * 2 ** math.ceil(math.log2(max(1, -(-rows // packing))))
    )
    rows, lanes = -(-rows // tile) * tile, -(-lanes // _LANES) * _LANES
    return int(math.prod(outer) * rows * lanes * size)


def itemsize(dtype: Any) -> float:
    """Bytes of an element; a half for the types of four bits. A bool takes 4 in a kernel's ref."""
    name = str(dtype)
    if name == "bool":
        return 4
    if name.endswith("int4") or name.startswith("float4"):
        return 0.5
    if name.endswith("int2"):
        return 0.25
    return float(getattr(dtype, "itemsize", 4))


def vmem_excess(
    taken: Sequence[OperandMemory], chip_name: str, limit_bytes: int | None
) -> Excess | None:
    """More VMEM than a kernel may use on a chip, or None.

    Args:
      taken: what blocks and scratch take.
      chip_name: as in ``TPUS``; of another one nothing is known.
      limit_bytes: the kernel's ``vmem_limit_bytes``, or None.
    """
    chip = TPUS.get(chip_name)
    total = sum(buffer.total for buffer in taken)
    if chip is None or total <= (limit := min(chip.vmem, limit_bytes or chip.vmem_limit)):
        return None
    whose = (
        "vmem_limit_bytes is"
        if limit_bytes and limit_bytes <= chip.vmem
        else f"{chip_name} gives a kernel"
    )
    more = ""
    if total < chip.vmem:
        more = f", or raise vmem_limit_bytes ({chip_name} has {_mib(chip.vmem)})"
    return _excess(taken, f"VMEM, and {whose} {_mib(limit)}", f"Choose smaller blocks{more}.")


def smem_excess(taken: Sequence[OperandMemory], chip_name: str) -> Excess | None:
    """More SMEM than a core has, or None; see ``vmem_excess``."""
    chip = TPUS.get(chip_name)
    if chip is None or sum(buffer.total for buffer in taken) <= chip.smem:
        return None
    words = f"SMEM, and a core of {chip_name} has {_mib(chip.smem)}"
    return _excess(taken, words, "Keep large arrays in HBM or VMEM, and copy what is needed.")


def _excess(taken: Sequence[OperandMemory], words: str, remedy: str) -> Excess:
    ordered = sorted(taken, key=lambda buffer: -buffer.total)
    largest = ", ".join(
        f"{b.name} {b.count} x {_mib(b.nbytes)}" if b.count > 1 else f"{b.name} {_mib(b.nbytes)}"
        for b in ordered[:3]
    )
    total = _mib(sum(buffer.total for buffer in taken))
    message = f"blocks and scratch take {total} of {words}: {largest}."
    return Excess(message, remedy, ordered[0].name)


def _mib(nbytes: float) -> str:
    return f"{nbytes / _MIB:.1f} MiB" if nbytes >= _MIB / 10 else f"{nbytes / 1024:.1f} KiB"
