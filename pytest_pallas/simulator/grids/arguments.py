"""What a kernel is given when it is evaluated, and the memory of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_pallas.simulator.grids.kernels import IN_PLACE, PreparedKernel
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.memory.allocation import memory_of
from pytest_pallas.simulator.memory.references import Ref

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """What a kernel gets when it is evaluated.

    Attributes:
      captured: the references from outside that its body uses.
      grid: sizes of its dimensions.
      scalars: the prefetched operands.
      inputs: the other ones, as whole arrays.
    """

    captured: Sequence[Ref]
    grid: tuple[int, ...]
    scalars: list[Array]
    inputs: list[Array]


def arguments_of(kernel: PreparedKernel, operands: Sequence[Any]) -> KernelArguments:
    """The operands of a ``pallas_call``, by what they are.

    Args:
      kernel: the kernel.
      operands: captured references, sizes of dynamic dimensions, prefetched scalars, inputs.
    """
    facts = kernel.facts
    captured, operands = operands[: kernel.captured], operands[kernel.captured :]
    sizes = iter(np.asarray(operands[position]).item() for position in facts.sizes)
    first = len(facts.sizes) + len(facts.scalars)
    return KernelArguments(
        captured=captured,
        grid=tuple(next(sizes) if size is None else size for size in facts.grid),
        scalars=[np.asarray(operands[position]) for position in facts.scalars],
        inputs=[np.asarray(array) for array in operands[first:]],
    )


def scalar_refs(kernel: PreparedKernel, scalars: Sequence[Array]) -> list[Ref]:
    """References to the prefetched operands, of which a core or program has a copy of its own."""
    names = kernel.scalar_names
    return [Ref(np.array(each), name, "smem") for each, name in zip(scalars, names, strict=True)]


def output_arrays(
    kernel: PreparedKernel,
    machine: Machine,
    inputs: list[Array],
    copied: Callable[[Array], Array],
) -> list[Array]:
    """Memory for the outputs. One that aliases an input is that input's memory.

    Args:
      kernel: the kernel.
      machine: the run.
      inputs: the inputs, in which an aliased one is replaced by the memory that it shares.
      copied: gives that memory for an input.
    """
    facts = kernel.facts
    aliased = {output: position for position, output in facts.aliases}
    outputs: list[Array] = []
    for number, block in enumerate(facts.outputs):
        position = aliased.get(number)
        if position is None:
            outputs.append(memory_of(machine, block.shape, block.dtype, block.name, "output"))
            continue
        shared = copied(inputs[position])
        if not (machine.separate and facts.inputs[position].space not in IN_PLACE):
            inputs[position] = shared
        outputs.append(shared)
    return outputs
