"""Rules: products by the tensor core of Blackwell, and the commits that say when they are done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_pallas.accumulation import Accumulations, accumulation_of
from pytest_pallas.simulator.concurrency.recording import Side
from pytest_pallas.simulator.gpu.barriers import Barrier, barrier_at
from pytest_pallas.simulator.gpu.operations import Step, reading_then_writing
from pytest_pallas.simulator.gpu.tensor_cores import blackwell
from pytest_pallas.simulator.gpu.tensor_cores.blackwell import (
    ProductOperands,
    commit_operands,
    product_operands,
)
from pytest_pallas.simulator.gpu.tensor_cores.formats import (
    disordered,
    expand,
    from_tensor_memory,
    scaled_product,
)
from pytest_pallas.simulator.gpu.tensor_cores.products import tensor_product
from pytest_pallas.simulator.gpu.tensor_cores.tensor_memory import TensorMemory, TensorMemoryPart
from pytest_pallas.simulator.gpu.threads import GpuThread, ThreadBlock
from pytest_pallas.simulator.memory.windows import read
from pytest_pallas.simulator.registry import Equation, Evaluate
from pytest_pallas.simulator.rules.mosaic_gpu.equations import gpu_rule, holds, in_shared_memory
from pytest_pallas.simulator.rules.mosaic_gpu.tensor_memory import in_tensor_memory, pair_of, write
from pytest_pallas.transforms import RefPart

Array = np.ndarray[Any, Any]


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
