"""Whether the devices of a call are alike: what one has seen decides alone what it does next.

All devices of a ``shard_map`` run one program. If no branch and no loop of it depends on which
device it is or on the contents of memory, then two devices that have seen the same at semaphores
are at the same place of it, whatever their numbers, neighbors and data: what the explorer learns
of one of them holds for the other. That is the symmetry of a ring under rotation and of a full
mesh under permutation, seen from one device (Clarke, Emerson, Jha and Sistla, "Symmetry reductions
in model checking", CAV 1998; Ip and Dill, "Better verification through symmetry", FMSD 9, 1996,
whose scalarsets are values that may be passed on and not decide anything). It needs no permutation
that maps one run to another.

Whole orders are not merged. An order and its image under a rotation compute the same from inputs
that are rotated, and the inputs of a call are not: sums that devices take in another order round
otherwise.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from pallas_sim.compat.grids import grid_facts
from pallas_sim.compat.jaxprs import (
    called_by,
    equations,
    is_literal,
    is_reference,
    open_jaxpr,
    scan_parts,
    sub_jaxprs,
)
from pallas_sim.exploration.polling import looks

#: Primitives without operands whose results are the same on all devices.
_CONSTANT = frozenset({"program_id", "num_programs", "iota", "get_barrier_semaphore"})

#: Primitives that run a jaxpr with operands of its own: memory, or parts of arrays.
_BODIES = frozenset({"pallas_call", "run_scoped", "shard_map"})

_KNOWN: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def are_alike(jaxpr: Any) -> bool:
    """Return whether devices that have seen the same at semaphores do the same next.

    Args:
      jaxpr: of the call, open or closed; the answer is kept as long as it is.
    """
    known = _KNOWN.get(jaxpr)
    if known is None:
        inner = open_jaxpr(jaxpr)[0]
        try:
            _differing(inner, [True] * len(inner.invars))
            known = any(eqn.primitive.name == "shard_map" for eqn in equations(inner))
        except _UnlikeError:
            known = False
        _KNOWN[jaxpr] = known
    return known


class _UnlikeError(Exception):
    """Ends the analysis: which device it is, or data, decides what happens next."""


def _differing(jaxpr: Any, inputs: Sequence[bool], *, captured: bool = False) -> list[bool]:
    """Return which results of a jaxpr may differ between devices that have seen the same.

    Args:
      jaxpr: open.
      inputs: which of its inputs may.
      captured: whether what it has captured may; as a rule these are constants.

    Raises:
      _UnlikeError: such a value decides what happens next.
    """
    differs: dict[Any, bool] = dict(zip(jaxpr.invars, inputs, strict=True))
    differs.update(dict.fromkeys(jaxpr.constvars, captured))
    for eqn in jaxpr.eqns:
        operands = [not is_literal(atom) and differs.get(atom, False) for atom in eqn.invars]
        results = _results(eqn, operands)
        differs.update(zip(eqn.outvars, results, strict=True))
    return [not is_literal(atom) and differs.get(atom, False) for atom in jaxpr.outvars]


def _results(eqn: Any, operands: list[bool]) -> Sequence[bool]:
    """Return which results of an equation may differ, of those operands that may."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        _require_alike(operands[:1])
        branches = [_differing(open_jaxpr(b)[0], operands[1:]) for b in params["branches"]]
        return [any(column) for column in zip(*branches, strict=True)]
    if name == "while":
        return _of_while(eqn, operands)
    if name == "scan":
        constants, carried, _ = scan_parts(params, len(operands))
        return _of_loop(open_jaxpr(params["jaxpr"])[0], operands, constants, carried)
    called = called_by(eqn)
    if called is not None:
        return _differing(called[0], operands)
    if name == "pallas_call":
        facts = grid_facts(eqn)
        _require_alike(operands[at] for at in facts.sizes)
        for block in (*facts.inputs, *facts.outputs):
            index_map = open_jaxpr(block.index_map)[0]
            scalars = [is_reference(var.aval) for var in index_map.invars]
            _require_alike(_differing(index_map, scalars))
    if name in _BODIES:
        body = open_jaxpr(params["jaxpr"])[0]
        _differing(body, [True] * len(body.invars), captured=True)
    elif any(map(_synchronizes, sub_jaxprs(eqn))):
        raise _UnlikeError
    return [_may_differ(eqn, operands)] * len(eqn.outvars)


def _may_differ(eqn: Any, operands: Sequence[bool]) -> bool:
    """Return whether the results of an equation other than control may differ."""
    if eqn.primitive.name == "semaphore_read":
        return False  # it is what the device has seen
    if not eqn.invars:
        return eqn.primitive.name not in _CONSTANT
    stateful = bool(eqn.effects) or "callback" in eqn.primitive.name
    return stateful or any(operands) or any(is_reference(var.aval) for var in eqn.invars)


def _of_while(eqn: Any, operands: list[bool]) -> list[bool]:
    """Return which results of a loop may differ; none of one that looks at semaphores may."""
    params = eqn.params
    condition, body = (open_jaxpr(params[part])[0] for part in ("cond_jaxpr", "body_jaxpr"))
    first, second = params["cond_nconsts"], params["body_nconsts"]
    carried = _of_loop(body, operands[first:], second, len(operands) - first - second)
    _require_alike(_differing(condition, [*operands[:first], *carried]))
    if looks(eqn):
        _require_alike(carried)  # a round that leaves the state as it was is none: see the explorer
    return carried


def _of_loop(body: Any, operands: list[bool], constants: int, carried: int) -> list[bool]:
    """Return which results of a loop may differ, after any number of rounds.

    Args:
      body: its jaxpr; operands are constants, what is carried, and what is scanned over.
      operands: which of them may differ.
      constants: how many of them are constant.
      carried: how many of them are carried.
    """
    operands = list(operands)
    while True:
        results = _differing(body, operands)
        carry = operands[constants : constants + carried]
        after = [one or other for one, other in zip(carry, results[:carried], strict=True)]
        if after == carry:
            return [*carry, *results[carried:]]
        operands[constants : constants + carried] = after


def _require_alike(values: Iterable[bool]) -> None:
    """Reject values that decide what happens next and may differ."""
    if any(values):
        raise _UnlikeError


def _synchronizes(jaxpr: Any) -> bool:
    """Return whether a jaxpr does more than compute."""
    return bool(jaxpr.effects) or any(
        eqn.effects or any(is_reference(var.aval) for var in eqn.invars) for eqn in equations(jaxpr)
    )
