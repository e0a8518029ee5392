"""List the mutants of a program, and make a program with one of them.

A program is the closed jaxpr of a function that calls kernels. ``_rewritten`` visits every kernel,
and every equation of its body that a line of the user wrote: ``mutants_of`` lists the changes that
operators can make there, and ``mutated`` makes one of them. A function of JAX with a single
operation, such as ``jnp.where``, counts as an equation on the line of the user.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    open_jaxpr,
    place_of_call,
    places_in_kernel,
    sub_jaxprs,
)
from pytest_pallas.backends.rewriting import (
    closed_with,
    renamed,
    with_equations,
    with_jaxprs,
    with_kernels,
)
from pytest_pallas.errors import MutantError
from pytest_pallas.grid.scalars import OPERATIONS
from pytest_pallas.mutate.model import (
    Change,
    EnclosingJaxpr,
    EquationSite,
    KernelSite,
    Operator,
    known_operators,
    operand_groups,
)

#: Primitives that do not count as an operation of a function of JAX such as ``jnp.where``.
_SHAPING = frozenset(
    {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "pvary", "copy"}
)

#: Gets every equation of a kernel's body and returns its ``Replacement``, and gets every call of a
#: kernel and returns another equation. None changes nothing.
type Visit = Callable[[EquationSite | KernelSite], Any]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mistake at one line of a kernel. It is equal in every shape that the kernel runs on.

    Attributes:
      operator: the kind of mistake.
      change: a short description, such as ``"lt -> le"``.
      kernel: name of the kernel.
      home: file of the kernel's body.
      places: the lines of the equation, from the body inwards: those of functions that call one
        another. For a change of the call, the line that calls the kernel.
      part: tells mutants of the same line apart, such as by the primitive.
    """

    operator: str
    change: str
    kernel: str
    home: str
    places: tuple[Spot, ...]
    part: str = ""

    @property
    def where(self) -> str:
        """``file:line`` of the innermost line."""
        if not self.places:
            return self.home
        return str(self.places[-1].at)

    @property
    def source(self) -> str:
        """The mutated line of the source, without its indentation; "" if it cannot be read."""
        return self.places[-1].at.text if self.places else ""

    @property
    def callers(self) -> tuple[str, ...]:
        """The source lines that call it, the innermost first."""
        return tuple(spot.at.text for spot in reversed(self.places[:-1]))

    @property
    def path(self) -> str:
        """``file:line`` of all lines, the innermost first, in short."""
        own = [spot.at.short for spot in self.places[-1:]]
        return ", called in ".join((*own, *self.called_from))

    @property
    def called_from(self) -> tuple[str, ...]:
        """``file:line`` of the lines that call it, the innermost first, in short."""
        return tuple(spot.at.short for spot in reversed(self.places[:-1]))

    def __call__(self, jaxpr: Any) -> Any:
        """Make this mutant of a program, as the ``rewriting`` of a call; see ``mutated``."""
        return mutated(jaxpr, self)

    def __str__(self) -> str:
        return f"{self.operator}: {self.change} at {self.path}"


def mutants_of(jaxpr: Any, operators: Collection[str] = ()) -> list[Mutant]:
    """List the mutants of the kernels of a program, each once, in the order of the source.

    Args:
      jaxpr: closed or open; as in ``mutated``.
      operators: names; empty for all.
    """
    chosen = [known for known in known_operators() if not operators or known.name in operators]
    mutants: dict[Mutant, None] = {}

    def visit(site: EquationSite | KernelSite) -> None:
        for operator in chosen:
            for change, mutant in _changes(operator, site):
                # A change of an equation may build nothing; a change of a call is always possible.
                if operator.of_calls or (mutant not in mutants and change.build() is not None):
                    mutants[mutant] = None

    _rewritten(open_jaxpr(jaxpr)[0], visit)
    return list(mutants)


