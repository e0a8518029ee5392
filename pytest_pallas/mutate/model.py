"""Mutation operators, and the sites in a kernel that they change.

An operator is a function of a site: an equation in the body of a kernel (``EquationSite``), or the
call of a kernel (``KernelSite``). It yields a ``Change`` for each mistake that people make there. A
change is built only if its mutant runs. Importing this module does not import JAX, but
``known_operators`` does: it imports the modules that declare operators.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pallas_sim.errors import OptionError
from pallas_sim.traces import (
    BlockFacts,
    GridFacts,
    Operand,
    Spot,
    grid_facts,
    is_indexer,
    is_literal,
    sub_jaxprs,
)
from pytest_pallas.backends.rewriting import equations_of

#: The modules that declare operators, in the order in which these are tried and listed.
MODULES = ("control_operators", "data_operators")

#: Primitives that call a jaxpr, and those that make an array of a number.
_CALLED = frozenset({"jit", "pjit"})
_SPREADING = frozenset({"broadcast_in_dim", "convert_element_type", "reshape"})


@dataclass(frozen=True)
class Replacement:
    """The equations that replace an equation.

    Attributes:
      eqns: the new equations.
      outs: the operands that replace the results of the old equation, in their order.
    """

    eqns: Sequence[Any] = ()
    outs: Sequence[Any] = ()


@dataclass(frozen=True)
class Change:
    """One way in which an operator changes an equation.

    Attributes:
      words: a short description of the change, the same in every shape.
      build: makes the ``Replacement``, or the new call of the kernel; returns None if the change
        makes no sense there.
      part: as in ``Mutant``.
      place: the line that is changed, if it is not the line of the equation.
    """

    words: str
    build: Callable[[], Any]
    part: str = ""
    place: Spot | None = None


@dataclass(frozen=True, eq=False)
class KernelSite:
    """The kernel that an equation is in.

    Attributes:
      eqn: the equation that calls it.
      name: its name.
      home: file of its body.
      axes: sizes of the mesh axes around it, and of the named axes of its grid, as far as known.
      read: roots of the refs that it reads.
      roots: by the id of a ref in a branch or loop, the id of the same ref in the body, or of its
        allocation.
    """

    eqn: Any
    name: str
    home: str
    axes: Mapping[str, int]
    read: frozenset[int] = frozenset()
    roots: Mapping[int, int] = field(default_factory=dict[int, int])

    @cached_property
    def facts(self) -> GridFacts | None:
        """Its grid and blocks; None if it is no ``pallas_call``."""
        return grid_facts(self.eqn) if self.eqn.primitive.name == "pallas_call" else None

    @property
    def blocks(self) -> tuple[BlockFacts, ...]:
        """The blocks of its inputs and outputs."""
        return () if self.facts is None else (*self.facts.inputs, *self.facts.outputs)

    @property
    def axes_counted(self) -> list[int]:
        """The axes of the grid that ``program_id`` counts: those that ``vmap`` added are not."""
        if self.facts is None:
            return []
        return [axis for axis in range(len(self.facts.grid)) if axis not in self.facts.vmapped]

    def root(self, ref: Any) -> int:
        """Identify a ref: the same number in the body and inside of branches and loops."""
        return self.roots.get(id(ref), id(ref))


@dataclass(frozen=True, eq=False)
class EnclosingJaxpr:
    """The jaxpr that an equation is in.

    Attributes:
      jaxpr: the jaxpr.
      outer: the jaxpr of the equation that contains it, if that is known.
      operands: the operands of that equation, by the id of the variable that each is bound to.
    """

    jaxpr: Any
    outer: EnclosingJaxpr | None = None
    operands: Mapping[int, Any] = field(default_factory=dict[int, Any])

    @cached_property
    def _makers(self) -> Mapping[int, Any]:
        return {id(out): eqn for eqn in self.jaxpr.eqns for out in eqn.outvars}

    @cached_property
    def _users(self) -> Mapping[int, list[Any]]:
        users: dict[int, list[Any]] = {}
        for eqn in self.jaxpr.eqns:
            for atom in eqn.invars:
                if not is_literal(atom):
                    users.setdefault(id(atom), []).append(eqn)
        return users

    def maker(self, atom: Any) -> Any:
        """Find the equation that makes an operand; None for an operand from outside."""
        return None if is_literal(atom) else self._makers.get(id(atom))

    def outside(self, atom: Any) -> tuple[EnclosingJaxpr, Any]:
        """Find the jaxpr that an operand is from, and its name there."""
        if self.outer is None or is_literal(atom) or id(atom) not in self.operands:
            return self, atom
        return self.outer.outside(self.operands[id(atom)])

    def is_constant(self, atom: Any) -> bool:
        """Whether an operand is a number in the source of the kernel, perhaps broadcast."""
        if is_literal(atom):
            return True
        if self.outer is not None and id(atom) in self.operands:
            return self.outer.is_constant(self.operands[id(atom)])
        maker = self.maker(atom)
        if maker is None:
            return False
        inner = list(sub_jaxprs(maker)) if maker.primitive.name in _CALLED else []
        if len(inner) == 1 and not maker.invars:
            [jaxpr] = inner
            return len(maker.outvars) == 1 and EnclosingJaxpr(jaxpr).is_constant(jaxpr.outvars[0])
        return maker.primitive.name in _SPREADING and all(map(self.is_constant, maker.invars))

    def users(self, var: Any) -> Sequence[Any]:
        """List the equations that use a variable."""
        return self._users.get(id(var), [])

    def is_result(self, var: Any) -> bool:
        """Whether the jaxpr returns it."""
        return any(out is var for out in self.jaxpr.outvars)


@dataclass(frozen=True, eq=False)
class EquationSite:
    """An equation in a kernel.

    Attributes:
      eqn: the equation.
      scope: its jaxpr.
      kernel: its kernel.
      places: its lines, as in ``Mutant``.
    """

    eqn: Any
    scope: EnclosingJaxpr
    kernel: KernelSite
    places: tuple[Spot, ...]

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return self.eqn.primitive.name

    def used(self) -> bool:
        """Whether its first result is used."""
        var = self.eqn.outvars[0]
        return bool(self.scope.users(var)) or self.scope.is_result(var)

    def traced(self, function: Callable[..., Any], *atoms: Any) -> Replacement:
        """Replace the equation by a function of operands, whose array is the only result."""
        eqns, outs = equations_of(lambda *args: (function(*args),), atoms, self.eqn)
        return Replacement(eqns, outs)

    def with_operand(self, position: int, function: Callable[[Any], Any]) -> Replacement:
        """Replace an operand of the equation by a function of it."""
        operands = list(self.eqn.invars)
        eqns, [operands[position]] = equations_of(
            lambda x: (function(x).astype(x.dtype),), [operands[position]], self.eqn
        )
        new = self.eqn.replace(invars=operands)
        return Replacement([*eqns, new], list(new.outvars))

    def replaced(self, **fields: Any) -> Replacement:
        """Replace the equation by one with other fields."""
        eqn = self.eqn.replace(**fields)
        return Replacement([eqn], list(eqn.outvars))


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A kind of mistake. Projects add their own by ``pytest_pallas_mutation_operators``.

    ``@operator`` and ``@call_operator`` make one of a function.

    Attributes:
      name: as in reports and in ``--pallas-mutate-operators``.
      mistake: a short description of the mistake.
      before: a small piece of a right kernel.
      after: the same piece with the mistake.
      function: yields the changes of a site.
      of_calls: whether the sites are calls of kernels (``KernelSite``), whose changes build another
        equation, instead of equations of a body (``EquationSite``), whose changes build a
        ``Replacement``.
    """

    name: str
    mistake: str
    before: str
    after: str
    function: Callable[[Any], Iterator[Change]]
    of_calls: bool = False


