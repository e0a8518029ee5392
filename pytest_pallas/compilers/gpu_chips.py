"""The GPUs to compile for, described as XLA wants them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What the compiler is told about a GPU.

    Attributes:
      description: the device's name, as CUDA reports it.
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
    """

    description: str
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


#: Limits are those of "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++
#: Programming Guide; the rest are NVIDIA's data sheets, with the sizes that the CUDA runtime
#: reports on these chips (also in XLA's ``target_config/specs``).
CHIPS: dict[str, Chip] = {
    "a100": Chip(
        description="NVIDIA A100-SXM4-80GB",
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
    "h100": Chip(
        description="NVIDIA H100 80GB HBM3",
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
    "h200": Chip(
        description="NVIDIA H200",
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
    "b200": Chip(
        description="NVIDIA B200",
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
    ),
}

_CONFIG = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {chip.shared_per_core}
  shared_memory_per_block_optin: {chip.shared_per_block}
  threads_per_core_limit: 2048
  core_count: {chip.cores}
  fpus_per_core: {chip.units_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  l2_cache_size: {chip.l2_bytes}
  clock_rate_ghz: {chip.clock_ghz}
  memory_bandwidth: {chip.bytes_per_second}
  device_memory_size: {chip.memory_bytes}
  cuda_compute_capability {{ major: {chip.capability}{extension} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{chip.description}"
"""


def target_config(target: str) -> str:
    """A chip as a text proto of XLA's ``GpuTargetConfigProto``.

    Args:
      target: name of the chip, such as ``"h100"``.

    Raises:
      KeyError: there is no such chip.
    """
    chip = CHIPS[target]
    extension = " feature_extension: ACCELERATED_FEATURES" if chip.accelerated else ""
    return _CONFIG.format(chip=chip, extension=extension)


def attributes(target: str) -> dict[str, Any]:
    """What ``jax.Device`` has on a chip, beside what it has on a CPU.

    Args:
      target: name of the chip, such as ``"h100"``.
    """
    chip = CHIPS[target]
    return {
        "core_count": chip.cores,
        "num_cores": chip.cores,  # of ``jax.sharding.AbstractDevice``
        "compute_capability": f"{chip.capability}.0",
    }
