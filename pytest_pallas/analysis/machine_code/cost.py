"""``Cost``: what the machine code of a kernel costs, by the compiler's own account."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pallas_sim.findings import Text
from pytest_pallas.decoding import Count


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the machine code of one kernel, or of all kernels of a program, costs.

    Numbers that a platform does not have, or that the compiler did not tell, are None. Bytes are
    bytes; a bundle is one VLIW instruction word of a TensorCore.

    Attributes:
      kernel: the kernel's name; names joined with a comma for a whole program.
      vmem_bytes: TPU: VMEM allocated at once.
      vmem_capacity: TPU: VMEM that the chip has.
      smem_bytes: TPU: SMEM allocated at once.
      smem_capacity: TPU: SMEM that the chip has.
      bundles: TPU: scheduled bundles in the code, each counted once however often it is executed.
      empty_bundles: TPU: those that do nothing but wait.
      loop_bundles: TPU: bundles in the main loop, the one with most bundles of its own; None
        without a loop.
      loop_slots: TPU: share of the main loop's slots that are in use, from 0 to 1, by unit:
        ``mxu``, ``xlu``, ``valu``, ``eup``, ``load``, ``store``, ``scalar``. Of the whole kernel
        where there is no loop.
      spills: TPU: bundles' slots that store a spilled register.
      fills: TPU: bundles' slots that load one back.
      code_bytes: bytes of machine code.
      registers: GPU: registers a thread.
      shared_bytes: GPU: shared memory a block, static and dynamic.
      shared_capacity: GPU: shared memory that a block can have.
      stack_bytes: GPU: stack frame a thread.
      spill_store_bytes: GPU: bytes a thread stores to spill registers.
      spill_load_bytes: GPU: bytes a thread loads back.
      warnings: what the assembler warns of, such as a serialised wgmma.
    """

    kernel: str = ""
    vmem_bytes: Count | None = None
    vmem_capacity: Count | None = None
    smem_bytes: Count | None = None
    smem_capacity: Count | None = None
    bundles: Count | None = None
    empty_bundles: Count | None = None
    loop_bundles: Count | None = None
    loop_slots: Mapping[str, float] = field(default_factory=dict[str, float])
    spills: Count | None = None
    fills: Count | None = None
    code_bytes: Count | None = None
    registers: Count | None = None
    shared_bytes: Count | None = None
    shared_capacity: Count | None = None
    stack_bytes: Count | None = None
    spill_store_bytes: Count | None = None
    spill_load_bytes: Count | None = None
    warnings: tuple[Text, ...] = ()


#: Numbers of kernels that follow each other: what they take at once is the largest, not the sum.
_LARGEST = frozenset(
    {
        "vmem_bytes",
        "vmem_capacity",
        "smem_bytes",
        "smem_capacity",
        "registers",
        "shared_bytes",
        "shared_capacity",
        "stack_bytes",
    }
)


def total(costs: Iterable[Cost]) -> dict[str, Any]:
    """The fields of a ``Cost`` for kernels that run one after the other.

    The main loop is that of the kernel whose loop is longest.
    """
    kernels = list(costs)
    fields: dict[str, Any] = {
        "kernel": ", ".join(cost.kernel for cost in kernels),
        "warnings": tuple(dict.fromkeys(text for cost in kernels for text in cost.warnings)),
    }
    longest = max(kernels, key=lambda c: (c.loop_bundles or 0, c.bundles or 0), default=Cost())
    fields["loop_bundles"], fields["loop_slots"] = longest.loop_bundles, longest.loop_slots
    for name in (f.name for f in dataclasses.fields(Cost) if f.name not in fields):
        values = [v for cost in kernels if (v := getattr(cost, name)) is not None]
        combine = max if name in _LARGEST else sum
        fields[name] = combine(values) if values else None
    return fields
