"""The one build of what a check gets: for a spec's item, or for a call in a test function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends import Backend, RunSettings
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import CheckContext, ComparisonPeer
from pytest_pallas.devices.processes import gang
from pytest_pallas.options.values import Options
from pytest_pallas.properties import Properties, properties_of
from pytest_pallas.sanitizers.runs import Runs
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import Arguments
from pytest_pallas.tolerances import dtypes_of, tolerance_for

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from pytest_pallas.numerics import Tolerance


@dataclass(frozen=True, kw_only=True)
class Subject(Properties):
    """A kernel, and what must hold of it: a spec says it, or the call of a test.

    Attributes:
      name: of the kernel, for records and messages.
      kernel: see ``CheckContext``, as for all that is not listed here.
      tolerance: as in ``KernelSpec``; marks and the hook have a say, too.
      jit: whether the kernel may be jitted.
      devices: how many devices it runs on.
    """

    name: str
    kernel: Callable[..., Any]
    reference: Callable[..., Any] | None
    others: Sequence[ComparisonPeer] = ()
    tolerance: Tolerance | Mapping[str, Tolerance] | None = None
    check_dtype: bool = True
    jit: bool = True
    devices: int = 1
    claimed: Sequence[str] = ()


def subject_of(
    spec: KernelSpec, backend: Backend, mesh: Mesh | None, others: Sequence[ComparisonPeer]
) -> Subject:
    """What a spec says, for a backend and a mesh, compared with ``others``."""
    kernel, reference = spec.kernel_for(backend.platform), spec.reference
    if mesh is not None:
        kernel = functools.partial(kernel, mesh=mesh)
        reference = functools.partial(reference, mesh=mesh)
    return Subject(
        name=spec.name,
        kernel=kernel,
        reference=reference,
        others=others,
        tolerance=spec.tolerance,
        devices=1 if mesh is None else mesh.size,
        claimed=spec.claimed,
        **properties_of(spec),
    )


def settings_for(session: Session, options: Options, backend: Backend, **rest: Any) -> RunSettings:
    """How the session runs kernels on a backend; ``rest`` are other fields of ``RunSettings``."""
    watched = session.watches(options)
    return RunSettings(
        timeout=session.timeout(options),
        races="races" in watched,
        dma="dma" in watched,
        observer=session.observer,
        mutant=session.mutant,
        arithmetic=session.arithmetic(options, backend),
        **rest,
    )


def context_for(
    session: Session,
    subject: Subject,
    arguments: Arguments,
    *,
    check: Check,
    backend: Backend,
    node: pytest.Item | None,
    options: Options,
    typical: bool = False,
    costs: bool = True,
    runs: Runs | None = None,
    explained: bool = True,
) -> CheckContext:
    """What a check gets, of one call.

    Args:
      session: of the run.
      subject: the kernel, and what must hold of it.
      arguments: the call.
      check: the check.
      backend: where it runs.
      node: the test that asks, whose marks hold and whose name a dump has; None outside of tests.
      options: as they hold for that test.
      typical: whether a spec names the call as typical.
      costs: whether the costs of its code are compared with recorded ones, if the session does so.
      runs: where runs under other schedules are kept, if not with those of the session. With a
        mutant, those are of no use.
      explained: whether a failure is explained.

    Raises:
      OptionError: a mark of the test has an argument that it cannot have.
    """
    shared = session.runs if session.mutant is None else Runs()
    tolerance, given_by = tolerance_for(
        session,
        [] if node is None else list(node.iter_markers("pallas_tolerance")),
        subject.tolerance,
        kernel=subject.name,
        check=check.name,
        backend=backend,
        dtypes=dtypes_of(arguments.args),
    )
    return CheckContext(
        kernel=subject.kernel,
        reference=subject.reference,
        arguments=arguments,
        backend=backend,
        settings=settings_for(
            session,
            options,
            backend,
            devices=subject.devices,
            jit=subject.jit,
            dump=None if node is None else session.dump_folder(node.name),
        ),
        others=subject.others,
        tolerance=tolerance,
        tolerance_given_by=given_by,
        check_dtype=subject.check_dtype,
        runs=shared if runs is None else runs,
        cache=session.cache,
        typical=typical,
        costs=session.costs if costs else None,
        claimed=subject.claimed,
        explained=explained,
        **properties_of(subject),
    )


def with_goldens(
    session: Session,
    check: Check,
    kernel: str,
    *,
    test: str,
    options: Options,
    mesh: Mapping[str, int] | None = None,
    examples: int = 0,
) -> Check:
    """The check as it is run: with ``--pallas-golden`` its answers are kept, or compared.

    A mutant's answers are neither.

    Args:
      session: of the run.
      check: the check.
      kernel: name of the kernel.
      test: node id of the test that asks, or what stands for it.
      options: as they hold for that test.
      mesh: axis name to size.
      examples: how many the check draws; 0 for none.
    """
    if session.goldens is None or session.mutant is not None:
        return check
    if gang() is not None:
        raise OptionError(
            "--pallas-golden keeps whole outputs, and in a program of several processes each holds "
            "a part of them: record and compare goldens in one process"
        )
    from pytest_pallas.checks.golden import GoldenRequest, keeping

    request = GoldenRequest(
        goldens=session.goldens,
        test=test,
        mesh=mesh or {},
        seed=options.seed,
        examples=examples,
    )
    return keeping(check, kernel, request)


def lacks_mesh(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> bool:
    """Whether a function can be called so with ``mesh=``, and not without."""
    return misfit(function, args, keywords) is not None and (
        misfit(function, args, {**keywords, "mesh": None}) is None
    )


def misfit(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> str | None:
    """Which function cannot be called so, and why; None if it can, or nobody knows."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some builtins have none
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        inner: Any = inspect.unwrap(getattr(function, "func", function))
        code = getattr(inner, "__code__", None)
        where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
        return f"{getattr(inner, '__name__', repr(inner))}{signature}{where}: {error}"
    return None
