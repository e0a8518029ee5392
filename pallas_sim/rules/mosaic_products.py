"""Rules: products of matrices on the tensor cores of Ampere (``mma``) and Hopper (``wgmma``).

``wgmma`` runs beside its warpgroup: it reads its operands in shared memory, and adds to its
registers, at any time until it is waited for (PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions"). Those of one warpgroup happen in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.accesses import beyond_edge, record_access
from pallas_sim.chips import GPUS, Accumulations, accumulation_of
from pallas_sim.compat.places import transforms_of
from pallas_sim.dtypes import Array
from pallas_sim.errors import SimulationError
from pallas_sim.gpu import operands as blackwell
from pallas_sim.gpu.barriers import (
    Barrier,
    EngineOperation,
    Step,
    barrier_at,
    reading_then_writing,
    start,
    wait_groups,
)
from pallas_sim.gpu.operands import (
    ProductOperands,
    commit_operands,
    copy_operands,
    product_operands,
    product_parts,
)
from pallas_sim.gpu.tensor_cores import (
    disordered,
    expand,
    from_tensor_memory,
    metadata_of_copy,
    paired_scales_of_copy,
    scaled_product,
    scales_of_copy,
    tensor_product,
)
from pallas_sim.gpu.tensor_memory import TensorMemory, TensorMemoryPart
from pallas_sim.gpu.threads import GpuThread, ThreadBlock
from pallas_sim.machine import Thread
from pallas_sim.memory import Outside, Ref
from pallas_sim.products import Product
from pallas_sim.recording import Asynchronous, Side
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.mosaic_threads import gpu_rule, holds, in_shared_memory, part_of
from pallas_sim.transforms import RefPart
from pallas_sim.windows import read


@rule("mma", threaded=True)
def _mma(eqn: Equation) -> Evaluate:
    dtypes = [np.dtype(eqn.ins[position].dtype) for position in (1, 2, 0)]
    depth = eqn.ins[1].shape[1]

    def evaluate(thread: Thread, acc: Any, a: Any, b: Any) -> Any:
        known = thread.machine.accumulations
        adding = accumulation_of(known, "mma", dtypes[0].name, dtypes[1].name)
        return tensor_product(*dtypes, depth, accumulation=adding)(a, b, acc)

    return evaluate


@gpu_rule("wgmma_ref")
def _wgmma(eqn: Equation) -> Evaluate:
    places, line = product_parts(eqn.params), eqn.line
    dtype = np.dtype(eqn.ins[0].dtype)

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if GPUS[thread.machine.target].capability != 9:
            raise SimulationError(
                f"wgmma is an instruction of Hopper, and {thread.machine.target} does not have it"
            )
        acc, a, b = (_operand(thread, place, operands, line) for place in places)
        into: Ref = operands[places[0].position]
        machine = thread.machine
        dtypes = np.dtype(a[1].dtype), np.dtype(b[1].dtype), dtype
        # What a chip does with operands in registers was not measured.
        known = machine.accumulations if a[2] and b[2] else {}
        adding = accumulation_of(known, "wgmma", dtypes[0].name, dtypes[1].name)
        multiply = tensor_product(*dtypes, a[1].shape[1], accumulation=adding)
        sides = [
            Side(part, False, name, proxied=True) for name, part, in_memory in (a, b) if in_memory
        ]
        sides.append(Side(acc[1], True, into.name))
        record = Asynchronous("the wgmma", sides, chain=("wgmma", thread.number))
        _start_product(thread, record, a[1], b[1], acc[1], multiply, line)
        return ()

    return evaluate


def _operand(
    thread: GpuThread, place: RefPart, operands: Sequence[Any], line: str
) -> tuple[str, Array, bool]:
    """Name and elements of an operand, and whether it is in memory."""
    if isinstance(operands[place.position], Ref):
        ref, part = part_of(thread, place, operands, "wgmma of", line)
        return ref.name, part, True
    return "", np.asarray(operands[place.position]), False


def _start_product(
    thread: GpuThread,
    record: Asynchronous,
    a: Array,
    b: Array,
    acc: Array,
    multiply: Product,
    line: str,
) -> None:
    def add(values: tuple[Array, Array]) -> None:
        acc[...] = multiply(*values, acc)

    operation = EngineOperation(record, thread.block)
    thread.products.open.append(operation)
    thread.products.commit()
    steps = reading_then_writing(lambda: (a.copy(), b.copy()), add)
    start(thread, operation, steps=steps, line=line)


@gpu_rule("wgmma_wait")
def _wgmma_wait(eqn: Equation) -> Evaluate:
    left = eqn.params["n"]

    def evaluate(thread: GpuThread) -> Any:
        wait_groups(thread, thread.products, left)
        return ()

    return evaluate


#: JAX 0.11 has another name for it.
_DEREF = ("wgmma_accumulator_deref", "wgmma_accumulator_deref_p")


@gpu_rule(*_DEREF)
def _accumulator(eqn: Equation) -> Evaluate:
    left, line = eqn.params.get("wait_n", 0), eqn.line

    def evaluate(thread: GpuThread, ref: Ref) -> Any:
        if left is not None:
            wait_groups(thread, thread.products, left)
        record_access(thread, ref.data, "read", ref.name, line)
        return ref.data.copy()

    return evaluate


@gpu_rule("wgmma_accumulator_store", "wgmma_accumulator_store_p")
def _set_accumulator(eqn: Equation) -> Evaluate:
    line = eqn.line

    def evaluate(thread: GpuThread, ref: Ref, value: Any) -> Any:
        record_access(thread, ref.data, "write", ref.name, line)
        ref.data[...] = value
        return (
            () if eqn.origin is None or eqn.origin.primitive.multiple_results else ref.data.copy()
        )

    return evaluate


# Rules: products by the tensor core of Blackwell, and the commits that say when they are done.


@dataclass(frozen=True, slots=True)
class _Operands:
    """What a product of one block works on.

    Attributes:
      sums: where it goes.
      lhs: rows of this block.
      rhs: columns of this block: those of both blocks of a pair are multiplied by the rows of each.
      scales: of the rows, and of the columns of both blocks; or None.
      metadata: of the rows, or None.
      sides: the memory that it accesses.
      paired: whether the scales of the columns lie in two halves.
    """

    sums: TensorMemoryPart
    lhs: Array
    rhs: Array
    scales: tuple[Array, Array] | None
    metadata: Array | None
    sides: list[Side]
    paired: bool = False


@gpu_rule("tcgen05_mma")
def _tcgen05_mma(eqn: Equation) -> Evaluate:
    """``sums = lhs @ rhs``, or ``sums += lhs @ rhs``, asynchronously; then an arrival.

    Of a pair of blocks, each has the rows of its own sums, and half of the columns of the second
    operand. The first one starts the product of both.
    """
    parts = product_operands(eqn.params, len(eqn.ins))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        blocks = pair_of(thread, parts.pair_axis)
        if not blocks:
            return ()
        given = [_operands(thread, block, parts, operands, eqn.line) for block in blocks]
        accumulate = bool(np.asarray(operands[parts.accumulate]))
        sides = [side for each in given for side in each.sides]
        steps = _steps(thread, given, eqn.line, accumulate=accumulate)
        blackwell.begin(thread, "the tcgen05 product", sides, steps, eqn.line)
        if parts.barrier is not None:
            barriers = _barriers(thread, blocks, parts.barrier, operands)
            blackwell.commit(thread, barriers, eqn.line)
        return ()

    return evaluate


@gpu_rule("tcgen05_commit_arrive")
def _tcgen05_commit_arrive(eqn: Equation) -> Evaluate:
    """Arrive at a barrier, of a pair at that of both blocks, once all before is done."""
    parts = commit_operands(eqn.params, len(eqn.ins))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        blocks = pair_of(thread, parts.pair_axis)
        if blocks and holds(parts.predicate, operands):
            barriers = _barriers(thread, blocks, parts.barrier, operands)
            blackwell.commit(thread, barriers, eqn.line)
        return ()

    return evaluate


def _barriers(
    thread: GpuThread, blocks: list[ThreadBlock], part: RefPart, operands: Any
) -> list[Barrier]:
    refs = (thread.of_block(operands[part.position], block) for block in blocks)
    return [barrier_at(read(ref.data, part.transforms, operands)) for ref in refs]


def _operands(
    thread: GpuThread, block: ThreadBlock, parts: ProductOperands, operands: Any, line: str
) -> _Operands:
    def tensor(part: RefPart) -> tuple[TensorMemory, TensorMemoryPart]:
        return in_tensor_memory(thread, block, part, operands, "tcgen05 operand from", line)

    ref, sums = tensor(parts.sums)
    sides = [Side(sums.region, True, ref.name, tensor_core=True, role="sums")]
    found: list[Array] = []
    for part in (parts.lhs, parts.rhs):
        if isinstance(operands[part.position], TensorMemory):
            ref, accessed = tensor(part)
            found.append(accessed.data)
            sides.append(Side(accessed.region, False, ref.name, tensor_core=True, role="operand"))
        else:
            data, region, name = in_shared_memory(thread, block, part, operands, line)
            found.append(data)
            sides.append(Side(region, False, name, proxied=True))
    more: list[Array] = []
    for part in (*(parts.scales or ()), *((parts.metadata,) if parts.metadata else ())):
        ref, accessed = tensor(part)
        more.append(accessed.data)
        sides.append(Side(accessed.region, False, ref.name, tensor_core=True, role="operand"))
    scales, paired = None, False
    if parts.scales is not None:
        second = operands[parts.scales[1].position]
        paired = second.layout_of(parts.scales[1].transforms) == "scales of a pair"
        scales = (more[0], more[1])
    metadata = more[-1] if parts.metadata is not None else None
    return _Operands(sums, found[0], found[1], scales, metadata, sides, paired=paired)


def _of_columns(scales: Array, columns: int, *, paired: bool) -> Array:
    """The scales of the columns of a product; those of a pair lie in two halves of 128 rows."""
    if not paired:
        return np.array(scales[:columns])
    half = columns // 2
    return np.concatenate([scales[:half], scales[128 : 128 + half]])


def _steps(thread: GpuThread, given: list[_Operands], line: str, *, accumulate: bool) -> list[Step]:
    """First the operands are read, then the sums are read and written."""

    def read_all() -> list[tuple[Any, ...]]:
        values: list[tuple[Any, ...]] = []
        rhs = np.concatenate([each.rhs for each in given], axis=1)
        for each in given:
            lhs = np.array(each.lhs)
            if each.metadata is not None:
                lhs = _expanded(thread, lhs, np.array(each.metadata), line)
            scales = None
            if each.scales is not None:
                rows, columns = each.scales
                of_columns = _of_columns(columns, rhs.shape[1], paired=each.paired)
                scales = (np.array(rows[: len(lhs)]), of_columns)
            values.append((lhs, rhs, scales))
        return values

    def write_all(values: list[tuple[Any, ...]]) -> None:
        for each, (lhs, rhs, scales) in zip(given, values, strict=True):
            before = each.sums.data if accumulate else None
            accumulations = thread.machine.accumulations
            write(thread, each.sums, _multiplied(each, lhs, rhs, scales, before, accumulations))

    return reading_then_writing(read_all, write_all)


def _multiplied(
    given: _Operands,
    lhs: Array,
    rhs: Array,
    scales: tuple[Array, Array] | None,
    before: Array | None,
    accumulations: Accumulations,
) -> Array:
    """The product of values that were read, added to what was there before."""
    depth, out, sparse = lhs.shape[1], given.sums.data.dtype, given.metadata is not None
    if scales is None:
        names = lhs.dtype.name, rhs.dtype.name
        adding = None if sparse else accumulation_of(accumulations, "tcgen05_mma", *names)
        product = tensor_product(
            lhs.dtype, rhs.dtype, out, depth, sparse=sparse, accumulation=adding
        )
        return product(lhs, rhs, before)
    count = scales[0].shape[1]
    product = scaled_product(lhs.dtype, rhs.dtype, scales[0].dtype, depth, count, sparse=sparse)
    return product(lhs, rhs, before, *scales)


def _expanded(thread: GpuThread, lhs: Array, metadata: Array, line: str) -> Array:
    """A sparse operand with its zeros. What its metadata say must be defined."""
    places = from_tensor_memory(metadata.astype(np.uint8), lhs.dtype)
    wrong = np.argwhere(disordered(places))
    if len(wrong):
        row, group = map(int, wrong[0])
        first, second = map(int, places[row, group])
        message = (
            f"sparse metadata of row {row}, group {group}, name the elements {first} and "
            f"{second}: the first must be before the second, or PTX defines no product"
        )
        thread.report("undefined", message, line, seed=thread.machine.seed)
    return expand(lhs, places)


# Rules: loads from tensor memory, stores to it, and copies from shared memory.


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
