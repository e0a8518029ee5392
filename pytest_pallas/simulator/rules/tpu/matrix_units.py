"""Rules: the matrix units (MXU) of a TPU, driven by hand.

A unit has staging registers, one loaded tile, and a queue of results (up to v6e) or accumulators
(tpu7x). It computes at the instructions that say so; how long that takes is not simulated.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_pallas.compat.places import transforms_of
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.arithmetic.dtypes import Array, Dtype, is_integer
from pytest_pallas.simulator.arithmetic.products import multiplier
from pytest_pallas.simulator.memory.accesses import beyond_edge
from pytest_pallas.simulator.memory.indexing import Outside
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.memory.windows import read, write
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.thread import Thread


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
        """The product of rows with the tile; one is loaded from a staging register first.

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
        """The oldest rows of results.

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
        found = np.stack([self.results.popleft() for _ in range(rows)])
        if found.dtype != dtype or found.shape[1] != columns:
            raise SimulationError(
                f"{dtype}[{rows}, {columns}] is popped from MXU {self.number}, "
                f"whose results are {found.dtype}{list(found.shape)}"
            )
        return found

    def sums_of(self, ref: Ref) -> Array:
        """The contents of an accumulator, which are zeros at first."""
        key = id(ref.data)
        if key not in self.sums:
            self.sums[key] = ref.data, np.zeros(ref.shape, ref.dtype)
        return self.sums[key][1]

    def clear(self, ref: Ref) -> None:
        """Forget an accumulator if it is all zeros."""
        if not self.sums_of(ref).any():
            del self.sums[id(ref.data)]


def matrix_unit(thread: Thread, number: int) -> MatrixUnit:
    """A matrix unit of the core."""
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
        try:
            write(
                unit.sums_of(ref),
                window,
                (ref, lhs, *operands),
                lambda old: (old + product).astype(ref.dtype, copy=False),
            )
        except Outside as outside:
            raise beyond_edge(thread, ref, "store to", outside, eqn.line) from None
        return ()

    return evaluate


@rule("matmul_pop", threaded=True)
def _matmul_pop(eqn: Equation) -> Evaluate:
    number = eqn.ins[0].memory_space.mxu_id
    window = transforms_of(eqn.params["acc_transforms_tree"], 1, len(eqn.ins) - 1)

    def evaluate(thread: Thread, ref: Ref, *operands: Any) -> Array:
        unit = matrix_unit(thread, number)
        sums = unit.sums_of(ref)
        try:
            found = np.array(read(sums, window, (ref, *operands)))
            write(sums, window, (ref, *operands), np.zeros_like)
        except Outside as outside:
            raise beyond_edge(thread, ref, "load from", outside, eqn.line) from None
        unit.clear(ref)
        return found

    return evaluate
