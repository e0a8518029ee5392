"""One example of one check: what is asked, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from pytest_pallas.backends import Backend, Call, Configured, Outcome
from pytest_pallas.backends.execution import brief
from pytest_pallas.backends.variations import Fill, Schedule
from pytest_pallas.compilers.costs import Costs
from pytest_pallas.errors import KernelError, PallasTestError
from pytest_pallas.notes import Note
from pytest_pallas.numerics import Comparison, Tolerance, compare_trees, is_float, wide
from pytest_pallas.oracle.expected import Expected, ExpectedCache, Leaves, flatten
from pytest_pallas.relations import AnyRelation
from pytest_pallas.strategies.arguments import Arguments

#: Integers up to this size count as small: the product of two is exact in bfloat16, and a sum of
#: 2**15 such products is exact in float32.
SMALL = 16


@dataclass(frozen=True, kw_only=True)
class Other:
    """Something else that computes what a kernel does.

    Attributes:
      name: of the implementation, or the label of the backend.
      function: called like the kernel.
      backend: where it runs.
      is_kernel: False for an implementation: it need not hold a Pallas kernel, and gets only the
        tuning that it takes.
    """

    name: str
    function: Callable[..., Any]
    backend: Backend
    is_kernel: bool = True


@dataclass(frozen=True, kw_only=True)
class CheckContext(Configured):
    """What a check is asked about: a kernel, its reference, and one drawn call.

    Attributes:
      kernel: called ``kernel(*args, **options, **tuning)``.
      reference: called ``reference(*args, **options)``; None for checks that need none.
      arguments: the drawn call.
      backend: where the kernel runs.
      settings: how it runs; see ``RunSettings``.
      exact: whether small integers held in floats must give a bitwise equal answer; or up to which
        size they must.
      differentiable: positions of the arguments to differentiate by.
      batch_axes: as in ``KernelSpec``.
      relations: as in ``KernelSpec``.
      others: what computes the same, for the cross check.
      tolerance: the rule of judgement.
      nan_ok: whether NaN is a right answer for finite inputs.
      check_dtype: whether the kernel must return the reference's dtypes.
      runs: where runs under other schedules are kept.
      cache: where expectations are kept.
      typical: whether the spec names this call as typical, rather than drawing it.
      costs: what the code of kernels may cost on compiling backends; None if nobody asks.
      ignored: as in ``KernelSpec``.
      claimed: the backends that the spec claims, as in ``KernelSpec.claimed``.
      explained: whether a failure is explained; if not, its error has no message to speak of.
    """

    kernel: Callable[..., Any]
    reference: Callable[..., Any] | None
    arguments: Arguments
    backend: Backend
    exact: bool | int = False
    differentiable: Sequence[int] = ()
    batch_axes: Sequence[int | None] = ()
    relations: Sequence[AnyRelation] = ()
    others: Sequence[Other] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)
    nan_ok: bool = False
    check_dtype: bool = True
    runs: Any = None
    cache: ExpectedCache = field(default_factory=ExpectedCache)
    typical: bool = False
    costs: Costs | None = None
    ignored: Callable[..., Any] | None = None
    claimed: Sequence[str] = ()
    explained: bool = True


@dataclass(frozen=True)
class Answer:
    """What a kernel answered, and what was expected: goldens are made of these.

    Attributes:
      outputs: of the kernel, by path.
      expected: of those.
    """

    outputs: Leaves
    expected: Expected


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What came of one context.

    Attributes:
      comparisons: one for each thing compared, passed or not.
      outcome: the kernel's run, of which the failing element's writer can be told.
      seconds: time spent tracing, compiling and running the kernel.
      subject: what was compared if not the plain output, such as "gradient".
      notes: for the record; a plain string is a note of no kind.
      evidence: what ``Check.conclude`` is given of this context after the last; None for nothing.
      answer: what may be kept as a golden; None if nothing should be.
      goldens: what was done with goldens: counts by what, and names of those that were compared.
    """

    comparisons: Sequence[Comparison]
    outcome: Outcome | None = None
    seconds: float = 0.0
    subject: str = ""
    notes: tuple[Note | str, ...] = ()
    evidence: Any = None
    answer: Answer | None = None
    goldens: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def failed(self) -> Comparison | None:
        """The worst failed comparison, or None if all passed."""
        failures = [comparison for comparison in self.comparisons if not comparison.passed]
        return max(failures, key=lambda comparison: comparison.error, default=None)


