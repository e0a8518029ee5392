"""Equations, jaxprs and kernels of a program, written anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

from pallas_sim.traces import Operand, Spot, in_body, is_indexer, is_literal, sub_jaxprs


def literal(value: Any, aval: Any) -> Any:
    """A scalar constant of an aval's dtype."""
    import numpy as np
    from jax.extend import core

    return core.Literal(np.asarray(value, aval.dtype), aval)


def variable(aval: Any) -> Any:
    """A new variable."""
    from jax.extend import core

    return core.Var(aval)


def with_equations(jaxpr: Any, eqns: Sequence[Any], outvars: Sequence[Any]) -> Any:
    """An open jaxpr with other equations and results."""
    return jaxpr.replace(eqns=list(eqns), outvars=list(outvars))


def with_jaxprs(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """An equation with every open jaxpr inside replaced by ``change`` of it.

    The index maps of a ``pallas_call`` are left alone.
    """
    params = {name: _changed(value, change) for name, value in eqn.params.items()}
    if all(params[name] is value for name, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=params)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    inner = getattr(value, "jaxpr", None)
    if hasattr(value, "eqns") and (inner is None or inner is value):
        return change(value)
    if hasattr(inner, "eqns") and hasattr(value, "consts"):  # JAX 0.11.2 has closed ones besides
        new = change(inner)
        return value if new is inner else value.replace(jaxpr=new)
    if isinstance(value, (tuple, list)):
        parts: list[Any] = [_changed(each, change) for each in value]  # pyright: ignore[reportUnknownVariableType]
        if all(new is old for new, old in zip(parts, value, strict=True)):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return value  # pyright: ignore[reportUnknownVariableType]
        return type(value)(parts)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value


def renamed(eqn: Any, names: Mapping[Any, Any]) -> Any:
    """An equation with other operands in place of some."""
    if not any(not is_literal(atom) and atom in names for atom in eqn.invars):
        return eqn
    return eqn.replace(
        invars=[atom if is_literal(atom) else names.get(atom, atom) for atom in eqn.invars],
        effects={_of_other(effect, names) for effect in eqn.effects},
    )


def _of_other(effect: Any, names: Mapping[Any, Any]) -> Any:
    """The effect of an equation with other operands: in JAX 0.12 it names the variable."""
    var = getattr(effect, "input", None)
    return effect.replace(names[var]) if var is not None and var in names else effect


def equations_of(
    function: Callable[..., Any], atoms: Sequence[Any], like: Any
) -> tuple[list[Any], list[Any]]:
    """The equations that a function of arrays traces to, on operands of a jaxpr, and its results.

    Args:
      function: of arrays with the shapes and dtypes of ``atoms``, and of references where these
        are; it returns a sequence of arrays.
      atoms: its operands.
      like: the equation whose place in the source they take.
    """
    from jax.core import ShapedArray
    from jax.extend import core, linear_util
    from jax.interpreters import partial_eval

    # As jax.make_jaxpr, without the jit around it, which takes most of the time.
    avals = [
        atom.aval
        if hasattr(atom.aval, "inner_aval")
        else ShapedArray(atom.aval.shape, atom.aval.dtype)
        for atom in atoms
    ]
    named = core.DebugInfo("equations_of", "equations_of", None, None)
    wrapped = linear_util.wrap_init(lambda *arrays: list(function(*arrays)), debug_info=named)
    traced, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, avals)
    names: dict[Any, Any] = dict(zip(traced.invars, atoms, strict=True))
    for var, const in zip(traced.constvars, consts, strict=True):
        names[var] = literal(const, var.aval)  # of scalars only; nothing here makes others
    eqns = [
        renamed(eqn, names).replace(source_info=like.source_info, ctx=like.ctx)
        for eqn in traced.eqns
    ]
    return eqns, [atom if is_literal(atom) else names.get(atom, atom) for atom in traced.outvars]


def guarded(eqn: Any, condition: Callable[[], Any], axes: Mapping[str, int]) -> Any:
    """A ``pallas_call`` whose programs do nothing where a condition does not hold.

    Args:
      eqn: the equation.
      axes: sizes of the mesh axes around it.
      condition: traces a scalar bool; it may ask for ``pl.program_id`` and ``pl.num_programs``.
    """
    from jax.core import eval_jaxpr
    from jax.experimental import pallas as pl
    from jax.extend import linear_util
    from jax.interpreters import partial_eval

    body = eqn.params["jaxpr"]

    def run(*refs: Any) -> list[Any]:
        @pl.when(condition())
        def _() -> None:
            eval_jaxpr(body, (), *refs)

        return []

    wrapped = linear_util.wrap_init(run, debug_info=body.debug_info)
    with in_body(eqn, axes):
        traced = partial_eval.trace_to_jaxpr_dynamic(wrapped, [var.aval for var in body.invars])
    new = traced[0].replace(debug_info=body.debug_info)
    return eqn.replace(params={**eqn.params, "jaxpr": new})


def with_index_map(eqn: Any, position: int, function: Callable[..., Sequence[Any]]) -> Any:
    """A ``pallas_call`` with another index map for a block.

    Args:
      eqn: the equation.
      position: of the block, inputs first.
      function: of the old map's results and the sizes of the grid; it returns as many results.
    """
    mapping = eqn.params["grid_mapping"]
    block = mapping.block_mappings[position]
    closed = block.index_map_jaxpr
    inner = getattr(closed, "jaxpr", closed)
    outs = list(inner.outvars)
    like = inner.eqns[-1] if inner.eqns else eqn
    eqns, results = equations_of(lambda *old: tuple(function(*old)), outs, like)
    new = inner.replace(eqns=[*inner.eqns, *eqns], outvars=list(results))
    changed = closed.replace(jaxpr=new) if hasattr(closed, "jaxpr") else new
    blocks = list(mapping.block_mappings)
    blocks[position] = block.replace(index_map_jaxpr=changed)
    return eqn.replace(
        params={**eqn.params, "grid_mapping": mapping.replace(block_mappings=tuple(blocks))}
    )


