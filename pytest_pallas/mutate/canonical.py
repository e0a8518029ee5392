"""Compare programs by a canonical form, which is equal if they plainly compute the same.

A mutant whose program has the canonical form of the original is equivalent, and is not run. The
form is value numbering (Alpern, Wegman and Zadeck, "Detecting equality of variables in programs",
1988) without loops: each variable is replaced by the operation that made it, as nested tuples,
which are simplified while they are built.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pallas_sim.traces import is_literal, open_jaxpr, sub_jaxprs
from pytest_pallas.errors import MutantError
from pytest_pallas.grid.scalars import OPERATIONS
from pytest_pallas.mutate.model import operand_groups
from pytest_pallas.mutate.programs import Mutant, mutated

#: Operations whose operands may change places.
_COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})

#: Operations of known numbers that numpy computes, in their dtype.
_FOLDED = frozenset({"add", "sub", "mul", "max", "min", "and", "or", "not", "rem"}) | frozenset(
    {"lt", "le", "gt", "ge", "eq", "ne"}
)

#: Operations that only print. ``_equation`` takes the checks of ``pl.debug_check`` likewise.
_PRINTED = frozenset({"debug_print", "trace_value"})

#: Operations of JAX that only call the jaxpr inside.
_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"})


@dataclass(frozen=True, eq=False)
class TracedProgram:
    """A traced program, as a closed jaxpr, and the mutants of its kernels."""

    jaxpr: Any
    mutants: frozenset[Mutant]

    @cached_property
    def form(self) -> Hashable:
        """Its canonical form."""
        return canonical(self.jaxpr)


def unchanged(programs: Iterable[TracedProgram], mutant: Mutant) -> int:
    """Count the programs with a mutant, if none of them changes; 0 if one of them does."""
    having = [program for program in programs if mutant in program.mutants]
    try:
        same = all(canonical(mutated(p.jaxpr, mutant)) == p.form for p in having)
    except MutantError:
        return 0
    return len(having) if same else 0


def canonical(jaxpr: Any, known: Mapping[int, int] | None = None) -> Hashable:
    """Compute the canonical form of a jaxpr: its effects in their order, and its results.

    It simplifies operations of known numbers, the order of operands that commute, neutral elements,
    choices between equal values, and calls of functions. Unused values and printing are left out.

    Args:
      jaxpr: open or closed.
      known: the values of variables, by position.
    """
    inner, constants = open_jaxpr(jaxpr)
    consts = [("const", id(const)) for const in constants]
    counter = [0, 0]  # effects so far, and how many branches they are inside of
    names: dict[Any, Hashable] = dict(zip(inner.constvars, consts, strict=False))
    for position, var in enumerate(inner.invars):
        value = (known or {}).get(position)
        name = ("in", position) if value is None else _number(np.asarray(value, var.aval.dtype))
        names.setdefault(var, name)
    effects: list[Hashable] = []
    outs = _evaluate(inner, names, effects, counter)
    return tuple(effects), tuple(outs)


def _evaluate(
    jaxpr: Any, names: dict[Any, Hashable], effects: list[Hashable], counter: list[int]
) -> list[Hashable]:
    for eqn in jaxpr.eqns:
        operands = [_name(atom, names) for atom in eqn.invars]
        results = _equation(eqn, operands, effects, counter)
        names.update(zip(eqn.outvars, results, strict=True))
    return [_name(atom, names) for atom in jaxpr.outvars]


def _bound(jaxpr: Any, operands: Sequence[Hashable]) -> dict[Any, Hashable]:
    """Name the variables of a jaxpr by the operands that it gets."""
    names: dict[Any, Hashable] = {var: ("free", id(var)) for var in jaxpr.constvars}
    return {**names, **dict(zip(jaxpr.invars, operands, strict=True))}


def _name(atom: Any, names: Mapping[Any, Hashable]) -> Hashable:
    if not is_literal(atom):
        return names.get(atom, ("free", id(atom)))
    return _number(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))


def _number(value: Any) -> Hashable:
    value = np.asarray(value)
    return "number", str(value.dtype), value.shape, value.tobytes()


def _known(name: Any) -> Any:
    """Read the number of a name; None if it is no number."""
    if isinstance(name, tuple) and name and name[0] == "number":
        _, dtype, shape, data = name  # pyright: ignore[reportUnknownVariableType]
        try:
            return np.frombuffer(data, np.dtype(dtype)).reshape(shape)  # pyright: ignore[reportUnknownArgumentType]
        except TypeError:
            return None  # a dtype that numpy does not know by name
    return None


def _equation(
    eqn: Any, operands: list[Hashable], effects: list[Hashable], counter: list[int]
) -> list[Hashable]:
    """Name the results of an equation, and add its effect to ``effects``."""
    name, inside = eqn.primitive.name, list(sub_jaxprs(eqn))
    if name in _CALLS and len(inside) == 1 and len(inside[0].invars) == len(operands):
        return _evaluate(inside[0], _bound(inside[0], operands), effects, counter)
    if name in _PRINTED or (name == "check" and eqn.params.get("debug")):
        return [(name, position) for position in range(len(eqn.outvars))]
    if name == "dma_wait":  # it counts bytes at one semaphore, wherever they went
        for group, positions in operand_groups(eqn).items():
            for position in positions if group != "target_semaphore" else ():
                operands[position] = ("any", str(eqn.invars[position].aval))
    if name == "cond":
        # The operands are in the branches: one that no branch uses makes no difference.
        branches = tuple(_branch(branch, operands[1:], counter[1] + 1) for branch in inside)
        operation = ("cond", ("any",) if len(set(branches)) == 1 else operands[0], branches)
    else:
        operation = (name, _params(eqn), tuple(operands))
    if name == "get":  # its value depends on the effects before it; an unused one is left out
        return [("read", *counter, operation)]
    if eqn.effects:
        counter[0] += 1
        effects.append(operation)
        return [("effect", *counter, position) for position in range(len(eqn.outvars))]
    if len(eqn.outvars) == 1:
        simple = _simplified(eqn, operands)
        if simple is not None:
            return [simple]
        if name in _COMMUTATIVE:
            operation = (name, _params(eqn), tuple(sorted(operands, key=repr)))
    return [(*operation, position) for position in range(len(eqn.outvars))]


def _branch(jaxpr: Any, operands: Sequence[Hashable], depth: int) -> Hashable:
    """Compute the form of a branch with these operands; effects are counted by depth."""
    effects: list[Hashable] = []
    outs = _evaluate(jaxpr, _bound(jaxpr, operands), effects, [0, depth])
    return tuple(outs), tuple(effects)


def _simplified(eqn: Any, operands: Sequence[Hashable]) -> Hashable | None:
    """Simplify a pure equation to the name of a number or an operand; None if that fails."""
    name, aval = eqn.primitive.name, eqn.outvars[0].aval
    values = [_known(operand) for operand in operands]
    if name in _FOLDED and all(value is not None for value in values):
        with np.errstate(all="ignore"):
            return _number(np.asarray(OPERATIONS[name](*values)).astype(aval.dtype))
    if name == "select_n" and len(operands) == 3:
        if operands[1] == operands[2]:
            return operands[1]
        if values[0] is not None and values[0].ndim == 0:
            return operands[1 + int(values[0])]
    if name in ("max", "min", "and", "or") and operands[0] == operands[1]:
        return operands[0]
    if name in ("add", "sub", "mul") and np.issubdtype(np.dtype(aval.dtype), np.integer):
        neutral = 1 if name == "mul" else 0
        for side in (1,) if name == "sub" else (0, 1):
            if values[side] is not None and (values[side] == neutral).all():
                same_shape = eqn.invars[1 - side].aval.shape == aval.shape
                return operands[1 - side] if same_shape else None
    if name == "convert_element_type" and eqn.invars[0].aval.dtype == aval.dtype:
        return operands[0]
    return None


def _params(eqn: Any) -> Hashable:
    return tuple(
        (name, _param(value))
        for name, value in sorted(eqn.params.items())
        if name not in ("debug_info", "name_and_src_info")
    )


def _param(value: Any) -> Hashable:
    if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
        return canonical(value)
    if isinstance(value, (tuple, list)):
        return tuple(_param(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    from jax.extend.pallas import GridMapping

    if isinstance(value, GridMapping):
        return (
            repr(value.grid),
            tuple(
                (repr(block.block_shape), canonical(block.index_map_jaxpr))
                for block in value.block_mappings
            ),
        )
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
