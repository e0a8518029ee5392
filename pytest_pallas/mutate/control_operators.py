"""Mutation operators for control: comparisons, guards, grids, index maps, aliases and masks.

Each operator below is one kind of mistake, with an example of it. Those for values, memory, copies
and signals are in ``data_operators``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import eval_jaxpr
from jax.experimental import pallas as pl
from jax.extend import linear_util
from jax.interpreters import partial_eval

from pallas_sim.traces import BlockFacts, Spot, home_of, in_body, is_literal, is_of_jax, open_jaxpr
from pytest_pallas.backends.rewriting import (
    closed_with,
    equations_of,
    variable,
    with_equations,
)
from pytest_pallas.mutate.model import (
    Change,
    EnclosingJaxpr,
    EquationSite,
    KernelSite,
    Replacement,
    call_operator,
    indices_of,
    operator,
)
from pytest_pallas.mutate.programs import canonical

_BOUNDARY = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}
_FLIPPED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_FUNCTIONS = {name: getattr(lax, name) for name in _FLIPPED}


@operator(before="columns < n", after="columns <= n")
def comparison(at: EquationSite) -> Iterator[Change]:
    """A comparison off by one, or the wrong way round."""
    if at.name not in _FUNCTIONS or not at.used() or _guards(at):
        return
    integers = all(jnp.issubdtype(atom.aval.dtype, jnp.integer) for atom in at.eqn.invars)
    # Two floats are hardly ever equal, so that only the opposite changes anything.
    names = [_FLIPPED[at.name]]
    if integers and at.name in _BOUNDARY:
        names.insert(0, _BOUNDARY[at.name])
    for name in names:
        yield Change(f"{at.name} -> {name}", partial(_compared, at, name))


@operator(before="@pl.when(k == 0)", after="@pl.when(k == 1)")
def guard(at: EquationSite) -> Iterator[Change]:
    """A guarded region always, never, or for the neighbouring index."""
    if at.name == "cond" and _is_guard(at.eqn):
        never, always = at.eqn.params["branches"]
        if not _overwritten_at_the_end(at):
            yield Change("always", lambda: _both(at, always))
        yield Change("never", lambda: _both(at, never))
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
    """Whether a guarded region writes whole blocks, in the last step over each block.

    Without the guard, earlier steps write the same blocks, and the last one overwrites them: the
    mutant is equivalent. The guard must be ``program_id(a) == n - 1`` of the innermost axis ``a``,
    and the region must only write whole outputs that the kernel does not read, whose blocks do not
    depend on ``a``.
    """
    facts, axes = at.kernel.facts, at.kernel.axes_counted
    if facts is None or not axes or not _is_last(at, len(axes) - 1, facts.grid[axes[-1]]):
        return False
    body = at.kernel.eqn.params["jaxpr"]
    first = len(facts.scalars) + len(facts.inputs)
    outputs = {
        id(var): block for var, block in zip(body.invars[first:], facts.outputs, strict=False)
    }
    for eqn in open_jaxpr(at.eqn.params["branches"][1])[0].eqns:
        if eqn.primitive.name == "get" or not eqn.effects:
            continue
        block = outputs.get(at.kernel.root(eqn.invars[0])) if eqn.primitive.name == "swap" else None
        if block is None or at.kernel.root(eqn.invars[0]) in at.kernel.read:
            return False
        index_map = open_jaxpr(block.index_map)[0]
        variable = index_map.invars[axes[-1]]
        if any(atom is variable for inner in index_map.eqns for atom in inner.invars):
            return False
        if any(out is variable for out in index_map.outvars) or not _is_whole(eqn):
            return False
    return True


def _is_last(at: EquationSite, axis: int, size: int | None) -> bool:
    """Whether the condition of a guard is that this is the last step along an axis."""
    condition = at.scope.maker(at.eqn.invars[0])
    if condition is not None and condition.primitive.name == "convert_element_type":
        condition = at.scope.maker(condition.invars[0])
    if condition is None or condition.primitive.name != "eq" or size is None:
        return False
    left, right = condition.invars
    step = at.scope.maker(left)
    return (
        step is not None
        and step.primitive.name == "program_id"
        and step.params["axis"] == axis
        and is_literal(right)
        and int(right.val) == size - 1
    )


def _is_whole(eqn: Any) -> bool:
    """Whether a store writes the whole ref."""
    indices = indices_of(eqn)
    if indices is None:
        return len(eqn.invars) == 2  # without an index
    return all(
        hasattr(index, "start") and index.start == 0 and index.size == size
        for index, size in indices
    )


def _both(at: EquationSite, branch: Any) -> Replacement:
    return at.replaced(params={**at.eqn.params, "branches": (branch, branch)})


def _compared(at: EquationSite, name: str) -> Replacement:
    return at.traced(_FUNCTIONS[name], *at.eqn.invars)


def _moved(at: EquationSite, by: int) -> Replacement:
    return at.traced(
        lambda x, y: _FUNCTIONS[at.name](x, y + jnp.asarray(by, y.dtype)), *at.eqn.invars
    )


def _is_guard(eqn: Any) -> bool:
    """Whether it is a ``pl.when``: no results, and two branches, of which one is empty."""
    branches = eqn.params["branches"]
    if len(branches) != 2 or eqn.outvars:
        return False
    never, always = (open_jaxpr(branch)[0] for branch in branches)
    return not never.eqns and bool(always.eqns)


def _guards(at: EquationSite) -> bool:
    """Whether a comparison is used as the condition of a ``pl.when`` only."""
    users = list(at.scope.users(at.eqn.outvars[0]))
    if not users or at.scope.is_result(at.eqn.outvars[0]) or at.eqn.outvars[0].aval.shape:
        return False
    return all(_decides(at, user) for user in users)


def _decides(at: EquationSite, user: Any) -> bool:
    if user.primitive.name == "convert_element_type":
        after = at.scope.users(user.outvars[0])
        return bool(after) and all(later.primitive.name == "cond" for later in after)
    return user.primitive.name == "cond" and not is_literal(user.invars[0])


# The call of a kernel: its grid, its index maps, its aliases.


@call_operator(before="grid=(n,)", after="grid=(n - 1,)")
def step(kernel: KernelSite) -> Iterator[Change]:
    """The first or the last step of a grid is left out."""
    for axis, of_grid in enumerate(kernel.axes_counted):
        size = kernel.facts.grid[of_grid] if kernel.facts is not None else 1
        if size is None or size > 1:
            for step in ("first", "last"):
                build = partial(_without, kernel, axis, step)
                yield Change(f"the {step} dropped", build, part=f"grid axis {axis}")


@call_operator(before="grid=(pl.cdiv(n, block),)", after="grid=(n // block,)")
def overhang(kernel: KernelSite) -> Iterator[Change]:
    """The partial block at an edge is left out."""
    for axis, of_grid in enumerate(kernel.axes_counted):
        if any(_overhangs(block, of_grid) for block in kernel.blocks):
            build = partial(_without, kernel, axis, "last")
            yield Change("the partial block dropped", build, part=f"grid axis {axis}")


@call_operator(before="lambda i, j: (i, j)", after="lambda i, j: (j, i)")
def index_map(kernel: KernelSite) -> Iterator[Change]:
    """Components of an index map swapped, one further, or constant."""
    for position, block in enumerate(kernel.blocks):
        counts = _counts(block)
        outs = list(open_jaxpr(block.index_map)[0].outvars)
        if len(outs) != len(counts):
            continue
        yield from _map_changes(kernel, position, counts, outs, block.name)


@call_operator(before="input_output_aliases={0: 0}", after="")
def alias(kernel: KernelSite) -> Iterator[Change]:
    """An output that does not share an input's memory, or shares it by mistake."""
    facts = kernel.facts
    if facts is None:
        return
    pairs = tuple(kernel.eqn.params["input_output_aliases"])
    for pair in pairs:
        rest = tuple(other for other in pairs if other is not pair)
        part = f"input {int(pair[0])} output {int(pair[1])}"
        yield Change("removed", partial(_with_aliases, kernel, rest), part)
    scalars = len(facts.scalars)
    sources, targets = {int(pair[0]) for pair in pairs}, {int(pair[1]) for pair in pairs}
    for source, block in enumerate(facts.inputs):
        for target, out in enumerate(facts.outputs):
            if source + scalars in sources or target in targets:
                continue
            if (block.shape, block.dtype, block.dims) != (out.shape, out.dtype, out.dims):
                continue
            if _read_first(block, out, facts.grid):
                continue
            build = partial(_with_aliases, kernel, (*pairs, (source + scalars, target)))
            yield Change("added", build, part=f"input {source + scalars} output {target}")


