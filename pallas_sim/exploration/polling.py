"""Whether the loops of a call that look at semaphores wait for more: ``wait_for_more``.

A round of such a loop that sees too little does nothing, and neither does one that sees less. So
one look in vain stands for all looks at smaller counts. That is so if a round does nothing but
look, and the condition of the loop falls with the count: whether a value rises or falls is followed
from the look to the condition.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import (
    called_by,
    equations,
    equations_inside,
    is_literal,
    is_reference,
    open_jaxpr,
)

#: How a value changes with the count that a round has seen: 1 if it never falls, -1 if it never
#: rises, 0 if it stays; None if that is not known.
type Trend = int | None

#: The signs with which the operands of a primitive add to the trend of its result.
_SIGNS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("add", "max", "min"), (1, 1)),
    **dict.fromkeys(("sub", "gt", "ge"), (1, -1)),
    **dict.fromkeys(("lt", "le"), (-1, 1)),
    **dict.fromkeys(("neg", "not"), (-1,)),
    **dict.fromkeys(("broadcast_in_dim", "reshape", "squeeze"), (1,)),
}

_LOOK = "semaphore_read"

_KNOWN: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def wait_for_more(jaxpr: Any) -> bool:
    """Return whether a round of a loop that sees less than one that does nothing does nothing, too.

    Args:
      jaxpr: of the call, open or closed; the answer is kept as long as it is.
    """
    known = _KNOWN.get(jaxpr)
    if known is None:
        loops = [eqn for eqn in equations(jaxpr) if eqn.primitive.name == "while"]
        known = _KNOWN[jaxpr] = all(_waits_for_more(loop) for loop in loops if looks(loop))
    return known


def looks(eqn: Any) -> bool:
    """Return whether an equation looks at semaphores, or those inside of it do."""
    return any(one.primitive.name == _LOOK for one in (eqn, *equations_inside(eqn)))


def _waits_for_more(loop: Any) -> bool:
    """Return whether a round does nothing but look, and there is another one if it sees little."""
    params = loop.params
    condition, body = (open_jaxpr(params[part])[0] for part in ("cond_jaxpr", "body_jaxpr"))
    inside = list(equations(condition, body))
    if sum(eqn.primitive.name == _LOOK for eqn in inside) != 1:
        return False
    if any(eqn.primitive.name != _LOOK and _acts(eqn) for eqn in inside):
        return False
    # A round must not use the one before, but for what no round changes.
    carried = body.invars[params["body_nconsts"] :]
    used = {var for eqn in body.eqns for var in eqn.invars if not is_literal(var)}
    for var, result in zip(carried, body.outvars, strict=True):
        elsewhere = any(var is other for other in body.outvars if other is not result)
        if var in used or elsewhere:
            return False
    after = _trends(body, [0] * len(body.invars))
    (going,) = _trends(condition, [*[0] * params["cond_nconsts"], *after])
    return going in (0, -1)


def _acts(eqn: Any) -> bool:
    """Return whether an equation does more than compute."""
    return bool(eqn.effects) or any(is_reference(var.aval) for var in eqn.invars)


def _trends(jaxpr: Any, inputs: Sequence[Trend]) -> list[Trend]:
    """Return how the results of a jaxpr change with what is looked at."""
    trends: dict[Any, Trend] = dict(zip(jaxpr.invars, inputs, strict=True))
    for eqn in jaxpr.eqns:
        operands = [0 if is_literal(atom) else trends.get(atom, 0) for atom in eqn.invars]
        trends.update(zip(eqn.outvars, _results(eqn, operands), strict=True))
    return [0 if is_literal(atom) else trends.get(atom, 0) for atom in jaxpr.outvars]


def _results(eqn: Any, operands: Sequence[Trend]) -> Sequence[Trend]:
    name = eqn.primitive.name
    if name == _LOOK:
        return [1]
    called = called_by(eqn)
    if called is not None:
        return _trends(called[0], operands)
    signs = _SIGNS.get(name)
    if name == "convert_element_type" and _keeps_order(eqn):
        signs = (1,)
    if name in ("and", "or") and eqn.outvars[0].aval.dtype == bool:  # bits of numbers do not rise
        signs = (1, 1)
    if not any(operands):
        known: Trend = None if None in operands else 0
    elif signs is None or None in operands:
        known = None
    else:
        parts = {sign * trend for sign, trend in zip(signs, operands, strict=True) if trend}
        known = parts.pop() if len(parts) == 1 else None
    return [known] * len(eqn.outvars)


def _keeps_order(eqn: Any) -> bool:
    """Return whether a conversion of counts, or of what is computed of them, keeps their order."""
    before, after = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    return after == before or np.dtype(after).name in ("int32", "int64", "float32")
