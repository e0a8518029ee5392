"""Programs in a form in which those that plainly compute the same are equal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_sim.traces import (
    KERNEL_PRIMITIVES,
    Spot,
    home_of,
    is_literal,
    is_machinery,
    is_of_jax,
    is_reference,
    kernel_name,
    place_of_call,
    places_in_kernel,
    sub_jaxprs,
)
from pytest_pallas.errors import MutantError
from pytest_pallas.mutate.model import (
    Change,
    EnclosingJaxpr,
    EquationSite,
    KernelSite,
    Mutant,
    Operator,
    Replacement,
    closed_with,
    inner_operands,
    inner_variables,
    operand_groups,
    renamed,
    with_equations,
    with_jaxprs,
)
from pytest_pallas.mutate.operators import known_operators

#: Operations whose operands may change places.
_COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})

#: What numbers that are known may be put into; numpy computes them in their dtype.
_FOLDED: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "rem": np.fmod,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}

#: What is for people to read, and no answer; checks of ``pl.debug_check`` are, too.
_PRINTED = frozenset({"debug_print", "trace_value"})

_NOTHING: Mapping[int, int] = {}

#: Functions of JAX that only call what is inside.
_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"})


def canonical(jaxpr: Any, known: Mapping[int, int] = _NOTHING) -> Hashable:
    """What a jaxpr computes: its effects in their order, and its results.

    Simplified are numbers that are known, operands of operations that commute, neutral elements,
    choices between equal things, and calls of functions; what is not used is left out, and so is
    what is printed.

    Args:
      jaxpr: open or closed.
      known: the values of variables, by position.
    """
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    consts = [("const", id(const)) for const in getattr(jaxpr, "consts", ())]
    counter = [0, 0]  # effects so far, and how many branches they are inside of
    names: dict[Any, Hashable] = dict(zip(inner.constvars, consts, strict=False))
    for position, var in enumerate(inner.invars):
        value = known.get(position)
        given = ("in", position) if value is None else _number(np.asarray(value, var.aval.dtype))
        names.setdefault(var, given)
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


def _branch(jaxpr: Any, operands: Sequence[Hashable], depth: int) -> Hashable:
    """What a branch does with the operands that it is given; effects are counted by depth."""
    names: dict[Any, Hashable] = {var: ("free", id(var)) for var in jaxpr.constvars}
    names.update(zip(jaxpr.invars, operands, strict=True))
    effects: list[Hashable] = []
    return tuple(_evaluate(jaxpr, names, effects, [0, depth])), tuple(effects)


def _name(atom: Any, names: Mapping[Any, Hashable]) -> Hashable:
    if not is_literal(atom):
        return names.get(atom, ("free", id(atom)))
    return _number(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))


def _number(value: Any) -> Hashable:
    value = np.asarray(value)
    return "number", str(value.dtype), value.shape, value.tobytes()


def _known(name: Any) -> Any:
    """The number that a name stands for, or None."""
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
    name = eqn.primitive.name
    inside = list(sub_jaxprs(eqn))
    if name in _CALLS and len(inside) == 1 and len(inside[0].invars) == len(operands):
        constants = [("free", id(var)) for var in inside[0].constvars]
        names: dict[Any, Hashable] = dict(zip(inside[0].constvars, constants, strict=True))
        names.update(zip(inside[0].invars, operands, strict=True))
        return _evaluate(inside[0], names, effects, counter)
    if name == "cond":
        # With the operands in their places: one that no branch looks at makes no difference.
        branches = tuple(_branch(each, operands[1:], counter[1] + 1) for each in inside)
        index = ("any",) if len(set(branches)) == 1 else operands[0]
        words = ("cond", index, branches)
        if eqn.effects:
            counter[0] += 1
            effects.append(words)
            return [("effect", *counter, position) for position in range(len(eqn.outvars))]
        return [(*words, position) for position in range(len(eqn.outvars))]
    if name == "dma_wait":  # it counts bytes at one semaphore: where they went makes no difference
        for group, positions in operand_groups(eqn).items():
            for position in positions if group != "target_semaphore" else ():
                operands[position] = ("any", str(eqn.invars[position].aval))
    if name in _PRINTED or (name == "check" and eqn.params.get("debug")):
        return [(name, position) for position in range(len(eqn.outvars))]
    words = (name, _params(eqn), tuple(operands))
    if name == "get":  # what it reads depends on what was done before; an unused one is gone
        return [("read", *counter, words)]
    if eqn.effects:
        counter[0] += 1
        effects.append(words)
        return [("effect", *counter, position) for position in range(len(eqn.outvars))]
    if len(eqn.outvars) == 1:
        simple = _simplified(eqn, operands)
        if simple is not None:
            return [simple]
        if name in _COMMUTATIVE:
            words = (name, _params(eqn), tuple(sorted(operands, key=repr)))
    return [(*words, position) for position in range(len(eqn.outvars))]


def _simplified(eqn: Any, operands: Sequence[Hashable]) -> Hashable | None:
    """What a pure equation is without it, or None."""
    name, aval = eqn.primitive.name, eqn.outvars[0].aval
    values = [_known(operand) for operand in operands]
    if name in _FOLDED and all(value is not None for value in values):
        with np.errstate(all="ignore"):
            return _number(np.asarray(_FOLDED[name](*values)).astype(aval.dtype))
    if name == "select_n" and len(operands) == 3:
        if operands[1] == operands[2]:
            return operands[1]
        if values[0] is not None and values[0].ndim == 0:
            return operands[1 + int(values[0])]
    if name in ("max", "min", "and", "or") and operands[0] == operands[1]:
        return operands[0]
    if name in ("add", "sub", "mul") and _integer(aval):
        neutral = 1 if name == "mul" else 0
        for side in (1,) if name == "sub" else (0, 1):
            if values[side] is not None and (values[side] == neutral).all():
                return operands[1 - side] if _shape_of(eqn, 1 - side) == aval.shape else None
    if name == "convert_element_type":
        source = eqn.invars[0].aval
        if source.dtype == aval.dtype:
            return operands[0]
    return None


def _integer(aval: Any) -> bool:
    return np.issubdtype(np.dtype(aval.dtype), np.integer)


def _shape_of(eqn: Any, position: int) -> Any:
    return eqn.invars[position].aval.shape


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
        return tuple(_param(each) for each in value)  # pyright: ignore[reportUnknownVariableType]
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


# Every equation of every kernel of a program, its mutants, and the program with one of them.


#: What is not done with a value in a function of JAX that does one thing, such as ``jnp.where``.
_SHAPING = frozenset(
    {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "pvary", "copy"}
)

Visit = Callable[[EquationSite], Replacement | None]
VisitKernel = Callable[[KernelSite], Any]


def rewritten(jaxpr: Any, visit: Visit, visit_kernel: VisitKernel) -> Any:
    """A program with what ``visit`` and ``visit_kernel`` give in place of equations.

    Args:
      jaxpr: open; of a function that calls kernels, also inside of ``jit``, ``vmap``,
        ``shard_map``, loops and branches.
      visit: is called with every equation of a kernel's body; None keeps it.
      visit_kernel: is called with every kernel, and gives the equation that calls it, or None.

    Returns:
      ``jaxpr`` itself where nothing is replaced.
    """
    return _program(jaxpr, visit, visit_kernel, {})


def _program(jaxpr: Any, visit: Visit, visit_kernel: VisitKernel, axes: Mapping[str, int]) -> Any:
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in KERNEL_PRIMITIVES:
            eqns.append(_kernel(eqn, visit, visit_kernel, axes))
        elif _holds_kernels(eqn):
            mesh = getattr(eqn.params.get("mesh"), "shape", None)
            inside = {**axes, **dict(mesh)} if mesh is not None else axes
            eqns.append(
                with_jaxprs(
                    eqn, lambda inner, inside=inside: _program(inner, visit, visit_kernel, inside)
                )
            )
        else:
            eqns.append(eqn)
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return with_equations(jaxpr, eqns, jaxpr.outvars)


def _kernel(eqn: Any, visit: Visit, visit_kernel: VisitKernel, axes: Mapping[str, int]) -> Any:
    body = next(sub_jaxprs(eqn), None)
    kernel = KernelSite(
        eqn=eqn,
        name=kernel_name(eqn),
        home=home_of(body)[1] if body is not None else "",
        axes=axes,
    )
    if body is not None:
        kernel = _with_refs(kernel)
    changed = visit_kernel(kernel)
    if changed is not None:
        return changed
    return with_jaxprs(eqn, lambda inner: _body(EnclosingJaxpr(inner), kernel, visit))


def _with_refs(kernel: KernelSite) -> KernelSite:
    """The kernel with what is known of its refs."""
    roots: dict[int, int] = {}
    read: set[int] = set()
    for eqn in _equations(kernel.eqn, roots):
        if eqn.primitive.name in ("swap", "masked_swap") or any(sub_jaxprs(eqn)):
            continue  # stores, and what has its reads inside
        read |= {
            roots.get(id(atom), id(atom))
            for atom in eqn.invars
            if is_reference(getattr(atom, "aval", None))
        }
    return replace(kernel, roots=roots, read=frozenset(read))


def _equations(eqn: Any, roots: dict[int, int]) -> Iterator[Any]:
    """All equations inside an equation; ``roots`` learns which variables are the same ref."""
    for jaxpr in sub_jaxprs(eqn):
        operands = inner_operands(eqn, jaxpr)
        if operands is not None and eqn.primitive.name not in KERNEL_PRIMITIVES:
            for inner, outer in zip(inner_variables(eqn, jaxpr), operands, strict=True):
                roots[id(inner)] = roots.get(id(outer), id(outer))
        for inner in jaxpr.eqns:
            yield inner
            yield from _equations(inner, roots)


def _body(
    scope: EnclosingJaxpr,
    kernel: KernelSite,
    visit: Visit,
    unit: tuple[Spot, ...] | None = None,
) -> Any:
    """A jaxpr of a kernel's body; ``unit`` is where the function of JAX was called that it is."""
    jaxpr = scope.jaxpr
    names: dict[Any, Any] = {}
    eqns: list[Any] = []
    for old in jaxpr.eqns:
        eqn = renamed(old, names)
        new = None
        if unit is not None or not is_machinery(old):
            places = unit if unit is not None else places_in_kernel(old)
            if places:
                new = visit(EquationSite(eqn, scope, kernel, places))
        if new is None:
            eqns.append(_inside(eqn, old, scope, kernel, visit, unit))
            continue
        eqns += new.eqns
        for var, out in zip(old.outvars, new.outs, strict=False):
            if out is not None and out is not var:
                names[var] = out
    outs = [out if is_literal(out) else names.get(out, out) for out in jaxpr.outvars]
    unchanged = len(eqns) == len(jaxpr.eqns) and all(
        new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)
    )
    if unchanged and not names:
        return jaxpr
    return with_equations(jaxpr, eqns, outs)


