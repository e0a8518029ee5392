"""Comparisons, and what is done only where they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import lax

from pallas_sim.compat.grids import grid_facts
from pallas_sim.compat.jaxprs import is_literal
from pytest_pallas.mutation.declaring import operator
from pytest_pallas.mutation.model import Change, EquationSite, Replacement
from pytest_pallas.mutation.operands import indexed

_BOUNDARY = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}
_FLIPPED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_FUNCTIONS = {
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "eq": lax.eq,
    "ne": lax.ne,
}


@operator(
    "comparison",
    mistake="a comparison off by one, or the wrong way round",
    before="columns < n",
    after="columns <= n",
)
def comparison(at: EquationSite) -> Iterator[Change]:
    """``<`` for ``<=``, or the opposite."""
    if at.name not in _FUNCTIONS or not at.used() or _guards(at):
        return
    integers = all(jnp.issubdtype(atom.aval.dtype, jnp.integer) for atom in at.eqn.invars)
    # Two floats are hardly ever equal, so that only the opposite changes anything.
    names = [_FLIPPED[at.name]]
    if integers and at.name in _BOUNDARY:
        names.insert(0, _BOUNDARY[at.name])
    for name in names:
        yield Change(f"{at.name} -> {name}", lambda name=name: _compared(at, name))


@operator(
    "guard",
    mistake="a guarded region always, never, or for the neighbouring index",
    before="@pl.when(k == 0)",
    after="@pl.when(k == 1)",
)
def guard(at: EquationSite) -> Iterator[Change]:
    """``pl.when``: always, never, or where the neighbouring index is meant."""
    if at.name == "cond" and _is_guard(at.eqn):
        never, always = at.eqn.params["branches"]
        if not _overwritten_at_the_end(at):
            yield Change("always", lambda: at.replaced(params=_both(at.eqn, always)))
        yield Change("never", lambda: at.replaced(params=_both(at.eqn, never)))
    elif at.name in _FUNCTIONS and _guards(at):
        if not all(jnp.issubdtype(atom.aval.dtype, jnp.integer) for atom in at.eqn.invars):
            return
        if at.name in _BOUNDARY:
            name = _BOUNDARY[at.name]
            yield Change(f"{at.name} -> {name}", lambda: _compared(at, name))
        else:
            yield Change("of the next index", lambda: _moved(at, 1))
            yield Change("of the index before", lambda: _moved(at, -1))


def _overwritten_at_the_end(at: EquationSite) -> bool:
    """Whether what is guarded is done in the last step over a block, which writes all of it.

    Done in earlier steps, too, it would be written there and written again: the same answer. That
    is so if the guard is ``program_id(a) == n - 1`` of the innermost axis ``a``, and if it only
    writes whole outputs that it does not read, whose blocks do not depend on ``a``.
    """
    if at.kernel.eqn.primitive.name != "pallas_call":
        return False
    facts = grid_facts(at.kernel.eqn)
    axes = [axis for axis in range(len(facts.grid)) if axis not in facts.vmapped]
    if not axes or not _is_last(at, len(axes) - 1, facts.grid[axes[-1]]):
        return False
    body = at.kernel.eqn.params["jaxpr"]
    first = len(facts.scalars) + len(facts.inputs)
    outputs = {
        id(var): block for var, block in zip(body.invars[first:], facts.outputs, strict=False)
    }
    branch = at.eqn.params["branches"][1]
    inner = getattr(branch, "jaxpr", branch)
    for eqn in inner.eqns:
        if eqn.primitive.name == "get" or not eqn.effects:
            continue
        block = outputs.get(at.kernel.root(eqn.invars[0])) if eqn.primitive.name == "swap" else None
        if block is None or at.kernel.root(eqn.invars[0]) in at.kernel.read:
            return False
        index_map = getattr(block.index_map, "jaxpr", block.index_map)
        variable = index_map.invars[axes[-1]]
        if any(atom is variable for each in index_map.eqns for atom in each.invars):
            return False
        if any(out is variable for out in index_map.outvars) or not _is_whole(eqn):
            return False
    return True


def _is_last(at: EquationSite, axis: int, size: int | None) -> bool:
    """Whether a guard says that it is the last step along an axis."""
    decided = at.scope.maker(at.eqn.invars[0])
    if decided is not None and decided.primitive.name == "convert_element_type":
        decided = at.scope.maker(decided.invars[0])
    if decided is None or decided.primitive.name != "eq" or size is None:
        return False
    left, right = decided.invars
    step = at.scope.maker(left)
    return (
        step is not None
        and step.primitive.name == "program_id"
        and step.params["axis"] == axis
        and is_literal(right)
        and int(right.val) == size - 1
    )


def _is_whole(eqn: Any) -> bool:
    """Whether a store is of everything that the ref holds."""
    found = indexed(eqn)
    if found is None:
        return len(eqn.invars) == 2  # without an index
    return all(
        hasattr(index, "start") and index.start == 0 and index.size == size
        for index, size in found[2]
    )


def _compared(at: EquationSite, name: str) -> Replacement:
    return at.traced(lambda x, y: _FUNCTIONS[name](x, y), *at.eqn.invars)


def _moved(at: EquationSite, by: int) -> Replacement:
    return at.traced(
        lambda x, y: _FUNCTIONS[at.name](x, y + jnp.asarray(by, y.dtype)), *at.eqn.invars
    )


def _both(eqn: Any, branch: Any) -> dict[str, Any]:
    return {**eqn.params, "branches": (branch, branch)}


def _is_guard(eqn: Any) -> bool:
    """Whether it is a ``pl.when``: two branches, no results, and one of them does nothing."""
    branches = eqn.params["branches"]
    if len(branches) != 2 or eqn.outvars:
        return False
    return not _equations(branches[0]) and bool(_equations(branches[1]))


def _equations(branch: Any) -> Any:
    return getattr(branch, "jaxpr", branch).eqns


def _guards(at: EquationSite) -> bool:
    """Whether a comparison decides about a ``pl.when`` only, directly."""
    users = list(at.scope.users(at.eqn.outvars[0]))
    if not users or at.scope.is_result(at.eqn.outvars[0]) or at.eqn.outvars[0].aval.shape:
        return False
    return all(_decides(at, user) for user in users)


def _decides(at: EquationSite, user: Any) -> bool:
    if user.primitive.name == "convert_element_type":
        after = at.scope.users(user.outvars[0])
        return bool(after) and all(each.primitive.name == "cond" for each in after)
    return user.primitive.name == "cond" and not is_literal(user.invars[0])
