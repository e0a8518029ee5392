"""Rules: products of matrices on tensor cores: ``mma``, ``wgmma``, and those of Blackwell.

``mma`` of Ampere is an operation of its threads. ``wgmma`` of Hopper runs beside its warpgroup: it
reads its operands in shared memory, and adds to its registers, at any time until it is waited for
(PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"). Those of one warpgroup happen in
order. ``tcgen05`` of Blackwell has its sums in tensor memory, and commits say when products are
done; what orders these operations is in ``gpu/engines.py``. What products compute is in
``gpu/tensor_cores.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.accesses import record_access
from pallas_sim.chips import GPUS, accumulation_of
from pallas_sim.compat.places import transforms_of
from pallas_sim.dtypes import Array
from pallas_sim.edges import edge_finding, end_at_edge
from pallas_sim.errors import SimulationError
from pallas_sim.gpu.engines import (
    commit,
    load_from_tensor_memory,
    reading_then_writing,
    start,
    start_on_tensor_core,
    store_to_tensor_memory,
    wait_for_loads,
    wait_for_stores,
    wait_groups,
)
from pallas_sim.gpu.tensor_cores import (
    disordered,
    expand,
    from_tensor_memory,
    metadata_of_copy,
    paired_scales_of_copy,
    require_wgmma,
    require_wgmma_operand,
    scaled_product,
    scales_of_copy,
    tensor_product,
)
from pallas_sim.gpu.tensor_memory import TensorMemory, TensorMemoryPart
from pallas_sim.gpu.threads import EngineOperation, GpuThread, Step, ThreadBlock
from pallas_sim.machine import Thread
from pallas_sim.memory import Outside, Ref
from pallas_sim.recording import Asynchronous, Side
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.mosaic_threads import (
    OperandLeaves,
    barriers_in,
    gpu_rule,
    holds,
    in_shared_memory,
    part_of,
)
from pallas_sim.transforms import RefPart


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
    leaves, line = OperandLeaves(eqn, 3), eqn.line
    parts = [leaves.part(n, f"{name}_transforms_tree") for n, name in enumerate(("acc", "a", "b"))]
    out = np.dtype(eqn.ins[0].dtype)

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        if GPUS[thread.machine.target].capability != 9:
            raise SimulationError(
                f"wgmma is an instruction of Hopper, and {thread.machine.target} does not have it"
            )
        into, acc = part_of(thread, parts[0], operands, "wgmma of", line)
        sides: list[Side] = []
        factors: list[Array] = []
        for part, terms in zip(parts[1:], (1, 0), strict=True):
            factor = operands[part.position]
            if isinstance(factor, Ref):
                ref, factor = part_of(thread, part, operands, "wgmma of", line)
                require_wgmma_operand(ref.name, factor, terms)
                sides.append(Side(factor, False, ref.name, proxied=True))
            factors.append(np.asarray(factor))
        a, b = factors
        require_wgmma(acc, a, b)
        sides.append(Side(acc, True, into.name))
        known = thread.machine.accumulations
        adding = accumulation_of(known, "wgmma", a.dtype.name, b.dtype.name)
        multiply = tensor_product(a.dtype, b.dtype, out, a.shape[1], accumulation=adding)

        def add(values: tuple[Array, Array]) -> None:
            acc[...] = multiply(*values, acc)

        record = Asynchronous("the wgmma", sides, chain=("wgmma", thread.number))
        operation = EngineOperation(record, thread.block)
        thread.products.open.append(operation)
        thread.products.commit()
        steps = reading_then_writing(lambda: (a.copy(), b.copy()), add)
        start(thread, operation, steps=steps, line=line)

    return evaluate


@gpu_rule("wgmma_wait")
def _wgmma_wait(eqn: Equation) -> Evaluate:
    left = eqn.params["n"]
    return lambda thread: wait_groups(thread, thread.products, left)


# Names that end in ``_p`` are those of JAX 0.11.
@gpu_rule("wgmma_accumulator_deref", "wgmma_accumulator_deref_p")
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
        has_result = eqn.origin is not None and not eqn.origin.primitive.multiple_results
        return ref.data.copy() if has_result else None

    return evaluate


# Products by the tensor core of Blackwell, and the commits that say when they are done.


@dataclass(frozen=True, slots=True)
class _ProductParts:
    """The operands of a ``tcgen05_mma`` that it reads or writes.

    Attributes:
      sums: the accumulator.
      factors: the first and the second operand.
      scales: of both, or ().
      metadata: of a sparse first operand, or None.
    """

    sums: RefPart
    factors: tuple[RefPart, RefPart]
    scales: tuple[RefPart, ...]
    metadata: RefPart | None


@dataclass(frozen=True, slots=True)
class _BlockProduct:
    """What a product of one block works on.

    Attributes:
      sums: where it goes.
      lhs: rows of this block.
      rhs: columns of this block: those of both blocks of a pair are multiplied by the rows of each.
      scales: of the rows, and of the columns of both blocks; or ().
      metadata: of the rows, or None.
      sides: the memory that it accesses.
      paired: whether the scales of the columns lie in two halves.
    """

    sums: TensorMemoryPart
    lhs: Array
    rhs: Array
    scales: tuple[Array, ...]
    metadata: Array | None
    sides: list[Side]
    paired: bool


@gpu_rule("tcgen05_mma")
def _tcgen05_mma(eqn: Equation) -> Evaluate:
    """``sums = lhs @ rhs``, or ``sums += lhs @ rhs``, asynchronously; then an arrival.

    Of a pair of blocks, each has the rows of its own sums, and half of the columns of the second
    operand. The first one starts the product of both.
    """
    params, leaves, line = eqn.params, OperandLeaves(eqn, 4), eqn.line
    there = {"barrier": params["arrive"], "a_scale": params["scaled"], "b_scale": params["scaled"]}
    there["a_sparse_metadata"] = params.get("sparse", False)
    positions: dict[str, Any] = {"acc": 0, "a": 1, "b": 2}
    positions |= {name: leaves.one(there=is_there) for name, is_there in there.items()}
    named = {
        name: leaves.part(position, f"{name}_transforms_tree")
        for name, position in positions.items()
        if position is not None
    }
    leaves.end()
    scales = tuple(named[name] for name in ("a_scale", "b_scale") if name in named)
    metadata = named.get("a_sparse_metadata")
    parts = _ProductParts(named["acc"], (named["a"], named["b"]), scales, metadata)
    barrier, pair_axis = named.get("barrier"), params["collective_axis"]

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        blocks = pair_of(thread, pair_axis)
        if not blocks:
            return
        products = [_product_of(thread, block, parts, operands, line) for block in blocks]
        sides = [side for product in products for side in product.sides]
        accumulate = bool(np.asarray(operands[3]))
        steps = _steps(thread, products, line, accumulate=accumulate)
        start_on_tensor_core(thread, "the tcgen05 product", sides, steps, line)
        if barrier is not None:
            commit(thread, barriers_in(thread, blocks, barrier, operands), line)

    return evaluate


@gpu_rule("tcgen05_commit_arrive")
def _tcgen05_commit_arrive(eqn: Equation) -> Evaluate:
    """Arrive at a barrier, of a pair at that of both blocks, once all before is done."""
    leaves, pair_axis = OperandLeaves(eqn, 1), eqn.params["collective_axis"]
    barrier, predicate = leaves.part(0, "barrier_transforms_tree"), leaves.predicate()
    leaves.end()

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        blocks = pair_of(thread, pair_axis)
        if blocks and holds(predicate, operands):
            commit(thread, barriers_in(thread, blocks, barrier, operands), eqn.line)

    return evaluate


def _product_of(
    thread: GpuThread, block: ThreadBlock, parts: _ProductParts, operands: Any, line: str
) -> _BlockProduct:
    how = "tcgen05 operand from"
    ref, sums = in_tensor_memory(thread, block, parts.sums, operands, how, line)
    sides = [Side(sums.region, True, ref.name, tensor_core=True, role="sums")]

    def read_by_product(part: RefPart) -> Array:
        if isinstance(operands[part.position], TensorMemory) or part not in parts.factors:
            ref, accessed = in_tensor_memory(thread, block, part, operands, how, line)
            sides.append(Side(accessed.region, False, ref.name, tensor_core=True, role="operand"))
            return accessed.data
        data, name = in_shared_memory(thread, block, part, operands, line)
        sides.append(Side(data, False, name, proxied=True))
        return data

    lhs, rhs = map(read_by_product, parts.factors)
    scales = tuple(map(read_by_product, parts.scales))
    metadata = None if parts.metadata is None else read_by_product(parts.metadata)
    paired = False
    if parts.scales:
        of_columns = parts.scales[1]
        second: TensorMemory = operands[of_columns.position]
        paired = second.layout_of(of_columns.transforms) == "scales of a pair"
    return _BlockProduct(sums, lhs, rhs, scales, metadata, sides, paired)


def _of_columns(scales: Array, columns: int, *, paired: bool) -> Array:
    """Return the scales of the columns of a product; a pair's lie in two halves of 128 rows."""
    if not paired:
        return np.array(scales[:columns])
    half = columns // 2
    return np.concatenate([scales[:half], scales[128 : 128 + half]])


