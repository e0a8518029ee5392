"""Rules: units of a TPU that a kernel drives by hand: matrix units (MXU), and SparseCores.

The matrix units come first. A unit has staging registers, one loaded tile, and a queue of results
(up to v6e) or accumulators (tpu7x). It computes at the instructions that say so; how long that
takes is not simulated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim.accesses import read_window, record_access, report_input_write
from pallas_sim.compat.places import transforms_in, transforms_of
from pallas_sim.cores import CoreAddress, meet, reach
from pallas_sim.dtypes import Array, Dtype, convert, is_integer
from pallas_sim.edges import (
    Contents,
    contents_of,
    edge_finding,
    report,
    report_edge,
    reporting_edges,
    undefined,
    write_inside,
)
from pallas_sim.errors import SimulationError
from pallas_sim.evaluation import prepare_lifted, run
from pallas_sim.findings import Finding
from pallas_sim.machine import Thread
from pallas_sim.memory import Elements, Outside, Ref, grid_of
from pallas_sim.points import loop_site
from pallas_sim.products import multiplier
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.control import count_rounds
from pallas_sim.transforms import Indexed, Operand, Transform
from pallas_sim.windows import read, write


@dataclass(eq=False)
class MatrixUnit:
    """One matrix unit of a core.

    Attributes:
      number: of the unit.
      staged: tiles that were pushed and not loaded yet, by staging register.
      tile: the one that rows are multiplied with, once one is loaded.
      results: rows that were not popped yet, in their order.
      sums: contents of accumulators that are not zero, by the identity of their reference's
        memory, which is kept with them.
    """

    number: int
    staged: dict[int, Array] = field(default_factory=dict)
    tile: Array | None = None
    results: deque[Array] = field(default_factory=deque)
    sums: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    def multiply(self, lhs: Array, register: int | None) -> Array:
        """Return the product of rows with the tile; one is loaded from a staging register first.

        Raises:
          SimulationError: there is no such tile, or it has another dtype or depth.
        """
        if register is not None:
            if register not in self.staged:
                raise SimulationError(
                    f"staging register {register} of MXU {self.number} is loaded, but it is empty"
                )
            self.tile = self.staged.pop(register)
        tile = self.tile
        if tile is None:
            raise SimulationError(f"MXU {self.number} multiplies, but no tile was loaded")
        if lhs.dtype != tile.dtype or lhs.shape[1] != tile.shape[0]:
            raise SimulationError(
                f"MXU {self.number} multiplies {lhs.dtype}{list(lhs.shape)} with a tile "
                f"{tile.dtype}{list(tile.shape)}"
            )
        out = np.dtype(np.int32 if is_integer(lhs.dtype) else np.float32)
        return multiplier(lhs.dtype, tile.dtype, out, lhs.shape[1])(lhs, tile)

    def pop(self, rows: int, columns: int, dtype: Dtype) -> Array:
        """Return the oldest rows of results.

        Raises:
          SimulationError: there are fewer, or they have another width or dtype.
        """
        if len(self.results) < rows:
            raise SimulationError(
                f"{rows} rows are popped from the results of MXU {self.number}, "
                f"which has {len(self.results)}"
            )
        if rows == 0:
            return np.empty((0, columns), dtype)
        popped = np.stack([self.results.popleft() for _ in range(rows)])
        if popped.dtype != dtype or popped.shape[1] != columns:
            raise SimulationError(
                f"{dtype}[{rows}, {columns}] is popped from MXU {self.number}, "
                f"whose results are {popped.dtype}{list(popped.shape)}"
            )
        return popped

    def sums_of(self, ref: Ref) -> Array:
        """Return the contents of an accumulator, which are zeros at first."""
        key = id(ref.data)
        if key not in self.sums:
            self.sums[key] = ref.data, np.zeros(ref.shape, ref.dtype)
        return self.sums[key][1]

    def clear(self, ref: Ref) -> None:
        """Forget an accumulator if it is all zeros."""
        if not self.sums_of(ref).any():
            del self.sums[id(ref.data)]


def matrix_unit(thread: Thread, number: int) -> MatrixUnit:
    """Return a matrix unit of the core."""
    return thread.units.setdefault(f"MXU {number}", MatrixUnit(number))


@rule("matmul_push_rhs", threaded=True)
def _matmul_push_rhs(eqn: Equation) -> Evaluate:
    number, register = eqn.params["mxu_index"], eqn.params["staging_register"]
    transpose = eqn.params["transpose"]

    def evaluate(thread: Thread, tile: Array) -> tuple[()]:
        staged = matrix_unit(thread, number).staged
        if register in staged:
            raise SimulationError(
                f"a tile is pushed to staging register {register} of MXU {number}, "
                "whose tile was not loaded yet"
            )
        staged[register] = tile.T if transpose else tile
        return ()

    return evaluate


@rule("matmul_lhs_fifo", threaded=True)
def _matmul_lhs_fifo(eqn: Equation) -> Evaluate:
    number, register = eqn.params["mxu_index"], eqn.params["load_staged_rhs"]

    def evaluate(thread: Thread, lhs: Array) -> tuple[()]:
        unit = matrix_unit(thread, number)
        unit.results.extend(unit.multiply(lhs, register))
        return ()

    return evaluate


@rule("matmul_pop_fifo", threaded=True)
def _matmul_pop_fifo(eqn: Equation) -> Evaluate:
    number, (rows, columns) = eqn.params["mxu_index"], eqn.out.shape
    return lambda thread: matrix_unit(thread, number).pop(rows, columns, eqn.out.dtype)


@rule("matmul_acc_lhs", threaded=True)
def _matmul_acc_lhs(eqn: Equation) -> Evaluate:
    register = eqn.params["load_staged_rhs"]
    number = eqn.ins[0].memory_space.mxu_id
    window = transforms_of(eqn.params["acc_transforms_tree"], 2, len(eqn.ins) - 2)

    def evaluate(thread: Thread, ref: Ref, lhs: Array, *operands: Any) -> tuple[()]:
        unit = matrix_unit(thread, number)
        product = unit.multiply(lhs, register)

        def add(old: Array) -> Array:
            return (old + product).astype(ref.dtype, copy=False)

        with reporting_edges(thread, ref, "store to", eqn.line):
            write(unit.sums_of(ref), window, (ref, lhs, *operands), add)
        return ()

    return evaluate


@rule("matmul_pop", threaded=True)
def _matmul_pop(eqn: Equation) -> Evaluate:
    number = eqn.ins[0].memory_space.mxu_id
    window = transforms_of(eqn.params["acc_transforms_tree"], 1, len(eqn.ins) - 1)

    def evaluate(thread: Thread, ref: Ref, *operands: Any) -> Array:
        unit = matrix_unit(thread, number)
        sums = unit.sums_of(ref)
        result = np.array(
            read_window(
                thread, replace(ref, data=sums), window, (ref, *operands), "load from", eqn.line
            )
        )
        write_inside(sums, window, (ref, *operands), np.zeros_like, contents_of(thread))
        unit.clear(ref)
        return result

    return evaluate


# What only the subcores of a SparseCore can do: in registers, in memory, and with each other.
#
# ``jax.experimental.pallas.tpu_sc`` documents them. What it leaves open, JAX's own tests on
# hardware settle: ``scan_count`` begins at 1, and ``cumsum`` takes nothing of masked elements.
# What it leaves undefined (lanes that a mask leaves out, the order of a parallel loop) is
# undefined here too: such lanes hold what uninitialized memory holds, and with a seed the loop
# runs in any order.


_HOME = "sc_primitives"


# Registers.


@rule("scan_count", home=_HOME)
def _scan_count(eqn: Equation) -> Evaluate:
    del eqn

    def evaluate(x: Any, mask: Any) -> Any:
        same = (x[:, None] == x) & mask[:, None] & mask
        counts = np.tril(same).sum(1, dtype=np.int32)
        return counts, mask & ~np.triu(same, 1).any(1)

    return evaluate


@rule("masked_cumsum")
def _masked_cumsum(eqn: Equation) -> Evaluate:
    dtype = eqn.out.dtype
    return lambda x, mask: np.cumsum(np.where(mask, x, dtype.type(0)), dtype=dtype)


@rule("masked_cummax", "masked_cummin")
def _running_extreme(eqn: Equation) -> Evaluate:
    extreme = np.maximum if eqn.name == "masked_cummax" else np.minimum

    def evaluate(x: Any, mask: Any) -> Any:
        if not mask.any():
            return np.array(x)
        first = int(mask.argmax())
        # The elements before the first one that counts pass through.
        result = np.where(mask, x, x[first])
        result[first:] = extreme.accumulate(result[first:])
        result[:first] = x[:first]
        return result

    return evaluate


@rule("masked_sort")
def _masked_sort(eqn: Equation) -> Evaluate:
    falling = eqn.params["descending"]

    def evaluate(keys: Any, values: Any, *masks: Any) -> Any:
        last = keys.size - 1
        order = (
            last - keys[::-1].argsort(kind="stable")[::-1]
            if falling
            else keys.argsort(kind="stable")
        )
        for mask in masks:  # what does not count comes last, as it was
            order = np.concatenate([order[mask[order]], np.flatnonzero(~mask)])
        return [array[order] for array in (keys, values, *masks)]

    return evaluate


@rule("pack", home=_HOME)
def _pack(eqn: Equation) -> Evaluate:
    shape, dtype = tuple(eqn.out.shape), eqn.out.dtype
    return lambda a, b: convert(np.stack([a, b], axis=1), dtype).reshape(shape)


@rule("unpack", home=_HOME)
def _unpack(eqn: Equation) -> Evaluate:
    dtype = eqn.outs[0].dtype

    def evaluate(both: Any) -> Any:
        wide = convert(both.reshape(-1, 2), dtype)
        return wide[:, 0], wide[:, 1]

    return evaluate


@rule("all_reduce_population_count")
def _population_count(eqn: Equation) -> Evaluate:
    shape = tuple(eqn.out.shape)
    return lambda mask: np.full(shape, np.count_nonzero(mask), np.int32)


@rule("all_reduce_ffs")
def _find_first_set(eqn: Equation) -> Evaluate:
    shape = tuple(eqn.out.shape)
    return lambda mask: np.full(shape, mask.argmax() if mask.any() else mask.size, np.int32)


# Memory.


#: Gives the memory that an equation accesses, the index of each element along its axes, and the
#: mask of those lanes that have an element.
_Locate = Callable[[Ref, Sequence[Any]], tuple[Array, tuple[Array, ...], Any]]


@rule("load", threaded=True, home=_HOME)
def _load_expanded(eqn: Equation) -> Evaluate:
    return _loading(eqn, _within(eqn, 1, tuple(eqn.out.shape), compresses=True))


@rule("swap", threaded=True, home=_HOME)
def _store(eqn: Equation) -> Evaluate:
    """``addupdate``, ``store_compressed`` and ``addupdate_compressed``."""
    # JAX 0.11.2 has no other stores with a mask.
    compresses = eqn.params.get("compress", eqn.params["has_mask"])
    locate = _within(eqn, 2, tuple(eqn.ins[1].shape), compresses=compresses)
    store = _storing(eqn, locate, value_at=1)

    def evaluate(thread: Thread, ref: Ref, x: Any, *rest: Any) -> Any:
        store(thread, ref, x, *rest)
        return x  # JAX gives the value no meaning, and nothing reads it

    return evaluate


@rule("gather", threaded=True, home=_HOME)
def _gather(eqn: Equation) -> Evaluate:
    _, transforms, indices, mask_at = eqn.operands_in("tree")
    return _loading(eqn, _locating(transforms, indices, mask_at, tuple(eqn.out.shape)))


@rule("scatter", threaded=True, home=_HOME)
def _scatter(eqn: Equation) -> Evaluate:
    _, transforms, indices, x_at, mask_at = eqn.operands_in("tree")
    shape = tuple(eqn.ins[x_at.position].shape)
    locate = _locating(transforms, indices, mask_at, shape)
    return _storing(eqn, locate, value_at=x_at.position)


def _locating(
    transforms: Any, indices: Sequence[Operand], mask_at: Operand | None, shape: tuple[int, ...]
) -> _Locate:
    """Return how to locate elements that arrays of indices name."""
    window = transforms_in(transforms)

    def locate(ref: Ref, operands: Sequence[Any]) -> tuple[Array, tuple[Array, ...], Any]:
        mask: Any = np.ones(shape, bool) if mask_at is None else operands[mask_at.position]
        memory, arrays = _view(ref, window, operands), (operands[at.position] for at in indices)
        key = tuple(np.asarray(array)[mask].astype(np.int64) for array in arrays)
        return memory, key, mask

    return locate


def _loading(eqn: Equation, locate: _Locate) -> Evaluate:
    shape, dtype = tuple(eqn.out.shape), eqn.out.dtype

    def evaluate(thread: Thread, ref: Ref, *rest: Any) -> Any:
        elements, mask, beyond, finding = _located(
            thread, ref, (ref, *rest), locate, "load from", eqn.line
        )
        if thread.recorded:
            record_access(thread, elements, "read", ref.name, eqn.line)

        def load(contents: Contents) -> Array:
            result = thread.machine.uninitialized(shape, dtype, "padding")
            result[mask] = elements.memory[elements.key]
            result[beyond] = contents(result[beyond].shape, dtype)
            return result

        if finding is not None:
            raise undefined(thread, load, finding)
        return load(contents_of(thread))

    return evaluate


def _storing(eqn: Equation, locate: _Locate, *, value_at: int) -> Evaluate:
    adds = eqn.params["add"]

    def evaluate(thread: Thread, ref: Ref, *rest: Any) -> Any:
        operands: Sequence[Any] = (ref, *rest)
        report_input_write(thread, ref, eqn.line)
        elements, mask, _, finding = _located(thread, ref, operands, locate, "store to", eqn.line)
        if finding is not None:
            report(thread, finding)
        if thread.recorded:
            record_access(thread, elements, "write", ref.name, eqn.line)
        value: Any = operands[value_at]
        change(elements, value[mask], adds=adds)
        return ()

    return evaluate


def change(elements: Elements, values: Any, *, adds: bool) -> None:
    """Store to elements of memory, or add to them: as often as each is named."""
    if adds:
        np.add.at(elements.memory, elements.key, values)
    else:
        elements.memory[elements.key] = values


def _within(eqn: Equation, first: int, shape: tuple[int, ...], *, compresses: bool) -> _Locate:
    """Return how to locate elements of a window.

    Args:
      eqn: a load or store, whose mask is the last operand if it has one.
      first: position of the first operand of the window.
      shape: of the window.
      compresses: whether the lanes of the mask take the elements at the front.
    """
    last = len(eqn.ins) - (1 if eqn.params["has_mask"] else 0)
    window = transforms_in(eqn.params["tree"].unflatten([Operand(at) for at in range(first, last)]))

    def locate(ref: Ref, operands: Sequence[Any]) -> tuple[Array, tuple[Array, ...], Any]:
        mask: Any = operands[last] if eqn.params["has_mask"] else np.ones(shape, bool)
        chosen = _first(mask) if compresses else mask
        *outer, index = window or (Indexed.whole(ref.shape),)
        if isinstance(index, Indexed):
            memory, axes = _view(ref, outer, operands), grid_of(index, operands, shape)
        else:
            memory, axes = _view(ref, window, operands), list(np.indices(shape))
        return memory, tuple(axis[chosen] for axis in axes), mask

    return locate


def _first(mask: Any) -> Any:
    """Return a mask of as many elements as a mask has, those at the front."""
    return (np.arange(mask.size) < np.count_nonzero(mask)).reshape(mask.shape)


def _view(ref: Ref, window: Sequence[Transform], operands: Sequence[Any]) -> Array:
    memory = read(ref.data, window, operands)
    if memory.size and not np.may_share_memory(memory, ref.data):
        raise SimulationError(
            f"{ref.name or 'a reference'} is reshaped, or indexed by arrays, before its elements "
            "are accessed, which cannot be simulated"
        )
    return memory


def _located(
    thread: Thread,
    ref: Ref,
    operands: Sequence[Any],
    locate: _Locate,
    access: str,
    line: str,
) -> tuple[Elements, Any, Any, Finding | None]:
    """Return the elements that an equation accesses, the mask of their lanes, and what is beyond.

    That is the mask of the lanes whose element is beyond the edge, and what is to be reported.
    """
    finding: Finding | None = None
    try:
        memory, key, mask = locate(ref, operands)
    except Outside as outside:  # the window, so that no element is there
        report_edge(thread, ref, access, outside, line)
        nothing = (np.zeros(0, np.int64),) * ref.data.ndim
        lanes = np.zeros(0, np.int64)
        return Elements(ref.data, nothing), lanes, lanes, None
    inside = np.ones(len(key[0]) if key else 0, bool)
    for axis, (indices, size) in enumerate(zip(key, memory.shape, strict=True)):
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            outside = Outside.of(axis, indices, memory.shape)
            finding = finding or edge_finding(thread, ref, access, outside, line)
            inside &= (indices >= 0) & (indices < size)
    beyond = np.zeros(np.shape(mask), bool)
    if finding is not None:
        beyond[mask] = ~inside
        mask, key = mask & ~beyond, tuple(indices[inside] for indices in key)
    return Elements(memory, key), mask, beyond, finding


@rule("parallel_loop", threaded=True)
def _parallel_loop(eqn: Equation) -> Evaluate:
    lower, upper, step, consts, carried = eqn.operands_in("tree")
    body = prepare_lifted(eqn.params["jaxpr"])
    site = loop_site(eqn)

    def evaluate(thread: Thread, *operands: Any) -> Any:
        first, end, stride = (int(operands[operand.position]) for operand in (lower, upper, step))
        constant = [operands[operand.position] for operand in consts]
        carry = [operands[operand.position] for operand in carried]
        rounds: Any = np.arange(first, end, stride, dtype=np.int32)
        count_rounds(site, thread, len(rounds))
        if not carry:
            rounds = rounds[thread.machine.choices.order(len(rounds))]
        for index in rounds:
            thread.machine.count(1)
            carry = run(body, thread, (*constant, index, *carry))
        return carry

    return evaluate


# Other subcores.


@rule("barrier", threaded=True, home=_HOME)
def _barrier(eqn: Equation) -> Evaluate:
    del eqn

    def evaluate(thread: Thread) -> Any:
        (_, core), (_, subcore) = _subcore_of(thread)
        count = list(thread.cores.values())[1]
        site = ("subcore barrier", thread.owner.device, thread.launch, core)
        what = f"the barrier of SparseCore {core}"
        meet(thread, site, subcore, range(count), None, what, kind="subcore")
        return ()

    return evaluate


@rule("sc_fetch_and_add", threaded=True)
def _fetch_and_add(eqn: Equation) -> Evaluate:
    line = eqn.line

    def evaluate(thread: Thread, ref: Ref, value: Any, *rest: Any) -> Any:
        *indices, subcore = map(int, rest)
        for axis, (index, size) in enumerate(zip(indices, ref.shape, strict=True)):
            if not 0 <= index < size:
                outside = Outside(axis, index, index, ref.shape)
                report_edge(thread, ref, "fetch_and_add to", outside, line)
                return thread.machine.uninitialized((), ref.dtype, "padding")[()]
        (core_axis, core), (axis, me) = _subcore_of(thread)
        count = thread.cores[axis]
        if not 0 <= subcore < count:
            raise SimulationError(f"there is no subcore {subcore}: each SparseCore has {count}")
        # Reading and writing are one step; other cores may go on before and after it.
        before = thread.machine.uninitialized((), ref.dtype, "scratch")

        def add(memory: Ref) -> None:
            element = memory.data[(*indices, ...)]
            before[()] = element
            element += value
            if thread.recorded:
                record_access(thread, element, "add", ref.name, line)

        thread.machine.scheduler.pause()
        thread.machine.choices.look(thread, "change", ref.name, line)
        if subcore == me:
            add(ref)
        else:
            where = CoreAddress(thread.owner.device, {core_axis: core, axis: subcore})
            reach(thread, where, ref, line, add)
        return before[()]

    return evaluate


def _subcore_of(thread: Thread) -> list[tuple[str, int]]:
    """Return the index of a vector subcore along the axes of its mesh: SparseCore, subcore."""
    core = list(thread.core)
    if len(core) != 2:
        raise SimulationError("only vector subcores can wait for each other, or add to each other")
    return core
