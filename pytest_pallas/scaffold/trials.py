"""Trial calls of a function: traced as for a chip, never run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS
from pallas_sim.traces import platform_of
from pytest_pallas.backends.analyzing import on_chip
from pytest_pallas.backends.ending import ending
from pytest_pallas.backends.execution import brief
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.tracing import abstract, jitted
from pytest_pallas.checks.cross import accepted
from pytest_pallas.grid.analysis import analyze_jaxpr
from pytest_pallas.grid.kernel_calls import kernel_calls
from pytest_pallas.scaffold.parameters import Operand

#: Time limit in seconds for one trace.
SECONDS = 10.0

type Shape = tuple[int, ...]


@dataclass(frozen=True)
class Attempt:
    """A call to try.

    Attributes:
      shapes: of each leaf.
      dtypes: of each leaf.
      statics: keyword arguments of the kernel.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    statics: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        arrays = [
            f"{dtype}[{', '.join(map(str, shape))}]"
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        words = [*arrays, *(f"{name}={value!r}" for name, value in self.statics)]
        return ", ".join(words) or "no arguments"


@dataclass(frozen=True)
class Trace:
    """What came of an attempt.

    Attributes:
      error: why the function cannot be traced, or "".
      reference_error: why its reference cannot be, or "".
      differs: how the shapes differ that the reference returns, or "".
      outputs: shapes and dtypes of what the function returned.
      kernels: number of Pallas kernels in it.
      wrong_blocks: whether a grid reads beyond an array, or leaves blocks out.
      illegal_blocks: whether the chip's compiler would refuse the shape of a block.
      platforms: the platforms of its kernels.
    """

    error: str = ""
    reference_error: str = ""
    differs: str = ""
    outputs: tuple[tuple[Shape, str], ...] = ()
    kernels: int = 0
    wrong_blocks: bool = False
    illegal_blocks: bool = False
    platforms: frozenset[str] = frozenset()

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.error or self.reference_problem or self.wrong_blocks)

    @property
    def reference_problem(self) -> str:
        """Why the reference does not go with the kernel, or ""."""
        return self.reference_error or self.differs

    @property
    def refused(self) -> str:
        """Why the kernel or the reference raised, or ""."""
        return self.error or self.reference_error


@dataclass
class Lab:
    """Traces attempts, each once.

    Attributes:
      function: the function.
      operands: its array parameters, in order.
      reference: its reference, or None.
      platform: what it is traced for.
      known: the traces so far.
    """

    function: Callable[..., Any]
    operands: Sequence[Operand]
    reference: Callable[..., Any] | None = None
    platform: str = "tpu"
    known: dict[Attempt, Trace] = field(default_factory=dict[Attempt, Trace])

    @property
    def tries(self) -> int:
        """The number of traces so far."""
        return len(self.known)

    def trace(self, attempt: Attempt) -> Trace:
        """What comes of an attempt."""
        if attempt not in self.known:
            self.known[attempt] = self._traced(attempt)
        return self.known[attempt]

    def _traced(self, attempt: Attempt) -> Trace:
        arrays = [
            jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
            for shape, dtype in zip(attempt.shapes, attempt.dtypes, strict=True)
        ]
        target = TARGETS[DEFAULT_TARGETS[self.platform]]
        try:
            with on_chip(target), ending(SECONDS):
                traced = self._jitted(self.function, arrays, dict(attempt.statics))
                found = kernel_calls(traced.jaxpr)
                outputs = _types(traced.out_info)
        except Exception as error:  # tracing runs the user's code
            return Trace(error=_words(error))
        reference_error, differs = self._of_reference(attempt, arrays, outputs)
        if not found:
            return Trace(reference_error=reference_error, differs=differs, outputs=outputs)
        analysis = analyze_jaxpr(traced.jaxpr, arrays, platform=self.platform, chip=target.name)
        return Trace(
            reference_error=reference_error,
            differs=differs,
            outputs=outputs,
            kernels=len(found),
            wrong_blocks=bool(analysis.errors),
            illegal_blocks=any(finding.kind == "tile" for finding in analysis.findings),
            platforms=frozenset(platform_of(each.eqn) or self.platform for each in found),
        )

    def _of_reference(
        self, attempt: Attempt, arrays: Sequence[Any], outputs: Any
    ) -> tuple[str, str]:
        """What the reference raises, and how its shapes differ; "" if not at all."""
        if self.reference is None:
            return "", ""
        statics = dict(attempt.statics)
        taken = {name: statics[name] for name in accepted(self.reference, list(statics))}
        try:
            with ending(SECONDS):
                theirs = _types(self._jitted(self.reference, arrays, taken).out_info)
        except Exception as error:  # tracing runs the user's code
            return _words(error), ""
        mine, wanted = ([shape for shape, _ in each] for each in (outputs, theirs))
        words = f"it returns the shapes {wanted}, and the kernel {mine}"
        return "", "" if mine == wanted else words

    def _jitted(self, function: Any, arrays: Sequence[Any], statics: Mapping[str, Any]) -> Any:
        made = functools.partial(called, function, tuple(self.operands))
        static, given = abstract(Call(function=made, args=tuple(arrays), options=statics))
        return jitted(static).trace(given)


def called(
    function: Callable[..., Any], operands: Sequence[Operand], *leaves: Any, **statics: Any
) -> Any:
    """Call a function with its arrays as leaves in order, from which its pytrees are made."""
    args: list[Any] = []
    rest = list(leaves)
    for operand in operands:
        own, rest = rest[: len(operand.leaves)], rest[len(operand.leaves) :]
        value = operand.make(own)
        if operand.keyword:
            statics[operand.name] = value
        else:
            args.append(value)
    return function(*args, **statics)


def _types(info: Any) -> tuple[tuple[Shape, str], ...]:
    return tuple((tuple(leaf.shape), str(leaf.dtype)) for leaf in jax.tree.leaves(info))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {brief(str(error), lines=2, width=160)}".strip()