def _inside(
    eqn: Any,
    old: Any,
    scope: EnclosingJaxpr,
    kernel: KernelSite,
    visit: Visit,
    unit: tuple[Spot, ...] | None,
) -> Any:
    """An equation, which was ``old``, with the jaxprs inside of it visited."""

    def changed(inner: Any) -> Any:
        operands = inner_operands(old, inner) or ()
        variables = inner_variables(old, inner)
        once = old.primitive.name in ("jit", "pjit", "cond")  # else it is another in each round
        bound = {id(v): a for v, a in zip(variables, operands, strict=False)} if once else {}
        within = EnclosingJaxpr(inner, scope, bound)
        if eqn.primitive.name in ("jit", "pjit") and is_of_jax(inner):
            # Traced once for all callers, so that its own lines are those of the first.
            places = unit if unit is not None else places_in_kernel(eqn)
            if not _does_one_thing(inner) or not places or is_machinery(eqn):
                return inner
            return _body(within, kernel, visit, places)
        return _body(within, kernel, visit, unit)

    return with_jaxprs(eqn, changed)


def _does_one_thing(jaxpr: Any) -> bool:
    """Whether a function of JAX is one operation: what it does inside is not the user's doing."""
    doing = [eqn for eqn in jaxpr.eqns if eqn.primitive.name not in _SHAPING]
    if len(doing) != 1:
        return False
    inner = list(sub_jaxprs(doing[0]))
    if doing[0].primitive.name in ("jit", "pjit"):
        return all(_does_one_thing(each) for each in inner)
    return not inner


