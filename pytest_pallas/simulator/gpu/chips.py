"""What chips have: compute capability, shared memory, registers, tensor memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_pallas.devices.targets import TARGETS


@dataclass(frozen=True)
class GpuChip:
    """A GPU, as a block sees it.

    Attributes:
      capability: ten times its compute capability.
      smem: bytes of shared memory that one block may have.
      registers: 32-bit registers of a multiprocessor; a thread has at most 255.
      tmem: columns of tensor memory of a multiprocessor, or 0.
    """

    capability: int
    smem: int
    registers: int = 65536
    tmem: int = 0


#: CUDA C++ Programming Guide 13, "Compute Capabilities": technical specifications.
CHIPS = {
    "a100": GpuChip(80, 163 * 1024),
    "h100": GpuChip(90, 227 * 1024),
    "h200": GpuChip(90, 227 * 1024),
    "b200": GpuChip(100, 227 * 1024, tmem=512),
}


def capability(target: str) -> int:
    """Ten times the compute capability of a chip; 0 of one that is no GPU."""
    return CHIPS[target].capability if target in CHIPS else 0


def attributes(target: str) -> dict[str, Any]:
    """What ``jax.Device`` has on a GPU beside what it has on a CPU, for kernels that ask for it."""
    chip = CHIPS.get(target)
    if chip is None:
        return {}
    return {
        "core_count": TARGETS[target].multiprocessors,
        "num_cores": TARGETS[target].multiprocessors,
        "compute_capability": f"{chip.capability // 10}.{chip.capability % 10}",
    }