def _read_first(block: BlockFacts, out: BlockFacts, grid: Sequence[int | None]) -> bool:
    """Whether each program reads the block of the input that it overwrites in the output.

    Then both may share memory, and nothing changes.
    """
    whole = block.space in ("any", "hbm") or out.space in ("any", "hbm")
    single = {axis: 0 for axis, size in enumerate(grid) if size == 1}
    return not whole and canonical(block.index_map, single) == canonical(out.index_map, single)


def _without(kernel: KernelSite, axis: int, step: str) -> Any:
    """Make a ``pallas_call`` whose programs of the first or last step along an axis do nothing."""
    eqn, body = kernel.eqn, kernel.eqn.params["jaxpr"]

    def run(*refs: Any) -> list[Any]:
        @pl.when(pl.program_id(axis) != (0 if step == "first" else pl.num_programs(axis) - 1))
        def _() -> None:
            eval_jaxpr(body, (), *refs)

        return []

    wrapped = linear_util.wrap_init(run, debug_info=body.debug_info)
    with in_body(eqn, kernel.axes):
        traced = partial_eval.trace_to_jaxpr_dynamic(wrapped, [var.aval for var in body.invars])
    new = traced[0].replace(debug_info=body.debug_info)
    return eqn.replace(params={**eqn.params, "jaxpr": new})


