"""One trial of ``pytest-pallas new``: trace a function and its reference for a call.

A ``Lab`` traces each ``AttemptedCall`` once, as for a chip. Its ``Trace`` says whether function,
reference and grid accept the call. Nothing is run.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
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
from pytest_pallas.scaffold_read import (
    ArrayParameter,
    MeshSizes,
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