def _steps(
    thread: GpuThread, products: list[_BlockProduct], line: str, *, accumulate: bool
) -> list[Step]:
    """First the operands are read, then the sums are read and written."""

    def read_all() -> list[tuple[Array, Array, list[Array]]]:
        values: list[tuple[Array, Array, list[Array]]] = []
        rhs = np.concatenate([product.rhs for product in products], axis=1)
        for product in products:
            lhs = np.array(product.lhs)
            if product.metadata is not None:
                lhs = _expanded(thread, lhs, np.array(product.metadata), line)
            scales: list[Array] = []
            if product.scales:
                rows, columns = product.scales
                of_columns = _of_columns(columns, rhs.shape[1], paired=product.paired)
                scales = [np.array(rows[: len(lhs)]), of_columns]
            values.append((lhs, rhs, scales))
        return values

    def write_all(values: list[tuple[Array, Array, list[Array]]]) -> None:
        for product, (lhs, rhs, scales) in zip(products, values, strict=True):
            before = product.sums.data if accumulate else None
            write(thread, product.sums, _multiplied(thread, product, lhs, rhs, scales, before))

    return reading_then_writing(read_all, write_all)


def _multiplied(
    thread: GpuThread,
    block: _BlockProduct,
    lhs: Array,
    rhs: Array,
    scales: list[Array],
    before: Array | None,
) -> Array:
    """Return the product of values that were read, added to what was there before."""
    dtypes, depth, sparse = (lhs.dtype, rhs.dtype), lhs.shape[1], block.metadata is not None
    if scales:
        block_scales = scales[0]
        product = scaled_product(
            *dtypes, block_scales.dtype, depth, block_scales.shape[1], sparse=sparse
        )
        return product(lhs, rhs, before, *scales)
    names, known = (lhs.dtype.name, rhs.dtype.name), thread.machine.accumulations
    adding = None if sparse else accumulation_of(known, "tcgen05_mma", *names)
    out = block.sums.data.dtype
    return tensor_product(*dtypes, out, depth, sparse=sparse, accumulation=adding)(lhs, rhs, before)


