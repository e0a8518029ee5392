"""Comparisons, and what is done only where they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_sim.traces import (
    BlockFacts,
    GridFacts,
    Spot,
    grid_facts,
    home_of,
    is_literal,
    is_of_jax,
)
from pytest_pallas.mutate.model import (
    Change,
    EquationSite,
    KernelSite,
    Replacement,
    call_operator,
    equations_of,
    guarded,
    indexed,
    operator,
    with_index_map,
)
from pytest_pallas.mutate.programs import canonical

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


# The call of a kernel: its grid, its index maps, its aliases.


@call_operator(
    "step",
    mistake="the first or the last step of a grid is left out",
    before="grid=(n,)",
    after="grid=(n - 1,)",
)
def step(kernel: KernelSite) -> Iterator[Change]:
    """The first or the last program along an axis of the grid does nothing."""
    for axis, size in _axes(kernel):
        for which, words in ((0, "first"), (-1, "last")):
            if size is None or size > 1:
                yield Change(
                    f"the {words} dropped",
                    lambda axis=axis, which=which: _without(kernel, axis, which),
                    part=f"grid axis {axis}",
                )


@call_operator(
    "overhang",
    mistake="the partial block at an edge is left out",
    before="grid=(pl.cdiv(n, block),)",
    after="grid=(n // block,)",
)
def overhang(kernel: KernelSite) -> Iterator[Change]:
    """A grid that leaves out the block that hangs over an edge, as ``n // block`` does."""
    if kernel.eqn.primitive.name != "pallas_call":
        return
    facts = grid_facts(kernel.eqn)
    for axis, _ in _axes(kernel):
        if any(_overhangs(block, facts, axis) for block in (*facts.inputs, *facts.outputs)):
            yield Change(
                "the partial block dropped",
                lambda axis=axis: _without(kernel, axis, -1),
                part=f"grid axis {axis}",
            )


@call_operator(
    "index_map",
    mistake="components of an index map swapped, one further, or constant",
    before="lambda i, j: (i, j)",
    after="lambda i, j: (j, i)",
)
def index_map(kernel: KernelSite) -> Iterator[Change]:
    """Components of an index map swapped, one further, or constant."""
    if kernel.eqn.primitive.name != "pallas_call":
        return
    facts = grid_facts(kernel.eqn)
    for position, block in enumerate((*facts.inputs, *facts.outputs)):
        counts = _counts(block)
        outs = list(getattr(block.index_map, "jaxpr", block.index_map).outvars)
        if len(outs) != len(counts):
            continue
        yield from _map_changes(kernel, position, counts, outs, block.name)


@call_operator(
    "alias",
    mistake="an output that does not share an input's memory, or shares it by mistake",
    before="input_output_aliases={0: 0}",
    after="",
)
def alias(kernel: KernelSite) -> Iterator[Change]:
    """Memory of an input that an output does not share, or shares by mistake."""
    if kernel.eqn.primitive.name != "pallas_call":
        return
    pairs = tuple(kernel.eqn.params["input_output_aliases"])
    for pair in pairs:
        rest = tuple(each for each in pairs if each is not pair)
        yield Change(
            "removed",
            lambda rest=rest: _with_aliases(kernel, rest),
            part=f"input {int(pair[0])} output {int(pair[1])}",
        )
    facts = grid_facts(kernel.eqn)
    scalars = len(facts.scalars)
    taken = {int(each[0]) for each in pairs}, {int(each[1]) for each in pairs}
    for source, block in enumerate(facts.inputs):
        for target, out in enumerate(facts.outputs):
            if source + scalars in taken[0] or target in taken[1]:
                continue
            if (block.shape, block.dtype, block.dims) != (out.shape, out.dtype, out.dims):
                continue
            if _read_first(block, out, facts.grid):
                continue
            yield Change(
                "added",
                lambda s=source + scalars, t=target: _with_aliases(kernel, (*pairs, (s, t))),
                part=f"input {source + scalars} output {target}",
            )


def _read_first(block: BlockFacts, out: BlockFacts, grid: Sequence[int | None]) -> bool:
    """Whether each program reads a block of an input just before it writes that of the output.

    Then both may share memory, and nothing changes.
    """
    whole = block.space in ("any", "hbm") or out.space in ("any", "hbm")
    single = {axis: 0 for axis, size in enumerate(grid) if size == 1}
    return not whole and canonical(block.index_map, single) == canonical(out.index_map, single)


