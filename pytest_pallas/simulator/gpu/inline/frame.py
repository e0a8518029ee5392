"""What runs inlined code, and how an operation is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_pallas.sim_errors import MissingRuleError, SimulationError
from pytest_pallas.simulator.gpu.inline.code import InlineOperation, InlineRegion
from pytest_pallas.simulator.gpu.inline.memory import AddressSpace

Array = np.ndarray[Any, Any]


@dataclass
class InlineFrame:
    """The threads that run the code, and what they have computed.

    Attributes:
      threads: how many.
      first: the number of the first one in its block.
      geometry: for ``"thread_id"``, ``"block_id"``, ``"block_dim"``, ``"grid_dim"``,
        ``"cluster_block_id"`` and ``"cluster_dim"``, three numbers; of ``"thread_id"`` those of the
        first thread.
      space: the memory that it reaches.
      fence: called at a fence, with whether it orders copies by TMA and products.
      values: by number.
      active: the threads that are in this branch, or None for all.
      rounds: of loops.
    """

    threads: int
    first: int
    geometry: dict[str, tuple[int, int, int]]
    space: AddressSpace
    fence: Callable[[bool], None]
    values: dict[int, Any] = field(default_factory=dict[int, Any])
    active: Array | None = None
    rounds: int = 0

    def evaluate(self, region: InlineRegion, arguments: Any = ()) -> list[Any]:
        """Run the operations of a region, and give what its last one passes on."""
        self.values.update(zip(region.arguments, arguments, strict=True))
        for op in region.operations:
            operands = [self.values[number] for number in op.operands]
            if op.name in _ENDS:
                return operands
            results = find(op.name)(self, op, *operands)
            if len(op.results) == 1:
                self.values[op.results[0]] = results
            else:
                for number, value in zip(op.results, results or (), strict=True):
                    self.values[number] = value
        return []

    def step(self) -> None:
        """Count a round of a loop that may have no end.

        Raises:
          SimulationError: there are too many of them.
        """
        self.rounds += 1
        if self.rounds > _ROUNDS:
            raise SimulationError(f"a loop of inline_mgpu does not end in {_ROUNDS} rounds")

    def all(self, value: Array) -> Array:
        """A value with one row for each thread."""
        return np.broadcast_to(value, (self.threads, *value.shape[1:]))


#: Nothing that another thread does can end a loop of inlined code: it runs as one.
_ROUNDS = 100_000

#: Operations that end a region.
_ENDS = frozenset({"func.return", "scf.yield", "scf.condition"})

Evaluate = Callable[..., Any]
_OPERATIONS: dict[str, Evaluate] = {}


def operation(*names: str) -> Callable[[Evaluate], Evaluate]:
    """Register how operations of these names are evaluated."""

    def register(evaluate: Evaluate) -> Evaluate:
        for name in names:
            _OPERATIONS[name] = evaluate
        return evaluate

    return register


def find(name: str) -> Evaluate:
    """How an operation is evaluated.

    Raises:
      MissingRuleError: there is no function for it.
    """
    found = _OPERATIONS.get(name)
    if found is None:
        raise MissingRuleError(f"the simulator does not know {name}, which inline_mgpu inlines")
    return found


def check(region: InlineRegion) -> None:
    """Look all operations up, so that what is missing is reported before anything runs.

    Raises:
      MissingRuleError: there is no rule for one of them.
    """
    for op in region.operations:
        if op.name not in _ENDS:
            find(op.name)
        for inner in op.regions:
            check(inner)


def signed(value: Array) -> Array:
    """Integers as numbers with a sign."""
    name = value.dtype.name
    if value.dtype == np.bool_:
        return -value.astype(np.int8)
    if name in ("uint4", "uint2"):
        bits = int(name[-1])
        raw = value.astype(np.int8)
        return np.where(raw >= 1 << (bits - 1), raw - (1 << bits), raw).astype(np.int8)
    return value.view(np.dtype(f"int{8 * value.dtype.itemsize}"))


def as_type(value: Array, op: InlineOperation) -> Array:
    """A value in the dtype of the result of an operation; integers wrap around."""
    dtype = op.types[0].dtype
    if value.dtype == dtype:
        return value
    if dtype.name in ("uint4", "uint2"):
        return (value.astype(np.int64) & ((1 << int(dtype.name[-1])) - 1)).astype(dtype)
    if dtype == np.bool_ and value.dtype.kind in "iu":
        return (value & 1).astype(np.bool_)
    return value.astype(dtype)