@functools.lru_cache(maxsize=128)
def mutated(jaxpr: Any, mutant: Mutant) -> Any:
    """Make a mutant wherever its lines occur in a program; return ``jaxpr`` itself if nowhere.

    The last results are cached, because several checks run them.

    Args:
      jaxpr: closed, of a function that calls kernels, also inside of ``jit``, ``vmap``,
        ``shard_map``, ``custom_vjp``, loops and branches. It contains the gradients: a mutated
        program is not differentiated.
      mutant: the mutant.

    Raises:
      MutantError: it could not be made.
    """
    [operator] = [known for known in known_operators() if known.name == mutant.operator]

    def visit(site: EquationSite | KernelSite) -> Any:
        if isinstance(site, EquationSite) and site.places != mutant.places:
            return None  # it is elsewhere, as most are
        kernel = site.kernel if isinstance(site, EquationSite) else site
        if (kernel.home, kernel.name) != (mutant.home, mutant.kernel):
            return None
        changes = (change for change, other in _changes(operator, site) if other == mutant)
        return next((change.build() for change in changes), None)

    inner = open_jaxpr(jaxpr)[0]
    try:
        new = _rewritten(inner, visit)
    except Exception as error:
        text = f"{mutant} could not be made: {type(error).__name__}: {error}"
        raise MutantError(text) from error
    return jaxpr if new is inner else closed_with(jaxpr, new)


def _changes(
    operator: Operator, site: EquationSite | KernelSite
) -> Iterator[tuple[Change, Mutant]]:
    """Yield the changes of a site by an operator, each with its mutant."""
    if operator.of_calls != isinstance(site, KernelSite):
        return
    if isinstance(site, KernelSite):
        kernel, prefix, call = site, "", place_of_call(site.eqn)
        places = () if call is None else (call,)
    else:
        kernel, prefix, places = site.kernel, site.name, site.places
    for change in operator.function(site):
        mutant = Mutant(
            operator=operator.name,
            change=change.words,
            kernel=kernel.name,
            home=kernel.home,
            places=places if change.place is None else (change.place,),
            part=" ".join(filter(None, (prefix, change.part))),
        )
        yield change, mutant


def _rewritten(jaxpr: Any, visit: Visit) -> Any:
    """Replace what ``visit`` replaces in an open jaxpr; return it if that is nothing."""

    def kernel(eqn: Any, axes: Mapping[str, int]) -> Any:
        site = _kernel_site(eqn, axes)
        changed = visit(site)
        if changed is not None:
            return changed
        walk = _BodyWalk(site, visit)
        return with_jaxprs(eqn, lambda inner: walk.body(EnclosingJaxpr(inner), None))

    return with_kernels(jaxpr, kernel)


def _kernel_site(eqn: Any, axes: Mapping[str, int]) -> KernelSite:
    """Make the site of a kernel, with the refs that it reads."""
    roots: dict[int, int] = {}
    read: set[int] = set()
    for inner in _equations(eqn, roots):
        if inner.primitive.name in ("swap", "masked_swap") or any(sub_jaxprs(inner)):
            continue  # a store, or an equation whose reads are inside
        read |= {
            roots.get(id(atom), id(atom))
            for atom in inner.invars
            if is_reference(getattr(atom, "aval", None))
        }
    body = next(sub_jaxprs(eqn), None)
    return KernelSite(
        eqn=eqn,
        name=kernel_name(eqn),
        home=home_of(body)[1] if body is not None else "",
        axes=axes,
        read=frozenset(read),
        roots=roots,
    )


def _equations(eqn: Any, roots: dict[int, int]) -> Iterator[Any]:
    """Yield all equations inside an equation; add the refs that are the same to ``roots``."""
    for jaxpr in sub_jaxprs(eqn):
        operands = _inner_operands(eqn, jaxpr)
        if operands is not None and eqn.primitive.name not in KERNEL_PRIMITIVES:
            for inner, outer in zip(_inner_variables(eqn, jaxpr), operands, strict=True):
                roots[id(inner)] = roots.get(id(outer), id(outer))
        for inner in jaxpr.eqns:
            yield inner
            yield from _equations(inner, roots)


