"""A GPU to compile for, described as XLA wants it."""

from __future__ import annotations

from pallas_sim.chips import GPUS

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
device_description_str: "{chip.device_kind}"
"""


def target_config(target: str) -> str:
    """A chip as a text proto of XLA's ``GpuTargetConfigProto``.

    Args:
      target: name of the chip, such as ``"h100"``.

    Raises:
      KeyError: there is no such chip.
    """
    chip = GPUS[target]
    extension = " feature_extension: ACCELERATED_FEATURES" if chip.accelerated else ""
    return _CONFIG.format(chip=chip, extension=extension)
