"""What a backend cannot run, by the kernels that were traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pallas_sim.compat.grids import written_for
from pallas_sim.compat.jaxprs import sub_jaxprs
from pallas_sim.compat.places import names_a_device
from pytest_pallas.analysis.kernel_calls import KernelCall


def is_mosaic_gpu(kernel: KernelCall) -> bool:
    """Whether a kernel is written for Mosaic GPU: ``plgpu.kernel``, or memory spaces of it."""
    return written_for(kernel.eqn) == "Mosaic GPU"


def reaches_devices(kernel: KernelCall) -> bool:
    """Whether a kernel copies to other devices, signals them, or uses their common barrier."""
    if "get_barrier_semaphore" in kernel.primitives:
        return True
    return any(map(names_a_device, _equations(kernel.eqn)))


def has_empty_operands(kernel: KernelCall) -> bool:
    """Whether an operand or an output of a kernel has no elements."""
    atoms = (*kernel.eqn.invars, *kernel.eqn.outvars)
    return any(0 in getattr(atom.aval, "shape", ()) for atom in atoms)


def unsupported(
    kernels: Sequence[KernelCall], name: str, platform: str, *, interpreting: bool = False
) -> str | None:
    """Why a backend cannot run some kernels, as far as their code shows it; None if it can.

    Args:
      kernels: the traced kernels.
      name: of the backend, without its target.
      platform: of the backend: ``"tpu"``, ``"gpu"`` or ``"any"``.
      interpreting: whether it is an interpreter of JAX. These divide by the sizes of blocks.
    """
    for kernel in kernels:
        if interpreting and has_empty_operands(kernel):
            return (
                f"needs a simulator such as tpu-sim: {name} cannot run {kernel.name} on arrays "
                "without elements"
            )
        if platform != "gpu" and is_mosaic_gpu(kernel):
            return f"needs a GPU backend such as gpu-sim: {kernel.name} is a Mosaic GPU kernel"
        if name == "interpret" and reaches_devices(kernel):
            return (
                "needs tpu-sim or tpu-interpret: interpret cannot run the signals and copies of "
                f"{kernel.name} to other devices"
            )
    return None


def _equations(eqn: Any) -> Iterator[Any]:
    """All equations inside of one."""
    for body in sub_jaxprs(eqn):
        for each in body.eqns:
            yield each
            yield from _equations(each)