def _expanded(thread: GpuThread, lhs: Array, metadata: Array, line: str) -> Array:
    """Return a sparse operand with its zeros. What its metadata say must be defined."""
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


# Loads from tensor memory, stores to it, and copies from shared memory.


@gpu_rule("async_load")
def _async_load(eqn: Equation) -> Evaluate:
    window = RefPart(0, transforms_of(eqn.params["tree"], 1, len(eqn.ins) - 1))
    reduce = _REDUCTIONS[eqn.params.get("reduce")]

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        ref, part = in_tensor_memory(thread, thread.block, window, operands, "load from", eqn.line)
        values = np.array(part.data)
        side = Side(part.region, False, ref.name, tensor_core=True)
        load_from_tensor_memory(thread, side, eqn.line)
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
    return wait_for_loads


@gpu_rule("async_store_tmem")
def _async_store_tmem(eqn: Equation) -> Evaluate:
    window = RefPart(0, transforms_of(eqn.params["tree"], 2, len(eqn.ins) - 2))

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        ref, part = in_tensor_memory(thread, thread.block, window, operands, "store to", eqn.line)
        values = np.asarray(operands[1])
        side = Side(part.region, True, ref.name, tensor_core=True)
        store_to_tensor_memory(thread, side, lambda: write(thread, part, values), eqn.line)

    return evaluate


@gpu_rule("commit_tmem")
def _commit_tmem(_: Equation) -> Evaluate:
    return wait_for_stores


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
    what = "the copy of sparse metadata to tensor memory"
    return _copying(eqn, what, lambda ref, window: metadata_of_copy)


def _copying(
    eqn: Equation, what: str, arranging: Callable[[TensorMemory, RefPart], Callable[[Array], Array]]
) -> Evaluate:
    """Return a copy by ``tcgen05.cp``; the first block of a pair starts it for both.

    Args:
      eqn: the equation.
      what: it is, in words.
      arranging: gives the function that arranges what was read as tensor memory has it.
    """
    leaves, line, pair_axis = OperandLeaves(eqn, 2), eqn.line, eqn.params.get("collective_axis")
    from_, to = leaves.part(0, "smem_tree"), leaves.part(1, "tmem_tree")
    leaves.end()

    def start_copy(thread: GpuThread, block: ThreadBlock, operands: Any) -> None:
        source, name = in_shared_memory(thread, block, from_, operands, line)
        ref, target = in_tensor_memory(thread, block, to, operands, "copy to", line)
        arrange = arranging(ref, to)
        sides = [
            Side(source, False, name, proxied=True),
            Side(target.region, True, ref.name, tensor_core=True, role="copied"),
        ]
        steps = reading_then_writing(
            lambda: arrange(np.array(source)), lambda values: write(thread, target, values)
        )
        start_on_tensor_core(thread, what, sides, steps, line)

    def evaluate(thread: GpuThread, *operands: Any) -> Any:
        for block in pair_of(thread, pair_axis):
            start_copy(thread, block, operands)

    return evaluate


def pair_of(thread: GpuThread, axis: Any) -> list[ThreadBlock]:
    """Return the blocks that an operation of a thread is for.

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
    """Return the tensor memory of a block that an operand names, and what of it.

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
        raise end_at_edge(thread, edge_finding(thread, ref, access, outside, line)) from None


def write(thread: GpuThread, part: TensorMemoryPart, values: Array) -> None:
    """Change tensor memory, and destroy what shares it."""
    part.data[...] = values
    for other in part.overwritten:
        other[...] = thread.machine.uninitialized((), other.dtype, "scratch")
