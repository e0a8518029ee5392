"""A check bound to a spec, backend and mesh, and its context for one drawn example."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_pallas.backends import Backend, label
from pytest_pallas.bindings.backends import others_of
from pytest_pallas.bindings.contexts import Subject, context_for, subject_of, with_goldens
from pytest_pallas.bindings.learning import adapted
from pytest_pallas.checks import Check
from pytest_pallas.checks.context import CheckContext, CheckResult, call
from pytest_pallas.checks.verdict import drawn_facts, run_check
from pytest_pallas.compat.rejection import is_rejection, rejecting
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.notes import Note
from pytest_pallas.options.values import Options
from pytest_pallas.result_builder import ResultBuilder
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import as_arguments

if TYPE_CHECKING:
    from pytest_pallas.sampling.diversity import Subjects


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
