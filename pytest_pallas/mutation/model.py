"""What a mutant is, and what operators know of an equation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pallas_sim.compat.jaxprs import is_literal, sub_jaxprs
from pallas_sim.compat.source import Spot
from pytest_pallas.mutation.rewriting import equations_of

#: Primitives that call a jaxpr, and those that make an array of a number.
_CALLED = frozenset({"jit", "pjit"})
_SPREADING = frozenset({"broadcast_in_dim", "convert_element_type", "reshape"})


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

    def __str__(self) -> str:
        return f"{self.operator}: {self.change} at {self.path}"


@dataclass(frozen=True)
class Replacement:
    """What takes the place of an equation.

    Attributes:
      eqns: equations.
      outs: for each result of the old one an operand that is used in its place.
    """

    eqns: Sequence[Any] = ()
    outs: Sequence[Any] = ()


@dataclass(frozen=True)
class Change:
    """One way in which an operator changes an equation.

    Attributes:
      words: what is changed, in a few words that are the same in every shape.
      build: makes what takes its place; None where it makes no sense there.
      part: as in ``Mutant``.
      place: where, if not where the equation was made.
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
      axes: sizes of the mesh axes around it, and of its own grid's names, as far as known.
      read: roots of the refs that it reads.
      roots: from a ref inside to the ref of the body, or of the allocation, that it is.
    """

    eqn: Any
    name: str
    home: str
    axes: Mapping[str, int]
    read: frozenset[int] = frozenset()
    roots: Mapping[int, int] = field(default_factory=dict[int, int])

    def root(self, ref: Any) -> int:
        """Which ref it is, the same inside of branches and loops."""
        return self.roots.get(id(ref), id(ref))


@dataclass(frozen=True, eq=False)
class EnclosingJaxpr:
    """The jaxpr that an equation is in.

    Attributes:
      jaxpr: the jaxpr.
      outer: the scope of the equation that it is inside of, if that is known.
      operands: by the id of a variable, the operand of that equation that it stands for.
    """

    jaxpr: Any
    outer: EnclosingJaxpr | None = None
    operands: Mapping[int, Any] = field(default_factory=dict[int, Any])

    @cached_property
    def _makers(self) -> Mapping[int, Any]:
        return {id(out): eqn for eqn in self.jaxpr.eqns for out in eqn.outvars}

    @cached_property
    def _users(self) -> Mapping[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for eqn in self.jaxpr.eqns:
            for atom in eqn.invars:
                if not is_literal(atom):
                    found.setdefault(id(atom), []).append(eqn)
        return found

    def maker(self, atom: Any) -> Any:
        """The equation that makes an operand, or None: it comes from outside."""
        return None if is_literal(atom) else self._makers.get(id(atom))

    def is_constant(self, atom: Any) -> bool:
        """Whether it is one number, known when the kernel is written, maybe for every element."""
        if is_literal(atom):
            return True
        if self.outer is not None and id(atom) in self.operands:
            return self.outer.is_constant(self.operands[id(atom)])
        maker = self.maker(atom)
        if maker is None:
            return False
        inner = [each for each in sub_jaxprs(maker) if maker.primitive.name in _CALLED]
        if len(inner) == 1 and not maker.invars:
            return len(maker.outvars) == 1 and EnclosingJaxpr(inner[0]).is_constant(
                inner[0].outvars[0]
            )
        return maker.primitive.name in _SPREADING and all(map(self.is_constant, maker.invars))

    def users(self, var: Any) -> Sequence[Any]:
        """The equations that use a variable."""
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
      places: where it was made, as in ``Mutant``.
    """

    eqn: Any
    scope: EnclosingJaxpr
    kernel: KernelSite
    places: tuple[Spot, ...]

    @property
    def name(self) -> str:
        """Of the primitive."""
        return self.eqn.primitive.name

    def used(self, result: int = 0) -> bool:
        """Whether something uses a result."""
        var = self.eqn.outvars[result]
        return bool(self.scope.users(var)) or self.scope.is_result(var)

    def traced(self, function: Callable[..., Any], *atoms: Any) -> Replacement:
        """What a function of arrays makes of operands, as the equation's only result."""
        eqns, outs = equations_of(lambda *args: (function(*args),), atoms, self.eqn)
        return Replacement(eqns, outs)

    def replaced(self, **fields: Any) -> Replacement:
        """The same equation with other fields."""
        eqn = self.eqn.replace(**fields)
        return Replacement([eqn], list(eqn.outvars))


Operate = Callable[[EquationSite], Iterator[Change]]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A kind of mistake. Projects add their own by ``pytest_pallas_mutation_operators``.

    ``@operator`` and ``@call_operator`` make one of a function.

    Attributes:
      name: as in reports and in ``--pallas-mutate-operators``.
      mistake: what was done wrong, in a few words.
      before: a small piece of a right kernel.
      after: what it becomes.
      operate: the ways in which it changes an equation of a body.
      call: the ways in which it changes the call of a kernel; ``build`` gives another equation.
    """

    name: str
    mistake: str
    before: str
    after: str
    operate: Operate | None = None
    call: Callable[[KernelSite], Iterator[Change]] | None = None

    @property
    def function(self) -> Callable[..., Iterator[Change]]:
        """The function that was declared, ``operate`` or ``call``."""
        function = self.operate or self.call
        assert function is not None
        return function
