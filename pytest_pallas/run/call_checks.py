"""Checks of a function, of one call."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_pallas.backends.ending import OverdueError, ending_whole
from pytest_pallas.backends.protocol import Backend, Call, RunSettings, label
from pytest_pallas.backends.tracing import outputs_of
from pytest_pallas.budget import COPIES, FLOAT_BYTES, available_bytes, check_memory
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import call
from pytest_pallas.checks.verdict import conclude, drawn_facts, run_check
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import NotApplicableError, UnsupportedKernelError
from pytest_pallas.option_values import Options, choose
from pytest_pallas.run.context import Subject, context_for, with_goldens
from pytest_pallas.run.result import ResultBuilder
from pytest_pallas.session import Session


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a test function checks a kernel.

    Attributes:
      session: of the run.
      backend: where the kernel runs.
      family: of the kernel; "" for a function without a spec.
      mesh: axis name to size; empty without one.
    """

    session: Session
    backend: Backend
    family: str = ""
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def options(self) -> Options:
        """The options as they hold for the running test."""
        return self.session.options_for(self.session.item)

    @property
    def name(self) -> str:
        """The backend, with the sizes of the mesh."""
        return label(self.backend) + "".join(f"-{axis}{size}" for axis, size in self.mesh.items())

    @property
    def test(self) -> str:
        """The node id of the running test without its parameters; "" outside of tests."""
        item = self.session.item
        return "" if item is None else item.nodeid.partition("[")[0]

    def begin(self, kernel: str, check: str, arguments: Arguments) -> ResultBuilder:
        """The builder of a check in the running test, with one more example begun."""
        made = ResultBuilder(
            kernel=kernel,
            family=self.family,
            check=check,
            backend=label(self.backend),
            mesh=self.mesh,
        )
        builder = self.session.builders.setdefault((kernel, check, self.name), made)
        builder.begin(arguments)
        if self.session.observer is not None:
            self.session.observer.example(builder, list(drawn_facts(arguments)))
        return builder


def check_function(
    place: Place, subject: Subject, arguments: Arguments, names: Sequence[str]
) -> Any:
    """Ask checks about one call of a kernel.

    Args:
      place: where.
      subject: the kernel, and what must hold of it.
      arguments: the call.
      names: of the checks; ``("all",)`` for those that can be asked about one call.

    Returns:
      What the kernel returned, or the report of its compiler.

    Raises:
      PallasError: an answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    session = place.session
    sanitizers = session.sanitizers_for(place.options)
    values: Any = None
    for name in choose(names, session.checks, "checks="):
        check = session.checks[name]
        if list(names) == ["all"]:
            if check.conclude is not None:
                continue  # one call is not the examples that it concludes from
            if check.kind == "sanitizer" and name not in sanitizers:
                continue
        answer = check_call(place, subject, check, arguments, needed=list(names) != ["all"])
        values = values if answer is None else answer
    return values


def check_call(
    place: Place, subject: Subject, check: Check, arguments: Arguments, *, needed: bool
) -> Any:
    """Ask one check about one call; the result is as in ``check_function``, or None.

    Raises:
      NotApplicableError: the check is ``needed``, and cannot be asked about the call.
      PallasError: the answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    session, backend = place.session, place.backend
    options = place.options
    arguments = replayed(session, subject.name, check.name) or arguments
    builder = place.begin(subject.name, check.name, arguments)
    context = context_for(
        session,
        subject,
        arguments,
        check=check,
        backend=backend,
        node=session.item,
        options=options,
    )
    asked = with_goldens(
        session, check, subject.name, test=place.test, options=options, mesh=place.mesh
    )
    made = functools.partial(call, context, context.kernel, arguments.args)
    session.note_run(subject.name, backend, made)
    headline = f"{subject.name}: {check.name} on {label(backend)}"
    try:
        with guarded(session, headline, backend):
            finding = run_check(asked, context, subject.name, found=builder.add)
            conclude(check, builder.evidence, subject.name, backend)
    except UnsupportedKernelError as error:
        if session.item is None:
            raise
        builder.withdraw(error.plain)
        pytest.skip(f"{headline}: not applicable ({error.plain})")
    except NotApplicableError:
        if needed:
            raise
        builder.withdraw()
        if not builder.examples:
            del session.builders[subject.name, check.name, place.name]
        return None
    outcome = finding.outcome
    return None if outcome is None else outcome.report or outcome.values