def closed_with(closed: Any, jaxpr: Any) -> Any:
    """A closed jaxpr with another open one inside."""
    return closed.replace(jaxpr=jaxpr)


# Which operands of a kernel's equation are what: indices, semaphores, devices.


def inner_operands(eqn: Any, jaxpr: Any) -> Sequence[Any] | None:
    """The operands of an equation that become the variables of a jaxpr inside, in their order.

    None where it is not known. The variables are ``inner_variables``.
    """
    name, operands = eqn.primitive.name, list(eqn.invars)
    variables = inner_variables(eqn, jaxpr)
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


def inner_variables(eqn: Any, jaxpr: Any) -> Sequence[Any]:
    """The variables of a jaxpr inside an equation that stand for operands of the equation."""
    if eqn.primitive.name == "run_scoped":  # what it allocates comes after what it closes over
        return [*jaxpr.constvars, *jaxpr.invars][: len(eqn.invars)]
    return list(jaxpr.invars)


def indexed(eqn: Any) -> tuple[Any, list[Any], list[Any]] | None:
    """The ref, the other operands, and the indices of a ``get``, ``swap`` or ``addupdate``.

    The indices are those of the last transform, an operand, or an object with ``start``, ``size``
    and ``stride`` each, with the size of the axis: pairs. None where it is not indexed so.
    """
    count = {"get": 1, "swap": 2, "addupdate": 2}.get(eqn.primitive.name)
    if count is None or "tree" not in eqn.params or "has_mask" in eqn.params:
        return None  # those of SparseCores are others
    transforms = eqn.params["tree"].unflatten(eqn.invars[count:])
    if not isinstance(transforms, tuple) or not transforms:
        return None
    last: Any = transforms[-1]  # pyright: ignore[reportUnknownVariableType]
    if not is_indexer(last):
        return None
    pairs: list[Any] = list(zip(last.indices, last.shape, strict=True))
    return eqn.invars[0], list(eqn.invars[1:count]), pairs


def reindexed(eqn: Any, axis: int, index: Any) -> Any:
    """The equation with another index for an axis; see ``indexed``."""
    import dataclasses

    import jax

    count = {"get": 1, "swap": 2, "addupdate": 2}[eqn.primitive.name]
    transforms = eqn.params["tree"].unflatten(eqn.invars[count:])
    last: Any = transforms[-1]
    indices = list(last.indices)
    old = indices[axis]
    if hasattr(old, "start"):
        index = dataclasses.replace(old, start=index)
    indices[axis] = index
    changed = (*transforms[:-1], dataclasses.replace(last, indices=tuple(indices)))
    leaves, structure = jax.tree.flatten(changed)
    return eqn.replace(
        invars=[*eqn.invars[:count], *leaves], params={**eqn.params, "tree": structure}
    )


def operand_groups(eqn: Any) -> Mapping[str, list[int]]:
    """Which operands of a DMA, a signal or a wait are what: positions by name.

    Names are ``source``, ``target``, ``target_semaphore``, ``source_semaphore`` and ``device`` of a
    ``dma_start`` or ``dma_wait``; ``semaphore``, ``value`` and ``device`` of the others.
    """
    names = {
        "dma_start": ("source", "target", "target_semaphore", "source_semaphore", "device"),
        "dma_wait": ("source", "target", "target_semaphore", "source_semaphore", "device"),
        "semaphore_signal": ("semaphore", "transforms", "value", "device", "core"),
        "semaphore_wait": ("semaphore", "transforms", "value", "decrement"),
    }.get(eqn.primitive.name)
    structure = eqn.params.get("tree", eqn.params.get("args_tree"))
    if names is None or structure is None:
        return {}
    parts = structure.unflatten([Operand(number) for number in range(len(eqn.invars))])
    return {name: list(_positions(part)) for name, part in zip(names, parts, strict=False)}


def _positions(part: Any) -> Iterator[int]:
    """The numbers in what was unflattened; a ref with its transforms is no pytree of JAX's."""
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


# What a mutant is, and what operators know of an equation.


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


# Declare that a function is a mutation operator, and find what a module declares.


type OperateOnCall = Callable[[KernelSite], Iterator[Change]]


def operator(name: str, *, mistake: str, before: str, after: str) -> Callable[[Operate], Operator]:
    """Declare that a function of an equation (``EquationSite``) in a kernel's body is an operator.

    Args:
      name: as in reports and in ``--pallas-mutate-operators``.
      mistake: what was done wrong, in a few words.
      before: a small piece of a right kernel.
      after: what it becomes.
    """

    def declare(operate: Operate) -> Operator:
        return Operator(name=name, mistake=mistake, before=before, after=after, operate=operate)

    return declare


def call_operator(
    name: str, *, mistake: str, before: str, after: str
) -> Callable[[OperateOnCall], Operator]:
    """Declare the same of a function of the call of a kernel (``KernelSite``); see ``operator``."""

    def declare(call: OperateOnCall) -> Operator:
        return Operator(name=name, mistake=mistake, before=before, after=after, call=call)

    return declare


def declared_in(module: ModuleType) -> tuple[Operator, ...]:
    """The operators that a module declares, in the order of its source."""
    found = (each for each in vars(module).values() if isinstance(each, Operator))
    return tuple(each for each in found if each.function.__module__ == module.__name__)