def _holds_kernels(eqn: Any) -> bool:
    """Whether there are Pallas kernels inside an equation, or it is one."""
    if eqn.primitive.name in KERNEL_PRIMITIVES:
        return True
    return any(_holds_kernels(inner) for jaxpr in sub_jaxprs(eqn) for inner in jaxpr.eqns)


def mutants_of(jaxpr: Any, operators: Collection[str] = ()) -> list[Mutant]:
    """The mutants of the kernels of a program, each once, in the order of the source.

    Args:
      jaxpr: closed or open; as in ``mutated``.
      operators: names; empty for all.
    """
    chosen = [each for each in known_operators() if not operators or each.name in operators]
    found: dict[Mutant, None] = {}

    def visit(at: EquationSite) -> None:
        for operator in chosen:
            for change, mutant in _changes(operator, at):
                if mutant not in found and change.build() is not None:
                    found[mutant] = None

    def visit_kernel(kernel: KernelSite) -> None:
        for operator in chosen:
            for _, mutant in _calls(operator, kernel):
                found[mutant] = None

    rewritten(getattr(jaxpr, "jaxpr", jaxpr), visit, visit_kernel)
    return list(found)


@functools.lru_cache(maxsize=128)
def mutated(jaxpr: Any, mutant: Mutant) -> Any:
    """A program with a mutant, wherever its place occurs; ``jaxpr`` itself where it does not.

    The last ones are kept: several checks run them.

    Args:
      jaxpr: closed, of a function that calls kernels, also inside of ``jit``, ``vmap``,
        ``shard_map``, ``custom_vjp``, loops and branches. What JAX makes of gradients is part of
        it: nothing is differentiated after.
      mutant: the mutant.

    Raises:
      MutantError: it could not be made.
    """
    [operator] = [each for each in known_operators() if each.name == mutant.operator]

    def visit(at: EquationSite) -> Replacement | None:
        if at.kernel.home != mutant.home or at.places != mutant.places:
            return None
        for change, found in _changes(operator, at):
            if found == mutant:
                return change.build()
        return None

    def visit_kernel(kernel: KernelSite) -> Any:
        if kernel.home != mutant.home or kernel.name != mutant.kernel:
            return None
        for change, found in _calls(operator, kernel):
            if found == mutant:
                return change.build()
        return None

    inner = getattr(jaxpr, "jaxpr", jaxpr)
    try:
        new = rewritten(inner, visit, visit_kernel)
    except Exception as error:
        text = f"{mutant} could not be made: {type(error).__name__}: {error}"
        raise MutantError(text) from error
    return jaxpr if new is inner else closed_with(jaxpr, new)


def _changes(operator: Operator, at: EquationSite) -> Iterator[tuple[Change, Mutant]]:
    if operator.operate is None:
        return
    for change in operator.operate(at):
        yield (
            change,
            Mutant(
                operator=operator.name,
                change=change.words,
                kernel=at.kernel.name,
                home=at.kernel.home,
                places=at.places,
                part=" ".join(filter(None, (at.name, change.part))),
            ),
        )


def _calls(operator: Operator, kernel: KernelSite) -> Iterator[tuple[Change, Mutant]]:
    if operator.call is None:
        return
    called = place_of_call(kernel.eqn)
    for change in operator.call(kernel):
        place = change.place or called
        yield (
            change,
            Mutant(
                operator=operator.name,
                change=change.words,
                kernel=kernel.name,
                home=kernel.home,
                places=() if place is None else (place,),
                part=change.part,
            ),
        )
