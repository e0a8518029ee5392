"""Guess the spec of a function by trial traces, for ``pytest-pallas new``: nothing is run.

``guess`` has four steps. Each traces the function as for a chip, and its reference, to see which
calls are accepted:

1. ``search`` finds arguments that the function accepts, the likeliest first: the kind of each
   parameter, ranks, dtypes, and one size for all axes without a name.
2. ``_dims_of`` finds which axes must have the same size. If the function accepts another size for
   one axis alone, that axis is free. Otherwise, it looks for the fewest other axes that must change
   with it. Then sizes around usual blocks show whether any size is accepted.
3. ``_keywords`` finds the accepted values of block sizes and options, for all sizes.
4. The rest of a spec: dtypes, whether ``jax.vmap`` works, derivatives, and a function of JAX that
   may be the reference.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from pytest_pallas.checks.cross import accepted
from pytest_pallas.draw.meshes import DEVICES, MeshAxes
from pytest_pallas.loading import LoadedFunction, innermost
from pytest_pallas.scaffold_read import (
    MESH_SIZE,
    ArrayParameter,
    MeshSizes,
    StaticParameter,
    multiples,
    parameters_of,
)
from pytest_pallas.scaffold_trace import (
    FLOATS,
    Candidate,
    Trace,
    called_with,
    is_float,
    search,
)

#: Blocks of ``wgmma`` are multiples of this.
_WGMMA_ROWS = 64

#: Sizes around blocks, to see whether any size is accepted.
_ODD = (1, 7, 100, 129, 257)

#: Multiples to try if not every size is accepted.
_TILES = (8, 16, 32, 64, 128, 256, 512)

#: How many other axes may have the size of one, and how many sets of so many are tried.
_MOST_PARTNERS, _MOST_TRIED = 4, 60

#: Names for the axes of an array without names, by its rank; and more names.
_USUAL = {1: "n", 2: "mn", 3: "bmn", 4: "bhsd", 5: "abcmn"}
_MORE = "kpqrtuvwxyzcefgijlo"

#: An axis: number of the array, and of the axis. Axes that must have the same size are a group.
type Axis = tuple[int, int]
type Group = tuple[Axis, ...]

#: Values of keyword arguments, by name.
type Keywords = dict[str, tuple[Any, ...]]


# The axes that must have the same size, and the accepted sizes.


@dataclass(frozen=True)
class Dim:
    """Axes that have the same size.

    Attributes:
      name: for the shapes.
      axes: the axes.
      multiple_of: sizes must be multiples of it; 1 if any size is accepted.
      sizes: the only accepted sizes; empty if ``multiple_of`` tells.
      least: the least accepted size, if all larger ones are accepted.
      refused: a size that the function refused, and its error; None if it refused none.
    """

    name: str
    axes: Group
    multiple_of: int = 1
    sizes: tuple[int, ...] = ()
    least: int = 1
    refused: tuple[int, str] | None = None


def _dims_of(call: Candidate) -> tuple[tuple[Dim, ...], tuple[str, ...]]:
    """Find the dims of a call that the function accepts, and constraints between them."""
    groups, literal = _groups(call)
    tied = _merged(call, _tied(call, groups))
    relations = dict(_relations(call, tied))
    dims: list[Dim] = []
    for group, name in zip(tied, _names(call, tied), strict=True):
        partners = [other for pair in relations if group in pair for other in pair]
        dims.append(_sized(call, Dim(name, group), [group, *partners]))
    label = {dim.axes: dim.name for dim in dims}
    constraints = [text.format(label[a], label[b]) for (a, b), text in relations.items()]
    constraints += [f"{dim.name} >= {dim.least}" for dim in dims if dim.least > 1]
    dims += [Dim(str(size), group) for group, size in literal.items()]
    return tuple(dims), tuple(constraints)


def _refusal(call: Candidate, sizes: Mapping[Axis, int]) -> str:
    """Explain why the call with other sizes of some axes is not right, or ""."""
    trace = _resized(call, sizes)
    if trace.error or (trace.reference_problem and not call.trace.reference_problem):
        return trace.error or trace.reference_problem
    beyond = trace.wrong_blocks and not call.trace.wrong_blocks
    return "its grid does not fit the arrays" if beyond else ""


def _resized(call: Candidate, sizes: Mapping[Axis, int]) -> Trace:
    shapes = tuple(
        tuple(sizes.get((number, axis), size) for axis, size in enumerate(shape))
        for number, shape in enumerate(call.attempt.shapes)
    )
    return call.lab.trace(replace(call.attempt, shapes=shapes))


def _accepts(call: Candidate, groups: Sequence[Group], size: int) -> bool:
    """Whether the function accepts another size of some groups."""
    return not _refusal(call, _sizes_of(groups, size))


def _sizes_of(groups: Sequence[Group], size: int) -> dict[Axis, int]:
    return {axis: size for group in groups for axis in group}


def _groups(call: Candidate) -> tuple[list[Group], dict[Group, int]]:
    """Group the axes by name, if a name stands for a size; also return axes of fixed size."""
    groups: dict[object, list[Axis]] = {}
    literal: dict[Group, int] = {}
    for number, (leaf, shape) in enumerate(zip(call.leaves, call.attempt.shapes, strict=True)):
        dims = leaf.dims if leaf.dims and len(leaf.dims) == len(shape) else ("",) * len(shape)
        for axis, dim in enumerate(dims):
            if dim.isdigit():
                literal[((number, axis),)] = int(dim)
            else:
                key = dim if dim and leaf.named else (number, axis)
                groups.setdefault(key, []).append((number, axis))
    return [tuple(axes) for axes in groups.values()], literal


def _tied(call: Candidate, groups: Sequence[Group]) -> list[Group]:
    """Join the groups whose sizes must be the same."""
    rest, tied = list(groups), list[tuple[Axis, ...]]()
    while rest:
        needed = _needed(call, rest[0], rest)
        tied.append(tuple(sorted(axis for group in needed for axis in group)))
        rest = [group for group in rest if group not in needed]
    return sorted(tied)


def _needed(call: Candidate, group: Group, rest: Sequence[Group]) -> list[Group]:
    """Find the groups that must have the size of one, which is included."""
    usual = call.size
    sizes = [size for size in (2 * usual, usual // 2, 3 * usual // 2) if size not in (0, usual)]
    # Axes of the same position first, such as the batch of q, k and v.
    partners = sorted(
        (other for other in rest if other != group),
        key=lambda other: min(abs(a - b) for _, a in group for _, b in other),
    )
    for count in range(min(len(partners), _MOST_PARTNERS) + 1):
        for more in itertools.islice(itertools.combinations(partners, count), _MOST_TRIED):
            if any(_accepts(call, [group, *more], size) for size in sizes):
                return [group, *more]
    if any(_accepts(call, rest, size) for size in sizes):
        return list(rest)
    return [group]  # it has one size only


def _merged(call: Candidate, tied: Sequence[Group]) -> list[Group]:
    """Join a group that may be no larger than another one with it, if there is no reference.

    Without one, the kernel accepts an array that is larger than its blocks need.
    """
    merged = list(tied)
    for (big, small), text in _relations(call, tied) if call.lab.reference is None else ():
        if "%" not in text and big in merged and small in merged:
            merged = [group for group in merged if group not in (big, small)]
            merged.append(tuple(sorted((*big, *small))))
    return sorted(merged)


def _relations(call: Candidate, tied: Sequence[Group]) -> Iterator[tuple[tuple[Group, Group], str]]:
    """Find pairs of dims where one must divide the other, or be no larger."""
    size = call.size
    double = [group for group in tied if _accepts(call, [group], 2 * size)]
    half = [group for group in tied if _accepts(call, [group], size // 2)]
    larger = [group for group in double if group not in half]
    smaller = [group for group in half if group not in double]
    for pair in itertools.product(larger, smaller):
        if _accepts(call, pair, size // 2) and _accepts(call, pair, 2 * size):
            divides = not _accepts(call, pair[:1], 3 * size // 2)
            yield pair, "{0} % {1} = 0" if divides else "{1} <= {0}"


def _sized(call: Candidate, dim: Dim, groups: Sequence[Group]) -> Dim:
    """Find the sizes of a dim that the function does not refuse.

    A grid that does not fit and outputs of wrong shapes do not count: tests must find such
    mistakes. So if only small sizes are refused, larger sizes need not be multiples, unless the
    docstring says so: a function that forgets its last rows accepts any size from one block on.
    """

    @functools.cache
    def refused(size: int) -> str:
        return _resized(call, _sizes_of(groups, size)).refused

    wrong = [size for size in _ODD if refused(size)]
    if call.trace.refused or not wrong:
        return dim
    dim = replace(dim, refused=(wrong[0], refused(wrong[0])))
    fine = [size for size in _ODD if size not in wrong]
    documented = multiples(inspect.getdoc(innermost(call.lab.function)))
    if fine and wrong[-1] < fine[0] and not documented:
        below, least = wrong[-1], fine[0]
        while least - below > 1:
            middle = (least + below) // 2
            below, least = (middle, least) if refused(middle) else (below, middle)
        return replace(dim, least=least)
    for tile in _TILES:
        if not any(refused(tile * times) for times in (1, 2, 3)):
            return replace(dim, multiple_of=tile)
    every = {*_ODD, *_TILES, 2, 4, 384, 768, 1024, call.size}
    sizes = tuple(sorted(size for size in every if not refused(size)))
    return replace(dim, sizes=sizes or (call.size,))


def _names(call: Candidate, groups: Sequence[Group]) -> list[str]:
    """Name each group as the annotation, docstring or source does, or by a letter."""
    names: list[str] = []
    for group in groups:
        declared = [_declared_name(call, axis) for axis in group]
        ranks = [(len(call.attempt.shapes[number]), axis) for number, axis in group]
        usual = [_USUAL[rank][axis] for rank, axis in ranks if rank in _USUAL]
        # The axis that a product sums over has a name of its own: x (m, k) and y (k, n).
        contracted = len({axis for _, axis in group}) > 1 and len(group) == 2
        choices = [*filter(None, declared), *(["k"] if contracted else []), *usual, *_MORE]
        names.append(next((name for name in choices if name not in names), f"d{len(names)}"))
    return names


def _declared_name(call: Candidate, axis: Axis) -> str:
    number, position = axis
    dims = call.leaves[number].dims or ()
    if len(dims) != len(call.attempt.shapes[number]):
        return ""
    name = dims[position]
    return "" if not name.isidentifier() or name in ("dtype", "values", "seed") else name


# The guess.


@dataclass(frozen=True)
class Guess:
    """The facts for a test module.

    Attributes:
      loaded: the function.
      call: arguments that it accepts, or the likeliest ones if it accepts none.
      dims: the dims of its arrays.
      constraints: between its dims, in the language of shapes.
      dtypes: the dtypes of all arrays, one row for each combination that it accepts.
      tuning: values of keyword arguments of the kernel only.
      options: values of keyword arguments of kernel and reference.
      vmap_error: why ``jax.vmap`` of it cannot be traced, or "".
      differentiable: positions of the arrays of floats, if it defines a derivative of its own.
      left_out: texts on options that it accepts for some sizes only.
      alike: a function of JAX of the same name that returns the same shapes, or "".
      seconds: how long it took.
    """

    loaded: LoadedFunction
    call: Candidate
    dims: tuple[Dim, ...]
    constraints: tuple[str, ...]
    dtypes: tuple[tuple[str, ...], ...]
    tuning: Keywords
    options: Keywords
    vmap_error: str = ""
    differentiable: tuple[int, ...] = ()
    alike: str = ""
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def traced(self) -> bool:
        """Whether the function accepts the arguments."""
        return not self.call.trace.error

    @property
    def mesh_parameter(self) -> str:
        """The name of the parameter that is a mesh, or ""."""
        statics = self.call.attempt.statics
        return next((name for name, value in statics if isinstance(value, MeshSizes)), "")

    @cached_property
    def sharded(self) -> tuple[Dim, ...]:
        """The dims whose sizes must be multiples of the first axis of its mesh."""
        dims = [dim for dim in self.dims if dim.multiple_of > 1]
        if not self.mesh_parameter or self._refusal_on(3, dims, 3):
            return ()
        return tuple(
            dim
            for dim in dims
            if self._refusal_on(3, [other for other in dims if other is not dim], 3, dim)
        )

    @cached_property
    def mesh_axes(self) -> MeshAxes:
        """The meshes that it accepts, as a spec has them; empty if it takes none."""
        name = self.mesh_parameter
        if not name:
            return {}
        (first, _), *others = dict(self.call.attempt.statics)[name].sizes
        rest = math.prod(size for _, size in others)
        sizes = tuple(
            size
            for size in DEVICES
            if size * rest <= max(DEVICES) and not self._refusal_on(size, self.sharded, size)
        )
        return {first: sizes if len(sizes) > 1 else (*sizes, MESH_SIZE)[0], **dict(others)}

    def _refusal_on(
        self, devices: int, dims: Iterable[Dim], times: int, four: Dim | None = None
    ) -> str:
        """Explain why the function does not accept a mesh, with so many multiples of some dims.

        ``four`` is a dim with four multiples.
        """
        name = self.mesh_parameter
        mesh: MeshSizes = dict(self.call.attempt.statics)[name]
        attempt = self.call.attempt.with_static(name, mesh.resized(devices))
        sizes = {axis: times * dim.multiple_of for dim in dims for axis in dim.axes}
        if four is not None:
            sizes |= dict.fromkeys(four.axes, 4 * four.multiple_of)
        return _resized(replace(self.call, attempt=attempt), sizes).error


def guess(loaded: LoadedFunction) -> Guess:
    """Guess the arguments of a function.

    Raises:
      OptionError: it has no signature.
    """
    begin = time.monotonic()
    parameters = parameters_of(loaded.function)
    call = search(loaded, parameters)
    if call.trace.error:
        # The declared dims: those of a function that accepts every call.
        lab = call.lab.of(lambda *leaves, **_: jax.tree.leaves(leaves))
        dims, constraints = _dims_of(replace(call, lab=lab, trace=lab.trace(call.attempt)))
        tuning, options = _keywords(loaded, call, ())
        made = Guess(loaded, call, dims, constraints, (call.attempt.dtypes,), tuning, options)
    else:
        dims, constraints = _dims_of(call)
        tuning, options = _keywords(loaded, call, parameters.optional)
        options, left_out = _for_all_sizes(call, dims, options)
        made = Guess(
            loaded,
            call,
            dims,
            constraints,
            _dtypes(call),
            tuning,
            options,
            _vmap_error(call),
            _differentiable(loaded.function, call),
            "" if loaded.reference else _alike(loaded.short, call),
            left_out,
        )
    return replace(made, seconds=time.monotonic() - begin)


def _dtypes(call: Candidate) -> tuple[tuple[str, ...], ...]:
    """Find the dtypes that all arrays may have together."""
    rows = [call.attempt.dtypes]
    declared = [leaf.dtypes for leaf in call.leaves]
    for other in dict.fromkeys([*FLOATS, *itertools.chain.from_iterable(declared)]):
        row = tuple(
            other if (other in names if names else other in FLOATS and is_float(mine)) else mine
            for mine, names in zip(call.attempt.dtypes, declared, strict=True)
        )
        if row not in rows and call.lab.trace(replace(call.attempt, dtypes=row)).right:
            rows.append(row)
    return tuple(rows)


def _keywords(
    loaded: LoadedFunction, call: Candidate, optional: Sequence[StaticParameter]
) -> tuple[Keywords, Keywords]:
    """Find the values of tuning and of options that the function accepts.

    Tuning is a keyword that the reference does not take; without a reference, its name decides.
    """
    tuning: Keywords = {}
    options: Keywords = {}
    values_of_call = dict(call.attempt.statics)
    reference = loaded.reference_function

    def is_shared(name: str, otherwise: bool) -> bool:
        return bool(accepted(reference, [name])) if reference is not None else otherwise

    for static in call.statics:
        value = values_of_call[static.name]
        if isinstance(value, MeshSizes):
            continue
        if not is_shared(static.name, not static.tuning):
            tuning[static.name] = (value,)
            continue
        others = [v for v in static.values if v != value and _fine(call, static, v)]
        # All possible values, and no numbers to try.
        enumerated = not static.tuning and (
            all(isinstance(value, bool) for value in static.values)
            or not any(isinstance(value, (int, float, tuple)) for value in static.values)
        )
        options[static.name] = (value, *(others if enumerated else ()))
    for static in optional:
        candidates = static.values
        if call.trace.wgmma and static.tuning and isinstance(static.default, int):
            candidates = tuple(value for value in candidates if not value % _WGMMA_ROWS)
        values = tuple(value for value in candidates if _fine(call, static, value))
        if len(values) < 2:
            continue
        if is_shared(static.name, False):
            options[static.name] = values
        elif (
            static.tuning
            and not isinstance(static.default, bool)
            and static.name not in ("backend", "name")
        ):
            tuning[static.name] = values
    return tuning, options


def _fine(call: Candidate, static: StaticParameter, value: Any) -> bool:
    """Whether the function accepts a value of a keyword, and its blocks remain legal."""
    trace = call.lab.trace(call.attempt.with_static(static.name, value))
    illegal = trace.illegal_blocks and not call.trace.illegal_blocks
    same = trace.reference_problem == call.trace.reference_problem
    return not trace.error and not illegal and same


def _for_all_sizes(
    call: Candidate, dims: Sequence[Dim], options: Keywords
) -> tuple[Keywords, tuple[str, ...]]:
    """Leave out values of options that the function refuses for some sizes; also return why."""
    kept: Keywords = {}
    left_out: list[str] = []
    required = {static.name for static in call.statics}
    for name, values in options.items():
        problems = [_refused_with(call, dims, name, v) if len(values) > 1 else "" for v in values]
        pairs = list(zip(values, problems, strict=True))
        left_out += [f"{name}={value!r} is left out: {why}" for value, why in pairs if why]
        fine = tuple(value for value, why in pairs if not why)
        if len(fine) > 1 or name in required:
            kept[name] = fine or values
    return kept, tuple(left_out)


def _refused_with(call: Candidate, dims: Sequence[Dim], name: str, value: Any) -> str:
    """Find a size for which the function refuses a call only with an option; or ""."""
    other = replace(call, attempt=call.attempt.with_static(name, value))
    for dim, size in itertools.product(dims, (2 * call.size, call.size // 2)):
        sizes = dict.fromkeys(dim.axes, size)
        if size and not _refusal(call, sizes) and (problem := _refusal(other, sizes)):
            return f"for {dim.name}={size}, {problem}"
    return ""


def _vmap_error(call: Candidate) -> str:
    """Try ``jax.vmap`` with all arrays and with the first one batched; returns the error, or ""."""
    shapes, operands = call.attempt.shapes, tuple(call.operands)
    if not shapes:
        return "it takes no arrays"
    leaves = [ArrayParameter(leaf.name, (leaf,)) for leaf in call.leaves]
    for axes in ((0,) * len(shapes), (0, *(None,) * (len(shapes) - 1))):

        def vmapped(*rows: Any, axes: tuple[int | None, ...] = axes, **statics: Any) -> Any:
            function = functools.partial(called_with, call.lab.function, operands, **statics)
            return jax.vmap(function, in_axes=axes)(*rows)

        batched = tuple(
            shape if axis is None else (2, *shape) for shape, axis in zip(shapes, axes, strict=True)
        )
        trace = call.lab.of(vmapped, leaves).trace(replace(call.attempt, shapes=batched))
        if trace.error:
            return trace.error
    return ""


def _differentiable(function: Any, call: Candidate) -> tuple[int, ...]:
    """List the positions of floats, if the function has a derivative of its own."""
    own: Any = function
    while own is not None and not isinstance(own, (jax.custom_vjp, jax.custom_jvp)):
        own = getattr(own, "__wrapped__", None)
    if own is None:
        return ()
    return tuple(n for n, name in enumerate(call.attempt.dtypes) if is_float(name))


def _alike(name: str, call: Candidate) -> str:
    """Find a function of JAX of the same name that returns the same shapes."""
    for affix in ("_pallas", "_kernel", "pallas_"):
        name = name.replace(affix, "")
    for prefix, module in (("jax.nn", jax.nn), ("jnp", jnp), ("jax.lax", jax.lax)):
        function = getattr(module, name, None)
        if callable(function):
            trace = call.lab.of(function).trace(replace(call.attempt, statics=()))
            if not trace.error and trace.outputs == call.trace.outputs:
                return f"{prefix}.{name}"
    return ""