def _axes(kernel: KernelSite) -> Iterator[tuple[int, int | None]]:
    """The axes that the body counts, and their sizes."""
    if kernel.eqn.primitive.name != "pallas_call":
        return
    facts = grid_facts(kernel.eqn)
    own = [size for axis, size in enumerate(facts.grid) if axis not in facts.vmapped]
    yield from enumerate(own)


def _without(kernel: KernelSite, axis: int, which: int) -> Any:
    def runs() -> Any:
        return pl.program_id(axis) != (0 if which == 0 else pl.num_programs(axis) - 1)

    return guarded(kernel.eqn, runs, kernel.axes)


def _overhangs(block: BlockFacts, facts: GridFacts, axis: int) -> bool:
    """Whether the last block along a grid axis is a partial one, where that is easy to say."""
    grid = [a for a in range(len(facts.grid)) if a not in facts.vmapped]
    inner = getattr(block.index_map, "jaxpr", block.index_map)
    variable = inner.invars[grid[axis]]
    return any(
        out is variable and kind == "Blocked" and size and length % size
        for out, (kind, size, _), length in zip(
            inner.outvars, block.dims, block.shape, strict=False
        )
    )


def _counts(block: BlockFacts) -> list[int]:
    """How many blocks there are along each axis; 0 where it does not count in blocks."""
    return [
        -(-length // max(size, 1)) if kind in ("Blocked", "Squeezed") else 0
        for (kind, size, _), length in zip(block.dims, block.shape, strict=True)
    ]


def _map_changes(
    kernel: KernelSite, position: int, counts: list[int], outs: list[Any], name: str
) -> Iterator[Change]:
    part = f"index map of {name}"
    home = _line_of(kernel, position)
    for axis, count in enumerate(counts):
        if count < 2:
            continue

        def further(*old: Any, axis: int = axis, count: int = count) -> list[Any]:
            new = list(old)
            new[axis] = ((old[axis] + 1) % count).astype(old[axis].dtype)
            return new

        def constant(*old: Any, axis: int = axis) -> list[Any]:
            new = list(old)
            new[axis] = jnp.zeros_like(old[axis])
            return new

        yield _mapped(kernel, position, "one further", f"{part}, axis {axis}", further, home)
        if not is_literal(outs[axis]):
            yield _mapped(kernel, position, "constant", f"{part}, axis {axis}", constant, home)
    for axis in range(len(counts) - 1):
        if counts[axis] == counts[axis + 1] < 2 or 0 in counts[axis : axis + 2]:
            continue
        if outs[axis].aval.dtype != outs[axis + 1].aval.dtype:
            continue

        def swapped(*old: Any, axis: int = axis) -> list[Any]:
            new = list(old)
            # Kept within the array: beyond it, every interpreter would say so at once.
            new[axis] = jnp.minimum(old[axis + 1], counts[axis] - 1).astype(old[axis].dtype)
            new[axis + 1] = jnp.minimum(old[axis], counts[axis + 1] - 1).astype(old[axis].dtype)
            return new

        axes = f"{part}, axes {axis}, {axis + 1}"
        yield _mapped(kernel, position, "swapped", axes, swapped, home)


def _line_of(kernel: KernelSite, position: int) -> Spot | None:
    """Where an index map is written, if the kernel has one."""
    block = kernel.eqn.params["grid_mapping"].block_mappings[position]
    name, file, line = home_of(block.index_map_jaxpr)
    if not line or is_of_jax(block.index_map_jaxpr):
        return None
    return Spot(file, line, 0, line, 0, name)


def _mapped(
    kernel: KernelSite, position: int, words: str, part: str, function: Any, home: Spot | None
) -> Change:
    return Change(
        words,
        lambda: with_index_map(kernel.eqn, position, function),
        part=part,
        place=home,
    )


def _with_aliases(kernel: KernelSite, pairs: tuple[Any, ...]) -> Any:
    return kernel.eqn.replace(params={**kernel.eqn.params, "input_output_aliases": pairs})


# Masks: left out, or the wrong way round.


_LOGIC = {"and": "or", "or": "and"}
_CHOSEN = {"and": lax.bitwise_and, "or": lax.bitwise_or}


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
        yield Change(f"{at.name} -> {name}", lambda: at.traced(_CHOSEN[name], *at.eqn.invars))
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
