"""Rules: loads from tensor memory, stores to it, and copies from shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_pallas.compat.places import transforms_of
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.concurrency.recording import Side
from pytest_pallas.simulator.gpu.operations import Step, reading_then_writing
from pytest_pallas.simulator.gpu.tensor_cores import blackwell
from pytest_pallas.simulator.gpu.tensor_cores.blackwell import copy_operands
from pytest_pallas.simulator.gpu.tensor_cores.formats import (
    metadata_of_copy,
    paired_scales_of_copy,
    scales_of_copy,
)
from pytest_pallas.simulator.gpu.tensor_cores.tensor_memory import TensorMemory, TensorMemoryPart
from pytest_pallas.simulator.gpu.threads import GpuThread, ThreadBlock
from pytest_pallas.simulator.memory.accesses import beyond_edge
from pytest_pallas.simulator.memory.indexing import Outside
from pytest_pallas.simulator.registry import Equation, Evaluate
from pytest_pallas.simulator.rules.mosaic_gpu.equations import gpu_rule, in_shared_memory
from pytest_pallas.transforms import RefPart

Array = np.ndarray[Any, Any]


@gpu_rule("async_load")
def _async_load(eqn: Equation) -> Evaluate:
    window = RefPart(0, transforms_of(eqn.params["tree"], 1, len(eqn.ins) - 1))
    reduce = _REDUCTIONS[eqn.params.get("reduce")]

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        ref, part = in_tensor_memory(thread, thread.block, window, operands, "load from", eqn.line)
        values = np.array(part.data)
        blackwell.load(thread, Side(part.region, False, ref.name, tensor_core=True), eqn.line)
        return (values,) if reduce is None else (values, reduce(values))

    return evaluate


#: Of the values of a row: NaN if one of them is (PTX ISA 9.0, 9.7.16.8.3 "tcgen05.ld.red", ".NaN").
_REDUCTIONS: dict[str | None, Callable[[Array], Array] | None] = {
    None: None,
    "max": lambda values: values.max(axis=-1),
    "min": lambda values: values.min(axis=-1),
    "absmax": lambda values: np.abs(values).max(axis=-1),
    "absmin": lambda values: np.abs(values).min(axis=-1),
}


@gpu_rule("wait_load_tmem")
def _wait_load_tmem(_: Equation) -> Evaluate:
    def evaluate(thread: GpuThread) -> Any:
        blackwell.wait_for_loads(thread)
        return ()

    return evaluate


@gpu_rule("async_store_tmem")
def _async_store_tmem(eqn: Equation) -> Evaluate:
    window = RefPart(0, transforms_of(eqn.params["tree"], 2, len(eqn.ins) - 2))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        ref, part = in_tensor_memory(thread, thread.block, window, operands, "store to", eqn.line)
        values = np.asarray(operands[1])
        side = Side(part.region, True, ref.name, tensor_core=True)
        blackwell.store(thread, side, lambda: write(thread, part, values), eqn.line)
        return ()

    return evaluate


@gpu_rule("commit_tmem")
def _commit_tmem(_: Equation) -> Evaluate:
    def evaluate(thread: GpuThread) -> Any:
        blackwell.wait_for_stores(thread)
        return ()

    return evaluate


@gpu_rule("async_copy_smem_to_tmem")
def _copy(eqn: Equation) -> Evaluate:
    return _copying(eqn, "the copy to tensor memory", lambda ref, window: np.array)


@gpu_rule("async_copy_scales_to_tmem")
def _copy_scales(eqn: Equation) -> Evaluate:
    def chosen(ref: TensorMemory, window: RefPart) -> Callable[[Array], Array]:
        paired = ref.layout_of(window.transforms) == "scales of a pair"
        return paired_scales_of_copy if paired else scales_of_copy

    return _copying(eqn, "the copy of scales to tensor memory", chosen)


@gpu_rule("async_copy_sparse_metadata_to_tmem")
def _copy_metadata(eqn: Equation) -> Evaluate:
    words = "the copy of sparse metadata to tensor memory"
    return _copying(eqn, words, lambda ref, window: metadata_of_copy)


def _copying(
    eqn: Equation, what: str, arranging: Callable[[TensorMemory, RefPart], Callable[[Array], Array]]
) -> Evaluate:
    """A copy by ``tcgen05.cp``; the first block of a pair starts it for both.

    Args:
      eqn: the equation.
      what: it is, in words.
      arranging: gives the function that arranges what was read as tensor memory has it.
    """
    parts = copy_operands(eqn.params, len(eqn.ins))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for block in pair_of(thread, parts.pair_axis):
            source, region, name = in_shared_memory(thread, block, parts.source, operands, eqn.line)
            ref, target = in_tensor_memory(
                thread, block, parts.target, operands, "copy to", eqn.line
            )
            arrange = arranging(ref, parts.target)
            sides = [
                Side(region, False, name, proxied=True),
                Side(target.region, True, ref.name, tensor_core=True, role="copied"),
            ]
            blackwell.begin(
                thread, what, sides, _copy_steps(thread, source, arrange, target), eqn.line
            )
        return ()

    return evaluate


def _copy_steps(
    thread: GpuThread, source: Array, arrange: Callable[[Array], Array], target: TensorMemoryPart
) -> list[Step]:
    return reading_then_writing(
        lambda: arrange(np.array(source)), lambda values: write(thread, target, values)
    )


def pair_of(thread: GpuThread, axis: Any) -> list[ThreadBlock]:
    """The blocks that an operation of a thread is for.

    Args:
      thread: whose operation it is.
      axis: along which two blocks work together; None for the thread's own block.

    Returns:
      Its own block; both of a pair in order if it is in the first one, and none if in the second:
      there the operation is nothing (``_collective_mma_predicate`` of JAX's lowering).

    Raises:
      SimulationError: the axis has not two blocks.
    """
    if axis is None:
        return [thread.block]
    blocks = thread.block.cluster.along(thread.block, (axis,))
    if len(blocks) != 2:
        raise SimulationError(
            f"collective_axis {axis!r} must have two blocks of the cluster, but has {len(blocks)}"
        )
    return blocks if blocks[0] is thread.block else []


def in_tensor_memory(
    thread: GpuThread, block: ThreadBlock, part: RefPart, operands: Any, access: str, line: str
) -> tuple[TensorMemory, TensorMemoryPart]:
    """The tensor memory of a block that an operand names, and what of it.

    Args:
      thread: who accesses it.
      block: whose it is.
      part: of the operands.
      operands: of the equation.
      access: what it is called where it is beyond the edge.
      line: ``file:line``.

    Raises:
      SimulationError: it is no tensor memory.
      BoundsError: it is beyond the edge.
    """
    ref = thread.of_block(operands[part.position], block)
    if not isinstance(ref, TensorMemory):
        raise SimulationError(f"{ref.name or 'a reference'} is in {ref.space}, not tensor memory")
    try:
        return ref, ref.part(part.transforms, operands)
    except Outside as outside:
        raise beyond_edge(thread, ref, access, outside, line) from None


def write(thread: GpuThread, part: TensorMemoryPart, values: Array) -> None:
    """Change tensor memory, and destroy what shares it."""
    part.write(values)
    for other in part.overwritten:
        other[...] = thread.machine.uninitialized((), other.dtype, "scratch")
