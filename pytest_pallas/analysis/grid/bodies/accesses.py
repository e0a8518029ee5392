"""How the body of a kernel uses the refs of its operands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.analysis.grid.bodies.windows import masked_window, window_of
from pytest_pallas.analysis.grid.model import GridCall, GridWindow
from pytest_pallas.analysis.kernel_calls import called_jaxpr

_LOADS = frozenset({"get", "masked_load"})
_STORES = frozenset({"swap", "masked_swap"})


@dataclass(frozen=True)
class Accesses:
    """What a body does with its refs.

    Attributes:
      used: positions of the refs of its jaxpr that some operation has.
      whole: positions of refs that every program reads or writes as a whole, whatever happens.
      offset: how many refs come before those of the windows.
      inputs: how many windows are inputs.
    """

    used: frozenset[int]
    whole: frozenset[int]
    offset: int = field(default=0)
    inputs: int = field(default=0)

    def reads(self, window: GridWindow) -> bool:
        """Whether the body uses the ref of a window at all."""
        return self._position(window) in self.used

    def always(self, window: GridWindow) -> bool:
        """Whether every program reads or writes the whole block."""
        return self._position(window) in self.whole

    def _position(self, window: GridWindow) -> int:
        return self.offset + window.position + (self.inputs if window.output else 0)


def accesses_of(call: GridCall) -> Accesses:
    """What the body of a call does with its refs."""
    body = call.body
    positions = {var: i for i, var in enumerate(body.invars)}
    used = {
        positions[var]
        for eqn in body.eqns
        for var in eqn.invars
        if not hasattr(var, "val") and var in positions
    }
    whole: set[int] = set()
    _whole(body, positions, whole)
    return Accesses(
        used=frozenset(used),
        whole=frozenset(whole),
        offset=len(call.facts.scalars),
        inputs=len(call.facts.inputs),
    )


def _whole(jaxpr: Any, positions: dict[Any, int], whole: set[int]) -> None:
    """Accesses of whole refs that no branch or loop guards; what is only called is entered."""
    for eqn in jaxpr.eqns:
        called = called_jaxpr(eqn)
        if called is not None:
            inner = {
                var: positions[operand]
                for var, operand in zip(called[0].invars, eqn.invars, strict=True)
                if not hasattr(operand, "val") and operand in positions
            }
            _whole(called[0], inner, whole)
        elif eqn.primitive.name in _LOADS | _STORES and eqn.invars[0] in positions and _covers(eqn):
            whole.add(positions[eqn.invars[0]])


def _covers(eqn: Any) -> bool:
    """Whether an access is to the whole ref, and not masked."""
    shape = eqn.invars[0].aval.shape
    if "masked" in eqn.primitive.name:
        window, _, masked = masked_window(eqn, eqn.invars)
        if masked:
            return False
    else:
        window = window_of(eqn, eqn.invars[2 if eqn.primitive.name == "swap" else 1 :])
    if window is None:
        return False
    return all(
        isinstance(getattr(index, "start", None), int)
        and index.start == 0
        and index.size == size
        and index.stride == 1
        for index, size in zip(window, shape, strict=False)
    )