def operator(
    name: str = "", *, mistake: str = "", before: str, after: str, of_calls: bool = False
) -> Callable[[Callable[[EquationSite], Iterator[Change]]], Operator]:
    """Declare that a function of an equation (``EquationSite``) in a kernel's body is an operator.

    Args:
      name: as in reports and in ``--pallas-mutate-operators``; by default that of the function.
      mistake: a short description of the mistake; by default the first line of its docstring.
      before: a small piece of a right kernel.
      after: the same piece with the mistake.
      of_calls: see ``Operator``.
    """

    def declare(function: Callable[[Any], Iterator[Change]]) -> Operator:
        line = (inspect.getdoc(function) or "").partition("\n")[0].rstrip(".")
        return Operator(
            name=name or function.__name__,
            mistake=mistake or line[:1].lower() + line[1:],
            before=before,
            after=after,
            function=function,
            of_calls=of_calls,
        )

    return declare


def call_operator(
    name: str = "", **fields: str
) -> Callable[[Callable[[KernelSite], Iterator[Change]]], Operator]:
    """Declare that a function of the call of a kernel (``KernelSite``) is an operator.

    See ``operator``.
    """
    declare: Any = operator(name, **fields, of_calls=True)
    return declare


#: Operators of projects, while a session uses them.
_added: list[Operator] = []


