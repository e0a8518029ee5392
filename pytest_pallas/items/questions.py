"""From an item to what fuzzing asks: a trial of one drawn example, and the strategy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_pallas.backends import RunSettings
from pytest_pallas.checks.golden import Asked
from pytest_pallas.checks.trial import Other, Trial, call
from pytest_pallas.checks.verdict import ask, drawn_facts
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.items.applicability import applies_after_all
from pytest_pallas.items.backends import others_of
from pytest_pallas.options import Options
from pytest_pallas.session import current
from pytest_pallas.strategies.arguments import as_arguments
from pytest_pallas.tolerances import dtypes_of, tolerance_for

if TYPE_CHECKING:
    from pytest_pallas.items.item import SpecItem
    from pytest_pallas.sampling.variety import Subjects


@dataclass(frozen=True)
class Question:
    """What an item asks.

    Attributes:
      item: the check of a spec on a backend.
      options: as they hold for the item.
      mesh: the ``jax.sharding.Mesh`` to run on, or None.
      kernel: the function under test, for that mesh.
      reference: the reference, for that mesh.
      strategy: draws examples.
      others: what the kernel is compared with; see ``Trial``.
    """

    item: SpecItem
    options: Options
    mesh: Any
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    strategy: Any
    others: Sequence[Other]


def question(item: SpecItem, options: Options, mesh: Any) -> Question:
    """What an item asks on a mesh."""
    spec = item.spec
    kernel, reference = spec.kernel_for(item.backend.platform), spec.reference
    inputs: Any = spec.inputs  # with meshes a function, else a strategy
    others = others_of(item)
    if mesh is None:
        return Question(item, options, mesh, kernel, reference, inputs, others)
    kernel = functools.partial(kernel, mesh=mesh)
    reference = functools.partial(reference, mesh=mesh)
    return Question(item, options, mesh, kernel, reference, inputs(mesh), others)


def trial_of(asked: Question, drawn: Any, *, typical: bool = False) -> Trial:
    """The trial of one example."""
    item, options, spec = asked.item, asked.options, asked.item.spec
    session = current(item.config)
    arguments = as_arguments(drawn)
    watched = session.watches(options)
    return Trial(
        kernel=asked.kernel,
        reference=asked.reference,
        arguments=arguments,
        backend=item.backend,
        settings=RunSettings(
            devices=1 if asked.mesh is None else asked.mesh.size,
            timeout=options.timeout,
            races="races" in watched,
            dma="dma" in watched,
            dump=session.dump_folder(item.name),
            observer=session.observer,
        ),
        exact=spec.exact,
        differentiable=spec.differentiable,
        batch_axes=spec.batch_axes,
        relations=spec.relations,
        others=asked.others,
        tolerance=tolerance_for(
            item.config,
            list(item.iter_markers("pallas_tolerance")),
            spec.tolerance,
            kernel=spec.name,
            check=item.check.name,
            backend=item.backend,
            dtypes=dtypes_of(arguments.args),
        ),
        nan_ok=spec.nan_ok,
        runs=session.runs,
        cache=session.cache,
        typical=typical,
        # Drawn calls change with hypothesis; where a spec names typical ones, those are compared.
        costs=session.costs if typical or not spec.typical else None,
        ignored=spec.ignored,
        claimed=spec.claimed,
        golden=_golden(asked),
    )


def subjects_of(asked: Question) -> Subjects | None:
    """What the item's check can ask about a draw; None where that is the same for all."""
    spec, subjects = asked.item.spec, asked.item.check.subjects
    if subjects is None:
        return None

    def of(drawn: Any) -> Collection[Any]:
        try:
            return subjects(spec, as_arguments(drawn))
        except Exception as error:
            return (type(error),)  # which asking about it raises, and says of what

    return of


def _golden(asked: Question) -> Asked | None:
    """Whose goldens the answers are, if there are any."""
    item, options = asked.item, asked.options
    goldens = current(item.config).goldens
    if goldens is None:
        return None
    return Asked(
        goldens=goldens,
        test=f"{item.spec.name}-{item.check.name}",
        mesh=item.mesh,
        seed=options.seed,
        examples=item.examples(options),
    )


def ask_about(asked: Question, drawn: Any, *, typical: bool = False) -> None:
    """Ask the item's check about one example. One that it cannot be asked about is not counted.

    Raises:
      PallasTestError: the answer is wrong, or there is none.
    """
    __tracebackhide__ = True
    item = asked.item
    arguments = as_arguments(drawn)
    item.tally.begin(arguments)
    observer = current(item.config).observer
    if observer is not None:
        observer.example(item.tally, list(drawn_facts(arguments)))
    trial = trial_of(asked, drawn, typical=typical)
    made = functools.partial(call, trial, trial.kernel, arguments.args)
    current(item.config).note_run(item.spec.name, trial.backend, made)
    try:
        finding = ask(item.check, trial, item.spec.name, found=item.tally.add)
    except NotApplicableError as error:
        item.tally.withdraw(error.plain)
        return
    for check in applies_after_all(item, finding):
        note = f"asked {check.name}, too: it applies to an example, and to none traced before"
        item.tally.notes += [note] if note not in item.tally.notes else []
        with suppress(NotApplicableError):
            ask(check, trial, item.spec.name)
