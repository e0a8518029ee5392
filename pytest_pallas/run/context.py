"""The one build of what a check gets: for a spec's item, or for a call in a test function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.protocol import Backend, RunSettings, label
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import CheckContext, CheckResult, ComparisonPeer, call
from pytest_pallas.checks.schedule import Runs
from pytest_pallas.checks.verdict import drawn_facts, run_check
from pytest_pallas.compat.fuzzing import is_rejection, rejecting
from pytest_pallas.draw.arguments import Arguments, as_arguments
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.option_values import Options
from pytest_pallas.record import Note
from pytest_pallas.run.backends import adapted, others_of
from pytest_pallas.run.result import ResultBuilder, dtypes_of, tolerance_for
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec, Properties, properties_of

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from pytest_pallas.draw.diversity import Subjects
    from pytest_pallas.judge.tolerance import Tolerance


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
        rewriting=session.mutant,
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


# A check bound to a spec, backend and mesh, and its context for one drawn example.


@dataclass(frozen=True, kw_only=True)
class BoundCheck:
    """A check of a spec on a backend and a mesh, for one test.

    Attributes:
      session: of the run.
      node: the test: the item of the check, or a test function; None outside of pytest.
      options: the options of that test.
      spec: the spec.
      check: the check.
      backend: where the kernel runs.
      sizes: of the mesh, by axis; empty without one.
      mesh: the ``jax.sharding.Mesh`` to run on, or None.
      subject: the kernel for that backend and mesh, with its properties.
      strategy: the strategy for examples.
      name: the name of the check's item, the key of its failing examples.
      before: the backends to compare with.
      place: the key of the builder among those of other backends and meshes.
      expected: whether it is expected to fail, so that it does not shrink.
      left_out: returns whether collection left out a check, by name.
    """

    session: Session
    node: pytest.Item | None
    options: Options
    spec: KernelSpec
    check: Check
    backend: Backend
    sizes: Mapping[str, int]
    mesh: Any
    subject: Subject
    strategy: Any
    name: str
    before: Sequence[Backend]
    place: str
    expected: bool
    left_out: Callable[[str], bool]

    @property
    def builder(self) -> ResultBuilder:
        """Its builder, made at its first use."""
        return builder_of(
            self.session, self.spec, self.check.name, self.backend, self.sizes, self.place
        )

    @property
    def examples(self) -> int:
        """The number of examples, without a time limit."""
        most = self.options.examples_on(self.backend.kind, self.subject.devices)
        return self.check.examples(most)

    @property
    def source(self) -> tuple[Any, ...]:
        """The key of its examples' source among those of other specs and meshes."""
        return (self.spec.file, self.spec.name, *self.sizes.items())


def builder_of(
    session: Session,
    spec: KernelSpec,
    check: str,
    backend: Backend,
    sizes: Mapping[str, int],
    place: str,
) -> ResultBuilder:
    """The builder of a check of a spec in the running test, made at its first use."""
    made = new_builder(spec, check, backend, sizes)
    return session.builders.setdefault((spec.name, check, place), made)


def new_builder(
    spec: KernelSpec, check: str, backend: Backend, sizes: Mapping[str, int]
) -> ResultBuilder:
    """A builder without examples."""
    return ResultBuilder(
        kernel=spec.name, family=spec.family, check=check, backend=label(backend), mesh=sizes
    )


@contextmanager
def separate_builder(bound: BoundCheck) -> Generator[ResultBuilder]:
    """Count what runs inside in a builder of its own, and add that to the builder of the test."""
    whole, key = bound.builder, (bound.spec.name, bound.check.name, bound.place)
    alone = new_builder(bound.spec, bound.check.name, bound.backend, bound.sizes)
    alone.earlier = whole.examples
    bound.session.builders[key] = alone
    try:
        yield alone
    finally:
        bound.session.builders[key] = whole
        whole.absorb(alone)