@dataclass(frozen=True)
class _BodyWalk:
    """A walk through the body of a kernel.

    Inside of a function of JAX that counts as one equation, ``unit`` is the line that calls it.
    """

    kernel: KernelSite
    visit: Visit

    def body(self, scope: EnclosingJaxpr, unit: tuple[Spot, ...] | None) -> Any:
        """Replace what ``visit`` replaces in a jaxpr of the body; return it if that is nothing."""
        jaxpr = scope.jaxpr
        names: dict[Any, Any] = {}
        eqns: list[Any] = []
        for old in jaxpr.eqns:
            eqn, new = renamed(old, names), None
            places = () if unit is None and is_machinery(old) else unit or places_in_kernel(old)
            if places:
                new = self.visit(EquationSite(eqn, scope, self.kernel, places))
            if new is None:
                eqns.append(self._inside(eqn, old, scope, unit))
                continue
            eqns += new.eqns
            for var, out in zip(old.outvars, new.outs, strict=False):
                if out is not None and out is not var:
                    names[var] = out
        outs = [out if is_literal(out) else names.get(out, out) for out in jaxpr.outvars]
        if not names and [*map(id, eqns)] == [*map(id, jaxpr.eqns)]:
            return jaxpr
        return with_equations(jaxpr, eqns, outs)

    def _inside(
        self, eqn: Any, old: Any, scope: EnclosingJaxpr, unit: tuple[Spot, ...] | None
    ) -> Any:
        """Visit the jaxprs inside of an equation, which was ``old``."""
        name = old.primitive.name

        def changed(inner: Any) -> Any:
            operands = _inner_operands(old, inner) or ()
            pairs = zip(_inner_variables(old, inner), operands, strict=False)
            once = name in ("jit", "pjit", "cond")  # a loop binds other operands in each round
            within = EnclosingJaxpr(inner, scope, {id(v): a for v, a in pairs} if once else {})
            if name not in ("jit", "pjit") or not is_of_jax(inner):
                return self.body(within, unit)
            # JAX traces it once for all callers: its own lines are those of the first caller.
            places = unit if unit is not None else places_in_kernel(eqn)
            if not _is_one_operation(inner) or not places or is_machinery(eqn):
                return inner
            return self.body(within, places)

        return with_jaxprs(eqn, changed)


def _is_one_operation(jaxpr: Any) -> bool:
    """Whether a function of JAX has a single operation, besides casts and shapes."""
    operations = [eqn for eqn in jaxpr.eqns if eqn.primitive.name not in _SHAPING]
    if len(operations) != 1:
        return False
    inner = list(sub_jaxprs(operations[0]))
    if operations[0].primitive.name in ("jit", "pjit"):
        return all(map(_is_one_operation, inner))
    return not inner


def _inner_operands(eqn: Any, jaxpr: Any) -> Sequence[Any] | None:
    """List the operands of an equation that a jaxpr inside gets, as ``_inner_variables``.

    None if that is not known.
    """
    name, operands = eqn.primitive.name, list(eqn.invars)
    variables = _inner_variables(eqn, jaxpr)
    if name == "cond":
        operands = operands[1:]
    elif name == "while":
        conditions, constants = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carried = operands[conditions + constants :]
        condition = getattr(eqn.params["cond_jaxpr"], "jaxpr", None)
        if jaxpr is condition:
            operands = operands[:conditions] + carried
        else:
            operands = operands[conditions : conditions + constants] + carried
    return operands if len(operands) == len(variables) else None


def _inner_variables(eqn: Any, jaxpr: Any) -> Sequence[Any]:
    """List the variables of a jaxpr inside an equation that are bound to its operands."""
    if eqn.primitive.name == "run_scoped":  # its operands come first, then its allocations
        return [*jaxpr.constvars, *jaxpr.invars][: len(eqn.invars)]
    return list(jaxpr.invars)


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