def run(
    context: CheckContext,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    jit: bool | None = None,
    tuned: bool = True,
    races: bool = True,
    fill: Fill | None = None,
    needs_kernel: bool = True,
    **rest: Any,
) -> Outcome:
    """Run ``function`` on the context's backend with the context's options.

    ``tuned=False`` leaves out its tuning, ``races=False`` does not look for races, nor for copies
    and semaphores that are left, ``fill`` is what memory holds that nobody has written,
    ``needs_kernel=False`` takes a function without a kernel, too, and ``rest`` are other fields of
    the call (see ``Call``).

    Raises:
      KernelError: the kernel raised.
    """
    made = call(context, function, args, jit=jit, tuned=tuned)
    if not races:
        made = made.with_settings(races=False, dma=False)
    made = replace(made, fill=fill, needs_kernel=needs_kernel, **rest)
    outcome = context.backend.run(made)
    if outcome.error is not None:
        raise under(made.schedule, as_kernel_error(outcome.error))
    return outcome


def call(
    context: CheckContext,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    jit: bool | None = None,
    tuned: bool = True,
) -> Call:
    """``function(*args)`` with the context's options, as a backend takes it."""
    made = Call(
        function=function,
        args=args,
        options={**context.arguments.options, **(context.arguments.tuning if tuned else {})},
        settings=context.settings,
    )
    return made if jit in (None, made.jit) else made.with_settings(jit=jit)


def judge(
    context: CheckContext, outputs: Any, expected: Expected, *, exact: bool = False
) -> Sequence[Comparison]:
    """Compare what a kernel returned with what was expected, by the context's rule."""
    return compare_trees(
        flatten(outputs),
        expected.oracle,
        expected.baseline,
        tolerance=context.tolerance,
        exact=exact,
        depth=expected.depth,
        sensitivity=expected.sensitivity,
        noise=expected.noise,
        precision=expected.precision.get,
        check_dtype=context.check_dtype,
        explained=context.explained,
    )


def as_kernel_error(error: Exception) -> PallasTestError:
    """An error of a kernel as one of ours, so that every report can tell whose fault it is."""
    if isinstance(error, PallasTestError):
        return error
    wrapped = KernelError(f"the kernel raised {type(error).__name__}: {brief(str(error))}")
    wrapped.__cause__ = error
    return wrapped


def under(schedule: Schedule, error: PallasTestError) -> PallasTestError:
    """The error with the schedule that it came under, where that was not the plain one."""
    if schedule == Schedule():
        return error
    told = error.with_message(f"{error}\n  with {schedule}")
    told.schedule = schedule
    return told


def expect(context: CheckContext) -> Expected:
    """The oracle and baseline of the context's call."""
    assert context.reference is not None
    return context.cache.get(
        context.reference, context.arguments.args, context.arguments.options, nan_ok=context.nan_ok
    )


def exactly(context: CheckContext) -> bool:
    """Whether the answer must be that of the oracle to the bit.

    True if the context is exact and every float input holds integers only, which are small enough.
    """
    if not context.exact:
        return False
    most = SMALL if context.exact is True else context.exact
    for leaf in jax.tree.leaves(context.arguments.args):
        if hasattr(leaf, "dtype") and is_float(leaf.dtype):
            values = wide(np.asarray(leaf))
            if not (np.abs(values) <= most).all() or (values != np.rint(values)).any():
                return False
    return True