def _with_index_map(eqn: Any, position: int, function: Callable[..., Sequence[Any]]) -> Any:
    """Make a ``pallas_call`` with another index map for a block.

    Args:
      eqn: the equation.
      position: of the block, inputs first.
      function: of the results of the old map; it returns as many results.
    """
    mapping = eqn.params["grid_mapping"]
    block = mapping.block_mappings[position]
    inner = open_jaxpr(block.index_map_jaxpr)[0]
    like = inner.eqns[-1] if inner.eqns else eqn
    eqns, results = equations_of(function, inner.outvars, like)
    new = with_equations(inner, [*inner.eqns, *eqns], results)
    changed = closed_with(block.index_map_jaxpr, new)
    blocks = list(mapping.block_mappings)
    blocks[position] = block.replace(index_map_jaxpr=changed)
    return eqn.replace(
        params={**eqn.params, "grid_mapping": mapping.replace(block_mappings=tuple(blocks))}
    )


def _overhangs(block: BlockFacts, axis: int) -> bool:
    """Whether the last block along a grid axis is partial, if the axis is an index by itself."""
    inner = open_jaxpr(block.index_map)[0]
    variable = inner.invars[axis]
    return any(
        out is variable and kind == "Blocked" and size and length % size
        for out, (kind, size, _), length in zip(
            inner.outvars, block.dims, block.shape, strict=False
        )
    )