def bind(
    session: Session,
    node: pytest.Item | None,
    *,
    options: Options,
    spec: KernelSpec,
    check: Check,
    backend: Backend,
    mesh: Any,
    sizes: Mapping[str, int],
    before: Sequence[Backend],
    name: str,
    test: str,
    place: str,
    expected: bool,
    left_out: Callable[[str], bool],
) -> BoundCheck:
    """Bind a check; ``test`` is the name for goldens, the rest is as in ``BoundCheck``."""
    others = others_of(spec, backend, sizes, before)
    devices = 1 if mesh is None else mesh.size
    return BoundCheck(
        session=session,
        node=node,
        options=options,
        spec=spec,
        check=with_goldens(
            session,
            check,
            spec.name,
            test=test,
            options=options,
            mesh=sizes,
            examples=check.examples(options.examples_on(backend.kind, devices)),
        ),
        backend=backend,
        sizes=sizes,
        mesh=mesh,
        subject=subject_of(spec, backend, mesh, others),
        strategy=adapted(session, spec, mesh, sizes),
        name=name,
        before=before,
        place=place,
        expected=expected,
        left_out=left_out,
    )


def context_of(
    bound: BoundCheck, drawn: Any, *, typical: bool = False, **rest: Any
) -> CheckContext:
    """The context of one example; ``rest`` are other arguments of ``context_for``."""
    return context_for(
        bound.session,
        bound.subject,
        as_arguments(drawn),
        check=bound.check,
        backend=bound.backend,
        node=bound.node,
        options=bound.options,
        typical=typical,
        # Drawn calls change with Hypothesis' version; typical calls of a spec do not.
        costs=typical or not bound.spec.typical,
        **rest,
    )


def subjects_of(bound: BoundCheck) -> Subjects | None:
    """The parts of the check that apply to a draw; None if they are the same for all draws."""
    spec, subjects = bound.spec, bound.check.subjects
    if subjects is None:
        return None

    def of(drawn: Any) -> Collection[Any]:
        try:
            return subjects(spec, as_arguments(drawn))
        except Exception as error:
            return (type(error),)  # running the check raises the same error

    return of


def run_example(bound: BoundCheck, drawn: Any, *, typical: bool = False) -> CheckResult | None:
    """Run the check on one example. An example to which it does not apply does not count.

    Returns:
      The result; None if the check does not apply.

    Raises:
      PallasError: the output is wrong, or the kernel raised.
    """
    __tracebackhide__ = True
    session, builder = bound.session, bound.builder
    arguments = as_arguments(drawn)
    builder.begin(arguments)
    if session.observer is not None:
        session.observer.example(builder, list(drawn_facts(arguments)))
    context = context_of(bound, arguments, typical=typical)
    made = functools.partial(call, context, context.kernel, arguments.args)
    session.note_run(bound.spec.name, context.backend, made)
    try:
        with rejecting():
            finding = run_check(bound.check, context, bound.spec.name, found=builder.add)
    except NotApplicableError as error:
        builder.withdraw(error.plain)
        return None
    except Exception as error:
        if not is_rejection(error):
            raise
        builder.withdraw("hypothesis rejected every example (assume() or reject())")
        return None
    for check in _applying_after_all(bound, finding):
        text = (
            f"ran {check.name}, too: it applies to this example, and to none that was traced at "
            "collection"
        )
        builder.add_note(Note(text, "run"))
        with suppress(NotApplicableError):
            run_check(check, context, bound.spec.name)
    return finding


def _applying_after_all(bound: BoundCheck, finding: CheckResult) -> Iterator[Check]:
    """The checks that collection left out, and that apply to the kernels of an example.

    The traced calls need not include every kernel: an example of another shape or dtype may have a
    DMA that none of them has.
    """
    if not bound.check.base or finding.outcome is None or not finding.outcome.kernels:
        return
    for check in bound.session.checks.values():
        if check.requires_kernels is None or not bound.left_out(check.name):
            continue
        if check.unmet(bound.spec, bound.backend, bound.before) is not None:
            continue
        if check.requires_kernels(bound.spec, bound.backend, finding.outcome.kernels) is None:
            yield check
