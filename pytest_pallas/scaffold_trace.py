"""Find arguments that a function accepts, for ``pytest-pallas new``: nothing is run.

A ``Lab`` traces the function and its reference for each ``AttemptedCall`` once, as for a chip. Its
``Trace`` says whether function, reference and grid accept the call. ``search`` tries the likeliest
calls first.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS
from pallas_sim.traces import equations_inside, platform_of, written_for
from pytest_pallas.backends.analyzing import on_chip
from pytest_pallas.backends.ending import ending
from pytest_pallas.backends.execution import brief
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.tracing import abstract, jitted
from pytest_pallas.checks.cross import accepted
from pytest_pallas.grid.analysis import analyze_jaxpr
from pytest_pallas.grid.kernel_calls import KernelCall, kernel_calls
from pytest_pallas.loading import LoadedFunction
from pytest_pallas.scaffold_read import (
    ArrayParameter,
    Leaf,
    MeshSizes,
    Parameters,
    StaticParameter,
)

#: The limit of one trace in seconds.
TRACE_SECONDS = 10.0

type Shape = tuple[int, ...]


@dataclass(frozen=True)
class AttemptedCall:
    """A call to try.

    Attributes:
      shapes: of each leaf.
      dtypes: of each leaf.
      statics: keyword arguments of the kernel.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    statics: tuple[tuple[str, Any], ...] = ()

    def with_static(self, name: str, value: Any) -> AttemptedCall:
        """Change the value of a keyword."""
        others = tuple(static for static in self.statics if static[0] != name)
        return replace(self, statics=(*others, (name, value)))

    def __str__(self) -> str:
        arrays = [
            f"{dtype}[{', '.join(map(str, shape))}]"
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        statics = [f"{name}={value!r}" for name, value in self.statics]
        return ", ".join([*arrays, *statics]) or "no arguments"


@dataclass(frozen=True)
class Trace:
    """The result of an attempt.

    Attributes:
      error: why the function cannot be traced, or "".
      reference_problem: why the reference cannot be traced, or how its shapes differ from those of
        the kernel; or "".
      reference_raised: whether the reference cannot be traced.
      outputs: shapes of the function's results.
      kernels: number of Pallas kernels in it.
      wgmma: whether one of them multiplies by ``wgmma``, whose blocks are multiples of 64.
      wrong_blocks: whether a grid reads beyond an array, or leaves blocks out.
      illegal_blocks: whether the chip's compiler would refuse the shape of a block.
      platforms: the platforms of its kernels.
    """

    error: str = ""
    reference_problem: str = ""
    reference_raised: bool = False
    outputs: tuple[Shape, ...] = ()
    kernels: int = 0
    wgmma: bool = False
    wrong_blocks: bool = False
    illegal_blocks: bool = False
    platforms: frozenset[str] = frozenset()

    @property
    def right(self) -> bool:
        """Whether function, reference and grid accept the call."""
        return not (self.error or self.reference_problem or self.wrong_blocks)

    @property
    def refused(self) -> str:
        """Why the kernel or the reference raised, or ""."""
        return self.error or (self.reference_problem if self.reference_raised else "")


@dataclass
class Lab:
    """Traces attempts, each once.

    Attributes:
      function: the function.
      operands: its array parameters, in order.
      reference: its reference, or None.
      platform: the platform that it is traced for.
      known: the traces so far.
    """

    function: Callable[..., Any]
    operands: Sequence[ArrayParameter]
    reference: Callable[..., Any] | None = None
    platform: str = "tpu"
    known: dict[AttemptedCall, Trace] = field(default_factory=dict[AttemptedCall, Trace])

    def of(
        self, function: Callable[..., Any], operands: Sequence[ArrayParameter] | None = None
    ) -> Lab:
        """Make a lab for another function of the same arrays, without a reference."""
        return Lab(function, self.operands if operands is None else operands, None, self.platform)

    def trace(self, attempt: AttemptedCall) -> Trace:
        """Trace an attempt, or return its known trace."""
        if attempt not in self.known:
            self.known[attempt] = self._traced(attempt)
        return self.known[attempt]

    def _traced(self, attempt: AttemptedCall) -> Trace:
        arrays = [
            jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
            for shape, dtype in zip(attempt.shapes, attempt.dtypes, strict=True)
        ]
        target = TARGETS[DEFAULT_TARGETS[self.platform]]
        statics = {name: _passed(value) for name, value in attempt.statics}
        try:
            with on_chip(target), ending(TRACE_SECONDS):
                traced = self._jitted(self.function, arrays, statics)
                kernels = kernel_calls(traced.jaxpr)
        except Exception as error:  # tracing runs the user's code
            return Trace(error=_described(error))
        if refused := next(filter(None, map(_refused_by_triton, kernels)), ""):
            return Trace(error=refused)
        trace = Trace(outputs=_shapes(traced))
        if self.reference is not None:
            taken = {name: statics[name] for name in accepted(self.reference, list(statics))}
            try:
                with ending(TRACE_SECONDS):
                    shapes = _shapes(self._jitted(self.reference, arrays, taken))
            except Exception as error:  # tracing runs the user's code
                trace = replace(trace, reference_problem=_described(error), reference_raised=True)
            else:
                if shapes != trace.outputs:
                    differ = f"it returns the shapes {[*shapes]}, and the kernel {[*trace.outputs]}"
                    trace = replace(trace, reference_problem=differ)
        if not kernels:
            return trace
        analysis = analyze_jaxpr(traced.jaxpr, arrays, platform=self.platform, chip=target.name)
        return replace(
            trace,
            kernels=len(kernels),
            wgmma=any("wgmma_ref" in kernel.primitives for kernel in kernels),
            wrong_blocks=bool(analysis.errors),
            illegal_blocks=any(finding.kind == "tile" for finding in analysis.findings),
            platforms=frozenset(platform_of(kernel.eqn) or self.platform for kernel in kernels),
        )

    def _jitted(self, function: Any, arrays: Sequence[Any], statics: Mapping[str, Any]) -> Any:
        made = functools.partial(called_with, function, tuple(self.operands))
        static, shapes = abstract(Call(function=made, args=tuple(arrays), options=statics))
        return jitted(static).trace(shapes)


def called_with(
    function: Callable[..., Any], operands: Sequence[ArrayParameter], *leaves: Any, **statics: Any
) -> Any:
    """Call a function with its pytrees, made of arrays in order."""
    args, rest = list[Any](), iter(leaves)
    for operand in operands:
        value = operand.make(list(itertools.islice(rest, len(operand.leaves))))
        if operand.keyword:
            statics[operand.name] = value
        else:
            args.append(value)
    return function(*args, **statics)


def _passed(value: Any) -> Any:
    """Return the argument that a candidate stands for: a mesh of CPU devices for its sizes."""
    if not isinstance(value, MeshSizes):
        return value
    names, sizes = zip(*value.sizes, strict=True)
    devices = np.array(jax.devices("cpu")[: math.prod(sizes)]).reshape(sizes)
    return jax.sharding.Mesh(devices, names)


def _refused_by_triton(kernel: KernelCall) -> str:
    """Explain why Triton refuses a kernel for the size of an array in it, or ""."""
    if written_for(kernel.eqn) != "Triton":
        return ""
    for eqn in equations_inside(kernel.eqn):
        for var in eqn.outvars:
            size = math.prod(getattr(var.aval, "shape", ()))
            if size & (size - 1):
                return f"Triton takes no array of {size} elements, which is no power of two"
    return ""


def _shapes(traced: Any) -> tuple[Shape, ...]:
    return tuple(tuple(leaf.shape) for leaf in jax.tree.leaves(traced.out_info))


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {brief(str(error), lines=2, width=160)}".strip()


# The search for a call.

#: Sizes of all unknown axes of the first attempts, most likely first. Blocks are seldom larger.
SIZES = (128, 256, 512, 64, 1024, 16, 8, 1)

#: Limits of the search: attempts, and seconds.
MOST_TRIES, MOST_SECONDS = 600, 40.0

#: After so many more attempts, a call is taken although its reference or grid is wrong.
_PATIENCE = 60

#: Dtypes that arrays of floats may have, besides the one that was accepted.
FLOATS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Candidate:
    """Arguments of a function, and the trace of a call with them.

    Attributes:
      lab: traces the function.
      statics: the required parameters that are no arrays.
      attempt: a call.
      trace: its trace.
      size: the size of all axes of unknown size.
      errors: the errors of the attempts with their numbers, the most frequent first.
      tries: the number of attempts.
      ignored: the declarations of arrays with which no call can be traced.
    """

    lab: Lab
    statics: tuple[StaticParameter, ...]
    attempt: AttemptedCall
    trace: Trace
    size: int
    errors: tuple[tuple[str, int], ...] = ()
    tries: int = 0
    ignored: tuple[str, ...] = ()

    @property
    def operands(self) -> Sequence[ArrayParameter]:
        """The parameters that are arrays, in order."""
        return self.lab.operands

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """All arrays, in order."""
        return tuple(leaf for operand in self.operands for leaf in operand.leaves)


def search(loaded: LoadedFunction, parameters: Parameters) -> Candidate:
    """Find the first arguments that a function accepts, the likeliest first.

    Arguments with a wrong reference (it raises, or returns other shapes) or with errors of the grid
    are taken only if there are no better ones. If the function accepts none, ``trace.error`` of the
    result is the error of the likeliest arguments.
    """
    tried = _Search(loaded, time.monotonic() + MOST_SECONDS)
    declared = _declared(parameters)
    first: Candidate | None = None
    trusted = True
    for trusted, platform in itertools.product((True, False), ("tpu", "gpu")):
        if tried.second_best is not None or tried.over or not (trusted or declared):
            break
        for choice in _in_order(parameters.choices):
            for candidate in tried.candidates(choice, platform, trusted=trusted):
                first = first or candidate
                if candidate.trace.right:
                    return tried.finished(candidate, () if trusted else declared)
    best = tried.second_best or first
    if best is None:  # it takes nothing
        lab, attempt = Lab(loaded.function, (), loaded.reference_function), AttemptedCall((), ())
        best = Candidate(lab, (), attempt, lab.trace(attempt), SIZES[0])
    return tried.finished(best, declared if tried.second_best and not trusted else ())


@dataclass
class _Search:
    """A search: the attempts so far, and the first call that is accepted, but not right."""

    loaded: LoadedFunction
    end: float
    tries: int = 0
    errors: dict[str, int] = field(default_factory=dict[str, int])
    second_best: Candidate | None = None
    after: int = 0

    @property
    def over(self) -> bool:
        patient = self.second_best is not None and self.tries - self.after > _PATIENCE
        return patient or self.tries >= MOST_TRIES or time.monotonic() > self.end

    def finished(self, candidate: Candidate, ignored: tuple[str, ...]) -> Candidate:
        errors = tuple(sorted(self.errors.items(), key=lambda item: -item[1]))
        return replace(candidate, errors=errors, tries=self.tries, ignored=ignored)

    def candidates(
        self, choice: Sequence[ArrayParameter | StaticParameter], platform: str, *, trusted: bool
    ) -> Iterator[Candidate]:
        """Try the calls for one choice of parameters."""
        reference = self.loaded.reference_function
        statics = tuple(one for one in choice if isinstance(one, StaticParameter))
        # Numbers are given by name, and so is each array after one.
        first = next((at for at, one in enumerate(choice) if one in statics), len(choice))
        operands = tuple(
            replace(one, keyword=one.keyword or at > first)
            for at, one in enumerate(choice)
            if isinstance(one, ArrayParameter)
        )
        lab = Lab(self.loaded.function, operands, reference, platform)
        leaves = [leaf for operand in operands for leaf in operand.leaves]
        floats = [dtype for leaf in leaves for dtype in leaf.dtypes if is_float(dtype)]
        axes = [
            _sizes(leaves, alone=reference is None),
            *([*static.values] or [None] for static in statics),
            *(_kinds(leaf, (*floats, *FLOATS)[0], trusted=trusted) for leaf in leaves),
        ]
        for size, *rest in _in_order(axes):
            if self.over:
                return
            values, kinds = rest[: len(statics)], rest[len(statics) :]
            attempt = AttemptedCall(
                tuple(tuple(int(d) if d.isdigit() else size for d in dims) for dims, _ in kinds),
                tuple(dtype for _, dtype in kinds),
                tuple((s.name, value) for s, value in zip(statics, values, strict=True)),
            )
            trace = lab.trace(attempt)
            self.tries += 1
            candidate = Candidate(lab, statics, attempt, trace, size)
            if trace.error:
                self.errors[trace.error] = self.errors.get(trace.error, 0) + 1
            elif self.second_best is None:
                self.second_best, self.after = candidate, self.tries
            yield candidate


def _declared(parameters: Parameters) -> tuple[str, ...]:
    """List the shapes of arrays in annotations, the docstring and the source."""
    return tuple(
        f"{leaf.source} says {leaf.name}: ({', '.join(dim or '?' for dim in leaf.dims or ())})"
        for choice in parameters.choices
        for operand in choice
        if isinstance(operand, ArrayParameter)
        for leaf in operand.leaves
        if leaf.source
    )


def _kinds(leaf: Leaf, usual: str, *, trusted: bool) -> list[tuple[tuple[str, ...], str]]:
    """List the dims and dtypes of an array to try, best first; ``usual``: the dtype of others."""
    ranks = [("",) * rank for rank in ((1, 2, 0, 3) if leaf.integers else (2, 3, 1, 4, 0))]
    likely = {"integers": ("int32", usual), "truths": ("bool", "int32", usual)}
    if leaf.dims is not None and trusted:
        ranks = [leaf.dims]
    dtypes = leaf.dtypes or likely.get(leaf.kind, (usual, "int32"))
    pairs = list(itertools.product(range(len(ranks)), range(len(dtypes))))
    pairs.sort(key=lambda pair: (pair[0] + 2 * pair[1], pair[0]))
    return [(ranks[rank], dtypes[dtype]) for rank, dtype in pairs]


def _sizes(leaves: Sequence[Leaf], *, alone: bool) -> list[int]:
    """List the sizes to try. Without a reference, only several blocks show which axes are tied.

    Arrays with many axes have smaller sizes: their grids would have millions of programs.
    """
    many = any(len(leaf.dims or ()) > 3 for leaf in leaves)
    first = {(True, False): 512, (False, True): 64}.get((alone, many), SIZES[0])
    return sorted(SIZES, key=lambda size: size != first)


def _in_order(choices: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield all combinations, those of the first choices first."""
    start: tuple[int, ...] = (0,) * len(choices)
    heap: list[tuple[int, tuple[int, ...]]] = [(0, start)]
    seen: set[tuple[int, ...]] = {start}
    while heap:
        _, positions = heapq.heappop(heap)
        yield tuple(parts[at] for parts, at in zip(choices, positions, strict=True))
        for axis, at in enumerate(positions):
            new = (*positions[:axis], at + 1, *positions[axis + 1 :])
            if at + 1 < len(choices[axis]) and new not in seen:
                seen.add(new)
                heapq.heappush(heap, (sum(new), new))


def is_float(name: str) -> bool:
    """Whether a dtype is one of floats."""
    return jnp.issubdtype(jnp.dtype(name), jnp.floating)