def _counts(block: BlockFacts) -> list[int]:
    """Count the blocks along each axis; 0 where the index does not count blocks."""
    return [
        -(-length // max(size, 1)) if kind in ("Blocked", "Squeezed") else 0
        for (kind, size, _), length in zip(block.dims, block.shape, strict=True)
    ]


def _map_changes(
    kernel: KernelSite, position: int, counts: list[int], outs: list[Any], name: str
) -> Iterator[Change]:
    home = _line_of(kernel, position)

    def change(mistake: str, function: Callable[..., Sequence[Any]], axes: str) -> Change:
        build = partial(_with_index_map, kernel.eqn, position, function)
        return Change(mistake, build, part=f"index map of {name}, {axes}", place=home)

    for axis, count in enumerate(counts):
        if count < 2:
            continue
        part = f"axis {axis}"
        yield change("one further", partial(_further, axis=axis, count=count), part)
        if not is_literal(outs[axis]):
            yield change("constant", partial(_constant, axis=axis), part)
    for axis, (count, other) in enumerate(itertools.pairwise(counts)):
        if count == other < 2 or 0 in (count, other):
            continue
        if outs[axis].aval.dtype != outs[axis + 1].aval.dtype:
            continue
        swapped = partial(_swapped, axis=axis, counts=counts)
        yield change("swapped", swapped, f"axes {axis}, {axis + 1}")


def _further(*indices: Any, axis: int, count: int) -> list[Any]:
    further = ((indices[axis] + 1) % count).astype(indices[axis].dtype)
    return [*indices[:axis], further, *indices[axis + 1 :]]


def _constant(*indices: Any, axis: int) -> list[Any]:
    return [*indices[:axis], jnp.zeros_like(indices[axis]), *indices[axis + 1 :]]


def _swapped(*indices: Any, axis: int, counts: Sequence[int]) -> list[Any]:
    one, other = indices[axis : axis + 2]
    # Within the array: beyond it, every interpreter would report it at once.
    new = jnp.minimum(other, counts[axis] - 1), jnp.minimum(one, counts[axis + 1] - 1)
    return [*indices[:axis], *(index.astype(one.dtype) for index in new), *indices[axis + 2 :]]


def _line_of(kernel: KernelSite, position: int) -> Spot | None:
    """Find the line of an index map; None if it is one of JAX."""
    block = kernel.eqn.params["grid_mapping"].block_mappings[position]
    name, file, line = home_of(block.index_map_jaxpr)
    if not line or is_of_jax(block.index_map_jaxpr):
        return None
    return Spot(file, line, 0, line, 0, name)


def _with_aliases(kernel: KernelSite, pairs: tuple[Any, ...]) -> Any:
    return kernel.eqn.replace(params={**kernel.eqn.params, "input_output_aliases": pairs})


# Masks: left out, or the wrong way round.


_LOGIC = {"and": "or", "or": "and"}
_CHOSEN = {"and": lax.bitwise_and, "or": lax.bitwise_or}


@operator(before="jnp.where(columns < n, x, 0)", after="x")
def mask(at: EquationSite) -> Iterator[Change]:
    """A mask left out or inverted, or one condition enough where both must hold."""
    if at.name == "select_n" and len(at.eqn.invars) == 3 and at.used():
        yield from _selected(at)
    elif at.name in ("jit", "pjit") and at.used():
        yield from _selected_again(at)
    elif at.name in _LOGIC and at.eqn.outvars[0].aval.dtype == jnp.bool_ and at.used():
        name = _LOGIC[at.name]
        yield Change(f"{at.name} -> {name}", lambda: at.traced(_CHOSEN[name], *at.eqn.invars))
    elif at.name in ("masked_load", "masked_swap", "load", "swap", "scatter", "gather"):
        position = _mask_of(at.eqn)
        if position is not None:
            if at.name == "masked_load":
                build = partial(_unmasked, [at.eqn])
            else:
                build = partial(at.with_operand, position, jnp.ones_like)
            yield Change("dropped", build, part="mask")
            if not is_literal(at.eqn.invars[position]):
                build = partial(at.with_operand, position, jnp.logical_not)
                yield Change("inverted", build, part="mask")


def _selected(at: EquationSite) -> Iterator[Change]:
    condition, if_false, if_true = at.eqn.invars
    if condition.aval.dtype != jnp.bool_:
        return
    if if_true.aval.shape != if_false.aval.shape:
        return
    if _masked_load(at.scope, condition, if_true, if_false) is not None:
        if at.scope.maker(if_true) is not None:
            yield _again_dropped(at.scope, condition, if_true, if_false)
    elif at.scope.is_constant(if_true) and not at.scope.is_constant(if_false):
        yield Change("dropped", lambda: Replacement([], [if_false]))
    elif at.scope.is_constant(if_false) and not at.scope.is_constant(if_true):
        yield Change("dropped", lambda: Replacement([], [if_true]))
    else:
        yield Change("always the first", lambda: Replacement([], [if_true]))
        yield Change("always the second", lambda: Replacement([], [if_false]))
    yield Change("inverted", lambda: at.replaced(invars=[condition, if_true, if_false]))


def _selected_again(at: EquationSite) -> Iterator[Change]:
    """Yield the change of ``jnp.where`` by the mask with which its array was loaded."""
    inner = open_jaxpr(at.eqn.params["jaxpr"])[0]
    names = dict(zip(map(id, inner.invars), at.eqn.invars, strict=True))
    within = EnclosingJaxpr(inner, at.scope, names)
    for eqn in inner.eqns:
        if eqn.primitive.name != "select_n" or len(eqn.invars) != 3:
            continue
        condition, if_false, if_true = eqn.invars
        known = id(if_true) in names and inner.outvars == eqn.outvars
        if known and _masked_load(within, condition, if_true, if_false) is not None:
            yield _again_dropped(within, condition, if_true, if_false)


def _again_dropped(scope: EnclosingJaxpr, condition: Any, chosen: Any, other: Any) -> Change:
    """Make the change that leaves out a mask in ``jnp.where``, and in the load before it."""

    def build() -> Replacement:
        return _unmasked(_masked_load(scope, condition, chosen, other) or [])

    return Change("dropped", build, part="with the load's mask")


def _masked_load(
    scope: EnclosingJaxpr, condition: Any, chosen: Any, other: Any
) -> list[Any] | None:
    """Find the load of what a mask chooses, by the same mask and with the same ``other=``.

    The mask is then no mistake to leave out: the load has put ``other`` there.

    Returns:
      The load, and the casts after it; None if it is another mask, or another number.
    """
    value = _number(scope, other)
    home, atom = scope.outside(chosen)
    mask_home, mask = scope.outside(condition)
    eqns: list[Any] = []
    while (eqn := home.maker(atom)) is not None:
        eqns.insert(0, eqn)
        if eqn.primitive.name != "convert_element_type":
            break
        atom = eqn.invars[0]
    if eqn is None or eqn.primitive.name != "masked_load" or home is not mask_home:
        return None
    _, _, loaded_by, instead = eqn.params["args_tree"].unflatten(eqn.invars)
    if instead is None or loaded_by is not mask or value is None:
        return None
    return eqns if bool(_number(home, instead) == value) else None


def _number(scope: EnclosingJaxpr, atom: Any) -> Any:
    """Return the number that an operand is, perhaps broadcast; None if it is not known."""
    scope, atom = scope.outside(atom)
    if is_literal(atom):
        return atom.val if not np.ndim(atom.val) else None
    maker = scope.maker(atom)
    if maker is None or maker.primitive.name not in ("broadcast_in_dim", "convert_element_type"):
        return None
    return _number(scope, maker.invars[0])


def _unmasked(eqns: Sequence[Any]) -> Replacement:
    """Load without a mask, and with nothing instead of what it leaves out; then cast as before."""
    load, *casts = eqns
    ref, transforms, *_ = load.params["args_tree"].unflatten(load.invars)
    operands, structure = jax.tree.flatten((ref, transforms, None, None))
    out = variable(load.outvars[0].aval)
    params = {**load.params, "args_tree": structure}
    new = [load.replace(invars=operands, outvars=[out], params=params)]
    for cast in casts:
        out = variable(cast.outvars[0].aval)
        new.append(cast.replace(invars=[*new[-1].outvars], outvars=[out]))
    return Replacement(new, [out])


def _mask_of(eqn: Any) -> int | None:
    """Find the position of the mask: the only operand of bools, besides the stored value."""
    positions = [
        position
        for position, atom in enumerate(eqn.invars)
        if position and getattr(atom.aval, "dtype", None) == jnp.bool_
    ]
    if eqn.primitive.name in ("load", "swap") and not eqn.params.get("has_mask"):
        return None
    return positions[0] if len(positions) == 1 else None
