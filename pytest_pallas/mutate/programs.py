"""The mutants of a program, and the program with one of them.

A program is the closed jaxpr of a function that calls kernels. ``_rewritten`` visits every kernel,
and every equation of its body that a line of the user wrote: to list what operators can change
there (``mutants_of``), or to make one change (``mutated``). A function of JAX that does one thing,
such as ``jnp.where``, counts as an equation on the line of the user.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from pytest_pallas.mutate.model import (
    Change,
    EnclosingJaxpr,
    EquationSite,
    KernelSite,
    Operator,
    known_operators,
)

#: What is not done with a value in a function of JAX that does one thing, such as ``jnp.where``.
_SHAPING = frozenset(
    {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "pvary", "copy"}
)

#: Gets every equation of a kernel's body, and gives what takes its place; None keeps it. It also
#: gets every kernel, and gives the equation that calls it, or None.
type Visit = Callable[[EquationSite | KernelSite], Any]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mistake made in one place of one kernel. Equal in every shape that the kernel is run on.

    Attributes:
      operator: which kind of mistake.
      change: what was changed, such as ``"lt -> le"``.
      kernel: name of the kernel.
      home: file of the kernel's body.
      places: where in the source, from the body inwards: the lines of functions that call one
        another. For what is no equation of the body, where the kernel is called.
      part: by what else it differs from others in the same place, such as the primitive.
    """

    operator: str
    change: str
    kernel: str
    home: str
    places: tuple[Spot, ...]
    part: str = ""

    @property
    def where(self) -> str:
        """``file:line`` of the innermost place."""
        if not self.places:
            return self.home
        return str(self.places[-1].at)

    @property
    def source(self) -> str:
        """The mutated line of the source, without its indentation; "" if it cannot be read."""
        return self.places[-1].at.text if self.places else ""

    @property
    def callers(self) -> tuple[str, ...]:
        """The lines that it was called from, the innermost first, likewise."""
        return tuple(place.at.text for place in reversed(self.places[:-1]))

    @property
    def path(self) -> str:
        """``file:line`` of all places, the innermost first, in short."""
        own = [place.at.short for place in self.places[-1:]]
        return ", called in ".join((*own, *self.called_from))

    @property
    def called_from(self) -> tuple[str, ...]:
        """``file:line`` of the places that it was called from, the innermost first, in short."""
        return tuple(place.at.short for place in reversed(self.places[:-1]))

    def __call__(self, jaxpr: Any) -> Any:
        """The program with this mutant, as calls want of their ``rewriting``; see ``mutated``."""
        return mutated(jaxpr, self)

    def __str__(self) -> str:
        return f"{self.operator}: {self.change} at {self.path}"


def mutants_of(jaxpr: Any, operators: Collection[str] = ()) -> list[Mutant]:
    """The mutants of the kernels of a program, each once, in the order of the source.

    Args:
      jaxpr: closed or open; as in ``mutated``.
      operators: names; empty for all.
    """
    chosen = [each for each in known_operators() if not operators or each.name in operators]
    mutants: dict[Mutant, None] = {}

    def visit(site: EquationSite | KernelSite) -> None:
        for operator in chosen:
            for change, mutant in _changes(operator, site):
                # A call can be changed wherever an operator says so; an equation may be kept.
                if operator.of_calls or (mutant not in mutants and change.build() is not None):
                    mutants[mutant] = None

    _rewritten(open_jaxpr(jaxpr)[0], visit)
    return list(mutants)


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

    def visit(site: EquationSite | KernelSite) -> Any:
        if isinstance(site, EquationSite) and site.places != mutant.places:
            return None  # most are elsewhere, and need not be tried
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
    """What an operator changes there, each with the mutant that this is."""
    if operator.of_calls != isinstance(site, KernelSite):
        return
    if isinstance(site, KernelSite):
        kernel, prefix, called = site, "", place_of_call(site.eqn)
        places = () if called is None else (called,)
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
    """An open jaxpr with what ``visit`` gives; ``jaxpr`` itself where nothing is replaced."""

    def kernel(eqn: Any, axes: Mapping[str, int]) -> Any:
        site = _kernel_site(eqn, axes)
        changed = visit(site)
        if changed is not None:
            return changed
        walk = _BodyWalk(site, visit)
        return with_jaxprs(eqn, lambda inner: walk.body(EnclosingJaxpr(inner), None))

    return with_kernels(jaxpr, kernel)


def _kernel_site(eqn: Any, axes: Mapping[str, int]) -> KernelSite:
    """A kernel with what is known of its refs."""
    roots: dict[int, int] = {}
    read: set[int] = set()
    for inner in _equations(eqn, roots):
        if inner.primitive.name in ("swap", "masked_swap") or any(sub_jaxprs(inner)):
            continue  # stores, and what has its reads inside
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
    """All equations inside an equation; ``roots`` learns which variables are the same ref."""
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
    """A walk through the body of a kernel. ``unit``: where the function of JAX is called."""

    kernel: KernelSite
    visit: Visit

    def body(self, scope: EnclosingJaxpr, unit: tuple[Spot, ...] | None) -> Any:
        """A jaxpr of the body with what ``visit`` gives; itself where that is nothing."""
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
        """An equation, which was ``old``, with the jaxprs inside of it visited."""
        name = old.primitive.name

        def changed(inner: Any) -> Any:
            operands = _inner_operands(old, inner) or ()
            pairs = zip(_inner_variables(old, inner), operands, strict=False)
            once = name in ("jit", "pjit", "cond")  # else it is another operand in each round
            within = EnclosingJaxpr(inner, scope, {id(v): a for v, a in pairs} if once else {})
            if name not in ("jit", "pjit") or not is_of_jax(inner):
                return self.body(within, unit)
            # Traced once for all callers, so that its own lines are those of the first.
            places = unit if unit is not None else places_in_kernel(eqn)
            if not _does_one_thing(inner) or not places or is_machinery(eqn):
                return inner
            return self.body(within, places)

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


def _inner_operands(eqn: Any, jaxpr: Any) -> Sequence[Any] | None:
    """The operands of an equation that become the variables of a jaxpr inside, in their order.

    None where it is not known. The variables are ``_inner_variables``.
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
    """The variables of a jaxpr inside an equation that stand for operands of the equation."""
    if eqn.primitive.name == "run_scoped":  # what it allocates comes after what it closes over
        return [*jaxpr.constvars, *jaxpr.invars][: len(eqn.invars)]
    return list(jaxpr.invars)