def replayed(session: Session, kernel: str, check: str) -> Arguments | None:
    """The call of ``--pallas-replay``, if it is one of this."""
    loaded = session.replayed
    if loaded is None or (loaded.example.kernel, loaded.example.check) != (kernel, check):
        return None
    return Arguments(*loaded.call)


@contextlib.contextmanager
def tracing_first(
    session: Session,
    kernel: str,
    backend: Backend,
    arguments: Arguments | None = None,
    check: str = "",
) -> Generator[None]:
    """Trace a kernel before its checks, to know what they are, in one time limit for all traces.

    What it leaves behind is undone. The checks trace it again, and fail for it.

    Args:
      session: of the run.
      kernel: name of the kernel.
      backend: where it will run.
      arguments: the call; None if examples are drawn.
      check: name of the first check, to which it counts if the process dies.

    Raises:
      SimulationLimitError: it takes longer than ``--pallas-timeout``.
    """
    __tracebackhide__ = True
    from pytest_pallas.isolate.leaks import leaving_nothing

    executes = backend.kind in ("simulating", "interpreting")
    if session.observer is not None and arguments is not None:
        begun = ResultBuilder(kernel=kernel, check=check, backend=label(backend), examples=1)
        session.observer.example(begun, list(drawn_facts(arguments)))
    timeout = session.timeout(session.options_for(session.item))
    try:
        with (
            leaving_nothing(session, tells=True) if executes else contextlib.nullcontext(),
            ending_whole(timeout),
        ):
            yield
    except OverdueError as late:
        error = late.error(timeout)
        raise error.with_message(f"{kernel} on {label(backend)}: {error}") from None


def refuse_too_large(
    session: Session,
    backend: Backend,
    subject: Subject,
    arguments: Arguments,
    names: Sequence[str],
) -> None:
    """Refuse a call whose checks take more memory than there is: the system would end the session.

    Args:
      session: of the run.
      backend: where the kernel runs.
      subject: the kernel.
      arguments: the call.
      names: of the checks. Those that only trace the kernel take little memory.

    Raises:
      DrawTooLargeError: it does.
    """
    __tracebackhide__ = True
    if backend.kind not in ("simulating", "interpreting"):
        return
    if all(name in session.checks and not session.checks[name].executes for name in names):
        return
    import jax

    made = Call(
        function=subject.kernel,
        args=arguments.args,
        options={**arguments.options, **arguments.tuning},
        settings=RunSettings(timeout=session.options.timeout, jit=subject.jit),
    )
    outputs = outputs_of(made, backend) if subject.jit and subject.devices == 1 else ()
    own = needed = 0
    for leaf in [*jax.tree.leaves(arguments.args), *outputs]:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            continue
        elements, width = math.prod(leaf.shape), getattr(leaf.dtype, "itemsize", 0)
        floats = jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact)
        own += elements * width
        needed += elements * (FLOAT_BYTES if floats else COPIES * width)
    if needed > _SMALL:
        most = available_bytes()
        if getattr(session, "in_worker", False):
            limit = int(session.options.worker_memory * 2**30)
            most = limit if most is None else min(most, limit)
        check_memory(f"{subject.name} on {label(backend)}", own, needed, most)


#: Bytes for which nothing is asked of the system.
_SMALL = 256 * 2**20


def guarded(
    session: Session, headline: str, backend: Backend
) -> contextlib.AbstractContextManager[None]:
    """A check that fails for what it leaves behind in this process."""
    if backend.kind not in ("simulating", "interpreting"):
        return contextlib.nullcontext()
    import jax

    from pytest_pallas.isolate import leaks

    jax.devices("cpu")  # starting JAX changes settings
    return leaks.guarded(session, headline)
