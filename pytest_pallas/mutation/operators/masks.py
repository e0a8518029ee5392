"""Masks: left out, or the wrong way round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from pallas_sim.compat.jaxprs import is_literal
from pytest_pallas.mutation.declaring import operator
from pytest_pallas.mutation.model import Change, EquationSite, Replacement
from pytest_pallas.mutation.rewriting import equations_of

_LOGIC = {"and": "or", "or": "and"}
_FUNCTIONS = {"and": lax.bitwise_and, "or": lax.bitwise_or}


@operator(
    "mask",
    mistake="a mask left out or inverted, or one condition enough where both must hold",
    before="jnp.where(columns < n, x, 0)",
    after="x",
)
def mask(at: EquationSite) -> Iterator[Change]:
    """``jnp.where`` without its condition, or with the opposite; ``&`` for ``|``."""
    if at.name == "select_n" and len(at.eqn.invars) == 3 and at.used():
        yield from _selected(at)
    elif at.name in _LOGIC and at.eqn.outvars[0].aval.dtype == jnp.bool_ and at.used():
        name = _LOGIC[at.name]
        yield Change(f"{at.name} -> {name}", lambda: at.traced(_FUNCTIONS[name], *at.eqn.invars))
    elif at.name in ("masked_load", "masked_swap", "load", "swap", "scatter", "gather"):
        found = _mask_of(at.eqn)
        if found is not None:
            where, atom = found
            yield Change("dropped", lambda: _with_mask(at, where, jnp.ones_like), part="mask")
            if not is_literal(atom):
                yield Change(
                    "inverted", lambda: _with_mask(at, where, jnp.logical_not), part="mask"
                )


def _selected(at: EquationSite) -> Iterator[Change]:
    condition, if_false, if_true = at.eqn.invars
    if condition.aval.dtype != jnp.bool_:
        return
    if if_true.aval.shape != if_false.aval.shape:
        return
    if at.scope.is_constant(if_true) and not at.scope.is_constant(if_false):
        yield Change("dropped", lambda: Replacement([], [if_false]))
    elif at.scope.is_constant(if_false) and not at.scope.is_constant(if_true):
        yield Change("dropped", lambda: Replacement([], [if_true]))
    else:
        yield Change("always the first", lambda: Replacement([], [if_true]))
        yield Change("always the second", lambda: Replacement([], [if_false]))
    yield Change("inverted", lambda: at.replaced(invars=[condition, if_true, if_false]))


def _mask_of(eqn: Any) -> tuple[int, Any] | None:
    """The operand that is a mask: the only one of bools besides what is stored."""
    positions = [
        position
        for position, atom in enumerate(eqn.invars)
        if position and getattr(atom.aval, "dtype", None) == jnp.bool_
    ]
    if eqn.primitive.name in ("load", "swap") and not eqn.params.get("has_mask"):
        return None
    return (positions[-1], eqn.invars[positions[-1]]) if len(positions) == 1 else None


def _with_mask(at: EquationSite, position: int, function: Any) -> Replacement:
    operands = list(at.eqn.invars)
    eqns, outs = equations_of(lambda m: (function(m),), [operands[position]], at.eqn)
    operands[position] = outs[0]
    new = at.eqn.replace(invars=operands)
    return Replacement([*eqns, new], list(new.outvars))