@functools.cache
def declared_operators() -> tuple[Operator, ...]:
    """List the operators of this package, in the order of their modules and sources."""
    modules = [importlib.import_module(f"pytest_pallas.mutate.{name}") for name in MODULES]
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Operator) and value.function.__module__ == module.__name__
    )


def known_operators() -> tuple[Operator, ...]:
    """List the operators of this package, then those that projects added."""
    return (*declared_operators(), *_added)


@contextlib.contextmanager
def added_operators(operators: Sequence[Operator]) -> Generator[None]:
    """Add operators to those of this package, until the context ends.

    Raises:
      OptionError: two operators have the same name.
    """
    before = _added[:]
    for operator in operators:
        if operator.name in {known.name for known in known_operators()}:
            _added[:] = before
            raise OptionError(f"there are two mutation operators of the name {operator.name!r}")
        _added.append(operator)
    try:
        yield
    finally:
        _added[:] = before


# Which operands of an equation are indices, semaphores and devices.

#: How many operands come before the indices of a load or a store.
_BEFORE_INDICES = {"get": 1, "swap": 2, "addupdate": 2}

#: The operands of DMAs, signals and waits, in the order of their pytree.
_OPERANDS = {
    "dma_start": ("source", "target", "target_semaphore", "source_semaphore", "device"),
    "dma_wait": ("source", "target", "target_semaphore", "source_semaphore", "device"),
    "semaphore_signal": ("semaphore", "transforms", "value", "device", "core"),
    "semaphore_wait": ("semaphore", "transforms", "value", "decrement"),
}


def indices_of(eqn: Any) -> list[tuple[Any, Any]] | None:
    """List the indices of a ``get``, ``swap`` or ``addupdate``, each with the size of its axis.

    They are those of the last transform. An index is an operand, or an object with ``start``,
    ``size`` and ``stride``. None if the last transform is no indexer.
    """
    count = _BEFORE_INDICES.get(eqn.primitive.name)
    if count is None or "tree" not in eqn.params or "has_mask" in eqn.params:
        return None  # those of SparseCores are others
    transforms = eqn.params["tree"].unflatten(eqn.invars[count:])
    if not isinstance(transforms, tuple) or not transforms or not is_indexer(transforms[-1]):
        return None
    last: Any = transforms[-1]  # pyright: ignore[reportUnknownVariableType]
    return list(zip(last.indices, last.shape, strict=True))


def reindexed(eqn: Any, axis: int, index: Any) -> Any:
    """Replace the index, or the start of the slice, of an axis; see ``indices_of``."""
    import jax

    count = _BEFORE_INDICES[eqn.primitive.name]
    *transforms, last = eqn.params["tree"].unflatten(eqn.invars[count:])
    indices = list(last.indices)
    old = indices[axis]
    indices[axis] = replace(old, start=index) if hasattr(old, "start") else index
    changed = (*transforms, replace(last, indices=tuple(indices)))
    leaves, structure = jax.tree.flatten(changed)
    return eqn.replace(
        invars=[*eqn.invars[:count], *leaves], params={**eqn.params, "tree": structure}
    )


def operand_groups(eqn: Any) -> Mapping[str, list[int]]:
    """Find the operands of a DMA, a signal or a wait: positions by name, as in ``_OPERANDS``."""
    names = _OPERANDS.get(eqn.primitive.name)
    structure = eqn.params.get("tree", eqn.params.get("args_tree"))
    if names is None or structure is None:
        return {}
    parts = structure.unflatten([Operand(number) for number in range(len(eqn.invars))])
    return {name: list(_positions(part)) for name, part in zip(names, parts, strict=False)}


def _positions(part: Any) -> Iterator[int]:
    """Collect the positions in a part of the pytree; JAX takes a ref with transforms for a leaf."""
    import jax

    if hasattr(part, "ref") and hasattr(part, "transforms"):
        yield from _positions(part.ref)
        yield from _positions(part.transforms)
        return
    for leaf in jax.tree.leaves(part):
        if isinstance(leaf, Operand):
            yield leaf.position
        elif hasattr(leaf, "ref") and hasattr(leaf, "transforms"):
            yield from _positions(leaf)
