"""What TPUs have: cores, memory of a kernel, and the topologies to compile for."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Tpu:
    """A TPU, as compilers, kernels and the simulator know it.

    Attributes:
      device_kind: what ``jax.Device.device_kind`` says; JAX must know it.
      cores: TensorCores that a kernel sees as one device (2 only where they are fused: v4, v5p).
      vmem: bytes of VMEM that a core has.
      vmem_limit: bytes of it that one kernel may use unless it says ``vmem_limit_bytes``.
      smem: bytes of SMEM that a core has; the compiler takes a few hundred of them.
      torus_dims: dims of the interconnect: a torus of three, or a mesh of two.
      devices: that JAX shows for one chip in the topologies of libtpu.
      device_cores: TensorCores of such a device.
    """

    device_kind: str
    cores: int = 1
    vmem: int
    vmem_limit: int
    smem: int = _MIB
    torus_dims: int
    devices: int = 1
    device_cores: int = 1


#: Dims of the interconnect are of Google's data sheets. Memory is measured with libtpu 0.0.51: the
#: largest windows and scratch that compile, by bisection, and the limits that it names where it
#: rejects. So are devices: v4 and tpu7x have two TensorCores with a device each; v5p's two are
#: fused into one.
TPUS: dict[str, Tpu] = {
    "v4": Tpu(
        device_kind="TPU v4",
        cores=2,
        vmem=16 * _MIB,
        vmem_limit=16 * _MIB,
        torus_dims=3,
        devices=2,
    ),
    "v5e": Tpu(
        device_kind="TPU v5 lite",
        vmem=128 * _MIB,
        vmem_limit=16 * _MIB,
        torus_dims=2,
    ),
    "v5p": Tpu(
        device_kind="TPU v5",
        cores=2,
        vmem=64 * _MIB,
        vmem_limit=16 * _MIB,
        torus_dims=3,
        device_cores=2,
    ),
    "v6e": Tpu(
        device_kind="TPU v6 lite",
        vmem=128 * _MIB,
        vmem_limit=32 * _MIB,
        torus_dims=2,
    ),
    "tpu7x": Tpu(
        device_kind="TPU7x",
        vmem=64 * _MIB,
        vmem_limit=32 * _MIB,
        torus_dims=3,
        devices=2,
    ),
}
