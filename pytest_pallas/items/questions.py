"""What is asked of a spec: the question, and a trial of one drawn example for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_pallas.backends import Backend, label
from pytest_pallas.checks import Check
from pytest_pallas.checks.trial import Trial, TrialResult, call
from pytest_pallas.checks.verdict import ask, drawn_facts
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.items.backends import others_of
from pytest_pallas.items.trials import Subject, subject_of, trial_for, with_goldens
from pytest_pallas.notes import Note
from pytest_pallas.options import Options
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec
from pytest_pallas.strategies.arguments import as_arguments
from pytest_pallas.tally import Tally

if TYPE_CHECKING:
    from pytest_pallas.sampling.diversity import Subjects


@dataclass(frozen=True, kw_only=True)
class Question:
    """A check of a spec, on a backend and a mesh, and the test that asks.

    Attributes:
      session: of the run.
      node: the test: the item of the check, or a test of one's own.
      options: as they hold for that test.
      spec: the spec.
      check: the check, as it is run.
      backend: where the kernel runs.
      sizes: of the mesh, by axis; empty without one.
      mesh: the ``jax.sharding.Mesh`` to run on, or None.
      subject: the kernel for that backend and mesh, and what the spec says of it.
      strategy: draws examples.
      name: of the item of the check, which its failing examples are kept under.
      before: the backends that it is compared with.
      place: what the tally is told apart by from those of other backends and meshes.
      expected: whether it is expected to fail: then nobody wants the simplest failure.
      left_out: whether a check was left out, by name, since it applies to no kernel traced before.
    """

    session: Session
    node: pytest.Item
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
    def tally(self) -> Tally:
        """Its tally, made at its first use."""
        return tally_of(
            self.session, self.spec, self.check.name, self.backend, self.sizes, self.place
        )

    @property
    def examples(self) -> int:
        """How many examples to draw, where no time is given."""
        most = self.options.examples_on(self.backend.kind, self.subject.devices)
        return self.check.examples(most)

    @property
    def source(self) -> tuple[Any, ...]:
        """What tells the source of its examples from those of other specs and meshes."""
        return (self.spec.file, self.spec.name, *self.sizes.items())


def tally_of(
    session: Session,
    spec: KernelSpec,
    check: str,
    backend: Backend,
    sizes: Mapping[str, int],
    place: str,
) -> Tally:
    """The tally of a check of a spec in the running test, made at its first use."""
    return session.tallies.setdefault(
        (spec.name, check, place),
        Tally(
            kernel=spec.name,
            family=spec.family,
            check=check,
            backend=label(backend),
            mesh=sizes,
        ),
    )


def question(
    session: Session,
    node: pytest.Item,
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
) -> Question:
    """What is asked; ``test`` is what goldens are kept under, the rest is as in ``Question``."""
    inputs: Any = spec.inputs  # with meshes a function, else a strategy
    others = others_of(spec, backend, sizes, before)
    devices = 1 if mesh is None else mesh.size
    return Question(
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
        strategy=inputs if mesh is None else inputs(mesh),
        name=name,
        before=before,
        place=place,
        expected=expected,
        left_out=left_out,
    )


def trial_of(asked: Question, drawn: Any, *, typical: bool = False, **rest: Any) -> Trial:
    """The trial of one example; ``rest`` are other arguments of ``trial_for``."""
    return trial_for(
        asked.session,
        asked.subject,
        as_arguments(drawn),
        check=asked.check,
        backend=asked.backend,
        node=asked.node,
        options=asked.options,
        typical=typical,
        # Drawn calls change with hypothesis; where a spec names typical ones, those are compared.
        costs=typical or not asked.spec.typical,
        **rest,
    )


def subjects_of(asked: Question) -> Subjects | None:
    """What the check can ask about a draw; None where that is the same for all."""
    spec, subjects = asked.spec, asked.check.subjects
    if subjects is None:
        return None

    def of(drawn: Any) -> Collection[Any]:
        try:
            return subjects(spec, as_arguments(drawn))
        except Exception as error:
            return (type(error),)  # which asking about it raises, and says of what

    return of


def ask_about(asked: Question, drawn: Any, *, typical: bool = False) -> TrialResult | None:
    """Ask the check about one example. One that it cannot be asked about is not counted.

    Returns:
      What came of it; None where it cannot be asked about it.

    Raises:
      PallasTestError: the answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    session, tally = asked.session, asked.tally
    arguments = as_arguments(drawn)
    tally.begin(arguments)
    if session.observer is not None:
        session.observer.example(tally, list(drawn_facts(arguments)))
    trial = trial_of(asked, arguments, typical=typical)
    made = functools.partial(call, trial, trial.kernel, arguments.args)
    session.note_run(asked.spec.name, trial.backend, made)
    try:
        finding = ask(asked.check, trial, asked.spec.name, found=tally.add)
    except NotApplicableError as error:
        tally.withdraw(error.plain)
        return None
    for check in _applying_after_all(asked, finding):
        text = f"asked {check.name}, too: it applies to an example, and to none traced before"
        tally.add_note(Note(text, "run"))
        with suppress(NotApplicableError):
            ask(check, trial, asked.spec.name)
    return finding


def _applying_after_all(asked: Question, finding: TrialResult) -> Iterator[Check]:
    """The checks that were left out, and apply to the kernels that an example just ran.

    A few traced calls need not show every kernel: an example of another shape or dtype may have a
    DMA that none of them has.
    """
    if not asked.check.base or finding.outcome is None or not finding.outcome.kernels:
        return
    for check in asked.session.checks.values():
        if check.requires_kernels is None or not asked.left_out(check.name):
            continue
        if check.unmet(asked.spec, asked.backend, asked.before) is not None:
            continue
        if check.requires_kernels(asked.spec, asked.backend, finding.outcome.kernels) is None:
            yield check
