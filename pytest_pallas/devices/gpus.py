"""What GPUs have: multiprocessors, shared memory, tensor memory, and what XLA needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_pallas.accumulation import ACCUMULATIONS, ARITHMETICS, COMPARED, Accumulations
from pytest_pallas.sim_errors import OptionError


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, as compilers, kernels and the simulator know it.

    Attributes:
      device_kind: what ``jax.Device.device_kind`` says.
      capability: CUDA's major compute capability; the minor one is 0 for every chip here.
      accelerated: whether code may use what only this generation has, such as ``wgmma`` of 9.0a
        and ``tcgen05`` of 10.0a.
      cores: streaming multiprocessors.
      units_per_core: float32 units of a multiprocessor.
      shared_per_core: bytes of shared memory of a multiprocessor.
      shared_per_block: bytes of shared memory that a block can ask for.
      l2_bytes: bytes of the level 2 cache.
      clock_ghz: the highest clock of the multiprocessors.
      bytes_per_second: bandwidth of the device's memory.
      memory_bytes: size of the device's memory.
      tensor_columns: columns of tensor memory of a multiprocessor, or 0.
    """

    device_kind: str
    capability: int
    accelerated: bool
    cores: int
    units_per_core: int
    shared_per_core: int
    shared_per_block: int
    l2_bytes: int
    clock_ghz: float
    bytes_per_second: int
    memory_bytes: int
    tensor_columns: int = 0


#: Limits are those of "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++
#: Programming Guide; the rest are NVIDIA's data sheets, with the sizes that the CUDA runtime
#: reports on these chips (also in XLA's ``target_config/specs``).
GPUS: dict[str, Gpu] = {
    "a100": Gpu(
        device_kind="NVIDIA A100-SXM4-80GB",
        capability=8,
        accelerated=False,
        cores=108,
        units_per_core=64,
        shared_per_core=164 * 1024,
        shared_per_block=163 * 1024,
        l2_bytes=41_943_040,
        clock_ghz=1.41,
        bytes_per_second=2_039_040_000_000,
        memory_bytes=85_100_068_864,
    ),
    "h100": Gpu(
        device_kind="NVIDIA H100 80GB HBM3",
        capability=9,
        accelerated=True,
        cores=132,
        units_per_core=128,
        shared_per_core=228 * 1024,
        shared_per_block=227 * 1024,
        l2_bytes=52_428_800,
        clock_ghz=1.98,
        bytes_per_second=3_352_320_000_000,
        memory_bytes=84_942_979_072,
    ),
    "h200": Gpu(
        device_kind="NVIDIA H200",
        capability=9,
        accelerated=True,
        cores=132,
        units_per_core=128,
        shared_per_core=228 * 1024,
        shared_per_block=227 * 1024,
        l2_bytes=52_428_800,
        clock_ghz=1.98,
        bytes_per_second=4_800_000_000_000,
        memory_bytes=151_397_597_184,
    ),
    "b200": Gpu(
        device_kind="NVIDIA B200",
        capability=10,
        accelerated=True,
        cores=148,
        units_per_core=128,
        shared_per_core=228 * 1024,
        shared_per_block=227 * 1024,
        l2_bytes=132_644_864,
        clock_ghz=1.965,
        bytes_per_second=7_672_320_000_000,
        memory_bytes=191_514_411_008,
        tensor_columns=512,
    ),
}


def attributes(target: str) -> dict[str, Any]:
    """What ``jax.Device`` has on a chip, beside what it has on a CPU.

    Args:
      target: name of the chip, such as ``"h100"``.
    """
    chip = GPUS[target]
    return {
        "core_count": chip.cores,
        "num_cores": chip.cores,  # of ``jax.sharding.AbstractDevice``
        "compute_capability": f"{chip.capability}.0",
    }


def default_arithmetic(target: str) -> str:
    """``"chip"`` for chips whose arithmetic was compared with the simulator's, else ``"float32"``.

    Args:
      target: name of the chip.
    """
    chip = GPUS.get(target)
    return "chip" if chip is not None and chip.capability in COMPARED else "float32"


def is_known(target: str) -> bool:
    """Whether it is known how the tensor cores of a chip add products."""
    return target in GPUS and GPUS[target].capability in ACCUMULATIONS


def accumulations(target: str, arithmetic: str = "") -> Accumulations:
    """How the tensor cores of a chip add products; empty if sums are those of float32.

    Args:
      target: name of the chip.
      arithmetic: ``"chip"`` or ``"float32"``; "" for the default of the chip.

    Raises:
      OptionError: there is no such arithmetic, or that of this chip is not known.
    """
    arithmetic = arithmetic or default_arithmetic(target)
    if arithmetic not in ARITHMETICS:
        valid = ", ".join(ARITHMETICS)
        raise OptionError(f"unknown arithmetic {arithmetic!r}; valid: {valid}")
    if arithmetic == "float32":
        return {}
    if not is_known(target):
        known = filter(is_known, GPUS)
        raise OptionError(
            f"arithmetic='chip': how {target} adds products is not known; it is known of "
            f"{', '.join(known)}. Leave it out, or say arithmetic='float32'"
        )
    return ACCUMULATIONS[GPUS[target].capability]
