"""Draw examples of a spec with Hypothesis, and run a check on each.

Examples that failed before run first. Then come diverse draws (``examples``), each with variants
of other values, which are cheap once a shape is compiled, and then examples that failed on other
backends. Only a failure goes through Hypothesis again, which shrinks it and saves it for the next
run.
"""

from __future__ import annotations

import functools
import math
import random
import re
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, islice
from typing import Any
from unittest import SkipTest

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import DidNotReproduce, InvalidArgument

from pallas_sim.errors import (
    KernelError,
    OptionError,
    PallasError,
    SimulationError,
    SimulationLimitError,
)
from pytest_pallas.budget import ExampleBudget
from pytest_pallas.checks.diagnosis import show_larger
from pytest_pallas.checks.inputs import inputs_of
from pytest_pallas.compat.fuzzing import (
    PLANNED,
    planning,
    set_database_key,
    without_module_constants,
)
from pytest_pallas.draw.arguments import (
    MOST_VARIANTS,
    as_arguments,
    exceeds_declared,
    mark_drawn,
    variants,
)
from pytest_pallas.draw.covering import Covering, Goal
from pytest_pallas.draw.examples import (
    AIMS,
    ExampleSource,
    Subjects,
    draw_name,
    draws_for,
    draws_with_all,
    most_draws,
)
from pytest_pallas.draw.growth import Growth
from pytest_pallas.errors import (
    CapacityError,
    KernelReferenceError,
    NoPallasCallError,
    facts_of,
)
from pytest_pallas.run.agreement import agreed, run_shared, unshared
from pytest_pallas.run.causes import cause_of, distinct

#: Time limit in seconds for the rest of the examples after a failure, for other causes.
OTHER_SECONDS = 5.0

#: Up to this many examples, each is a draw; of more, some are variants: up to ``EACH`` of a draw,
#: itself included.
DRAWS, EACH = 8, 8

#: So many draws have a variant for further pairs of choices, where each example is a draw.
DRAWS_PER_VARIANT = 3

#: Number of saved examples that may pass before the replay stops.
REMEMBERED = 10

#: Errors with which a kernel refuses a call, or no chip can run it.
_REFUSALS = (
    *(KernelError, NoPallasCallError, KernelReferenceError, CapacityError),
    *(SimulationError, SimulationLimitError),
)

#: Number of further draws of the plan, where something of the kernel has not run.
FURTHER = 8

#: Number of draws in a round of timed fuzzing.
ROUND = 32

#: Two fifths of the time go to new shapes, or more if variants finish early.
CHEAP = 1.5

_BLOB = re.compile(r"reproduce_failure\('([^']*)', b'([^']*)'\)")


@dataclass(frozen=True, kw_only=True)
class Fuzz:
    """A check to fuzz, and the database of its failures.

    Attributes:
      run: raises if the example fails.
      source: the source of the examples.
      key: the key in Hypothesis' example database. Failures are saved under it, on every backend.
      shrink: whether to shrink a failing example.
      database: Hypothesis' database of failing examples, or None.
      elsewhere: the database of examples that failed on other backends. They run after the draws,
        so that they hide no failure that the draws find.
      passed: calls that passed, by their words; they do not run again.
      shapes: signatures of the draws of all earlier rounds; draws of new shapes come first.
      subjects: see ``ExampleSource.choose``.
      growth: examples for what of the kernel has not run; None for none.
      fills: whether variants of the draws run for further pairs of choices.
    """

    run: Callable[[Any], object]
    source: ExampleSource
    key: str
    shrink: bool = True
    database: Any = None
    elsewhere: Any = None
    passed: set[str] = field(default_factory=set[str])
    shapes: set[str] = field(default_factory=set[str])
    subjects: Subjects | None = None
    growth: Growth | None = None
    fills: bool = True


def fuzz(what: Fuzz, *, seed: int, budget: ExampleBudget, until: float | None = None) -> None:
    """Run different examples, as many as a budget has, and shrink the first failure.

    Examples that failed here in earlier runs come first, those that failed elsewhere come last.
    Before these, examples grow for what of the kernel has not run.

    Args:
      what: the check to fuzz.
      seed: seed of the draws.
      budget: of the examples.
      until: when to stop, by ``time.monotonic``.

    Raises:
      Exception: the error of the simplest failing example; its ``others`` have other causes.
    """
    __tracebackhide__ = True
    runner = ExampleRunner(what.run, what.passed, until=until, growth=what.growth)
    draws, planned = _planned(what.source, seed, budget, what.subjects)
    every = list(planned)
    calls = iter(every)
    if budget.most > budget.count:
        whole = draws_with_all(what.source.pool(seed, draws), budget.count)
        budget = replace(budget, least=max(budget.least, whole))
    more = draws + FURTHER

    def attempt(drawn: Any, goal: Goal | None) -> None:
        __tracebackhide__ = True
        call = _PlannedCall(drawn, draw_name(drawn), 0)
        _explore(what, runner, [call], seed=seed, draws=more, goal=goal)

    def further() -> Iterator[Any]:
        choice = what.source.choose(seed, more, what.subjects)
        return (drawn for name, drawn in choice.items() if name not in runner.passed)

    try:
        _remembered(what, runner, what.database)
        budget.costs.clear()  # saved examples are not among those that it counts
        budget.traces.clear()
        _explore(what, runner, calls, seed=seed, draws=draws, more=lambda: budget.goes_on)
        if what.fills and budget.most > budget.count:
            ran = [call for call in every if call.text in runner.passed]
            other = _variants_of(ran)
            _explore(what, runner, other, seed=seed, draws=draws, more=lambda: budget.has_room)
        if what.growth is not None and not runner.over:
            what.growth.grow(what.source, seed, attempt, further)
    except PallasError as error:
        if what.shrink and not error.timed_out:
            facts_of(error).others = tuple(_others(what, runner, error, calls))
            _with_larger(error, runner)
        raise
    if what.elsewhere is not None:
        # These few run although the time may be over.
        _remembered(what, ExampleRunner(what.run, what.passed), what.elsewhere)


def drawn_calls(
    source: ExampleSource, seed: int, budget: ExampleBudget, subjects: Subjects | None = None
) -> Iterator[Any]:
    """Return the calls that ``fuzz`` runs, if all within the budget are cheap."""
    return (planned.call for planned in _planned(source, seed, budget, subjects)[1])


def fuzz_until(what: Fuzz, *, seed: int, until: float, varies: bool = True) -> None:
    """Run ``ROUND`` draws until a time, each with variants as long as they are cheap.

    Variants are cheap as long as they take at most ``CHEAP`` times as long as the draw itself,
    which includes its compilation.

    Args:
      what: the check to fuzz.
      seed: seed of the draws.
      until: when to stop, by ``time.monotonic``.
      varies: as of ``ExampleBudget``; if not, few draws have variants as long as shapes are new.

    Raises:
      Exception: as ``fuzz``.
    """
    __tracebackhide__ = True
    runner = ExampleRunner(what.run, what.passed, until=until)
    choice = what.source.choose(seed, ROUND, functools.partial(_new, what))
    are_new = not what.shapes.issuperset(map(_shape, choice.values()))
    what.shapes.update(map(_shape, choice.values()))
    spent = _DrawTimes()
    calls = _calls(choice, MOST_VARIANTS, lambda: agreed(spent.variants > CHEAP * spent.draw))
    if are_new and not varies:
        draws = [*_calls(choice, 1)]
        calls = chain(draws, _variants_of(draws))
    try:
        _explore(what, runner, calls, seed=seed, draws=ROUND, spent=spent)
    except PallasError as error:
        _with_larger(error, runner)
        raise


def fuzz_round(what: Fuzz, *, seed: int) -> None:
    """Run ``ROUND`` draws of different shapes, as far as there are; ``EACH`` calls of each.

    What it draws depends on the seed alone: neither on earlier rounds nor on the time.

    Args:
      what: the check to fuzz.
      seed: seed of the draws.

    Raises:
      Exception: as ``fuzz``.
    """
    __tracebackhide__ = True
    runner = ExampleRunner(what.run, what.passed)
    alone = replace(what, shapes=set[str]())
    choice = what.source.choose(seed, ROUND, functools.partial(_new, alone))
    try:
        _explore(what, runner, _calls(choice, EACH), seed=seed, draws=ROUND)
    except PallasError as error:
        _with_larger(error, runner)
        raise


def _new(what: Fuzz, drawn: Any) -> Collection[Any]:
    """Return the new parts of a draw: none if its shape ran before, otherwise all."""
    shape = _shape(drawn)
    if shape in what.shapes:
        return ()
    if what.subjects is None:
        return (shape,)
    return [(shape, subject) for subject in what.subjects(drawn)]


def _shape(drawn: Any) -> str:
    """Return the signature of a draw that is complete."""
    return inputs_of(as_arguments(drawn)).signature


@dataclass
class _DrawTimes:
    """Seconds that the last new draw took.

    Attributes:
      draw: for the draw itself.
      variants: for its variants.
    """

    draw: float = math.inf
    variants: float = 0.0

    def add(self, number: int, seconds: float) -> None:
        """Add the seconds of a call; see ``_PlannedCall.number``."""
        if number:
            self.variants += seconds
        else:
            self.draw = seconds


@dataclass(frozen=True)
class _PlannedCall:
    """A call to run.

    Attributes:
      call: the call.
      text: identifies its draw; see ``draw_name``.
      number: the number of the variant, from 1; the draw itself has 0.
    """

    call: Any
    text: str
    number: int


def _planned(
    source: ExampleSource, seed: int, budget: ExampleBudget, subjects: Subjects | None
) -> tuple[int, Iterator[_PlannedCall]]:
    """Return the number of draws of a budget, and the calls that it may run."""
    draws, most = effort(budget.count) if budget.varies else (budget.most, 1)
    usual = None if budget.varies else budget.count
    choice = source.choose(seed, draws, subjects, usual)
    most = min(MOST_VARIANTS, max(most, math.ceil(budget.count / max(1, len(choice)))))
    return draws, islice(_calls(choice, most), max(budget.count, len(choice)))


def _calls(
    choice: Mapping[str, Any], most: int, enough: Callable[[], bool] = lambda: False
) -> Iterator[_PlannedCall]:
    """Yield the selected draws, each with at most ``most`` variants, until it has ``enough``."""
    for text, drawn in choice.items():
        for number, call in enumerate(islice(chain([drawn], variants(drawn)), most)):
            yield _PlannedCall(call, text, number)
            if enough():
                break


def _variants_of(calls: Sequence[_PlannedCall]) -> Iterator[_PlannedCall]:
    """Return variants of some of the draws, those that bring new pairs of choices."""
    return islice(_with_new_pairs(calls), len(calls) // DRAWS_PER_VARIANT)


def _with_new_pairs(calls: Sequence[_PlannedCall]) -> Iterator[_PlannedCall]:
    """Yield variants of draws that bring new pairs of choices."""
    pairs = {pair for planned in calls for pair in _pairs(planned.call)}
    several = [(planned, variants(planned.call)) for planned in calls]
    for number in range(1, MOST_VARIANTS):
        for planned, others in several:
            call = next(others, None)
            if call is not None and not pairs.issuperset(new := _pairs(call)):
                pairs |= new
                yield _PlannedCall(call, planned.text, number)


def _pairs(call: Any) -> set[Hashable]:
    """Return the pairs of choices that a call brings together."""
    return set(combinations(inputs_of(as_arguments(call)).choices, 2))


def _explore(
    what: Fuzz,
    runner: ExampleRunner,
    calls: Iterable[_PlannedCall],
    *,
    seed: int,
    draws: int = 0,
    goal: Goal | None = None,
    spent: _DrawTimes | None = None,
    more: Callable[[], bool] = lambda: True,
) -> None:
    """Run calls, of a goal or else of so many draws, and shrink the first failure.

    ``spent`` records their times; ``more`` says whether another one runs.
    """
    __tracebackhide__ = True
    spent = _DrawTimes() if spent is None else spent
    for planned in calls:
        if not more():
            return
        if not planned.number:
            spent.variants = 0.0
        if draw_name(planned.call) in runner.passed:
            continue
        started = time.monotonic()
        try:
            runner.one(planned.call)
        except Exception as error:
            most = max(EACH, planned.number + 1)
            examples = AIMS if goal else most_draws(_pool_size(what, seed, draws))
            strategy = what.source.planned(seed, Covering(random.Random(seed), goal))
            _shrunk(what, runner, planned.text, strategy, seed=seed, examples=examples, most=most)
            raise error from error.__cause__
        if runner.over:
            return
        spent.add(planned.number, time.monotonic() - started)


def shrink_with(
    what: Fuzz, name: str, goal: Goal, *, seed: int, budget: ExampleBudget, seconds: float
) -> None:
    """Shrink the call of ``fuzz`` that is known to fail.

    Args:
      what: runs a draw, and with it its variants.
      name: of the call (``draw_name``).
      goal: what it is: it is no call of the plan if it grew.
      seed: seed of the draws.
      budget: of the examples.
      seconds: time limit for new draws.

    Raises:
      Exception: the error of the simplest draw that fails.
    """
    draws, calls = _planned(what.source, seed, budget, what.subjects)
    runner = ExampleRunner(what.run, what.passed, shrink_seconds=seconds)
    for planned in calls:
        if draw_name(planned.call) == name:
            strategy = what.source.planned(seed)
            examples = most_draws(_pool_size(what, seed, draws))
            _shrunk(what, runner, planned.text, strategy, seed=seed, examples=examples, most=1)
            return
    drawn, _ = what.source.aimed(seed, goal)
    if drawn is not None:
        strategy = what.source.planned(seed, Covering(random.Random(seed), goal))
        _shrunk(what, runner, draw_name(drawn), strategy, seed=seed, examples=AIMS, most=1)


def _with_larger(error: PallasError, runner: ExampleRunner) -> None:
    """Show a larger example of the same cause beside one that was shrunk too far."""
    cause = cause_of(error)
    show_larger(error, [other for other in runner.failed.values() if cause_of(other) == cause])


def _others(
    what: Fuzz, runner: ExampleRunner, first: PallasError, calls: Iterable[_PlannedCall]
) -> Sequence[PallasError]:
    """Failures with other causes than the first: of calls while it was shrunk, and of the rest."""
    errors = list(runner.failed.values())
    further = ExampleRunner(
        what.run,
        what.passed,
        shrink_seconds=OTHER_SECONDS,
        until=time.monotonic() + OTHER_SECONDS,
        failed=runner.failed,
    )
    for planned in calls:
        try:
            further.one(planned.call)
        except Exception as error:
            errors.append(error)
        if further.over:
            break
    return distinct(first, errors)


def replay(what: Fuzz, blob: str) -> None:
    """Run one example again (see ``blob_of``).

    Raises:
      Exception: the error of the example.
      OptionError: ``blob`` is not an example of the strategy.
    """
    __tracebackhide__ = True
    runner = ExampleRunner(what.run, what.passed)
    test = _test(what, lambda drawn: runner.group(drawn, MOST_VARIANTS), phases=[Phase.explicit])
    test = hypothesis.reproduce_failure(hypothesis.__version__, blob.encode())(test)
    try:
        unshared(test)
    except (DidNotReproduce, InvalidArgument) as error:
        if not runner.passed:
            raise OptionError(
                f"--pallas-replay={blob}: cannot replay {what.key}: its strategy or Hypothesis "
                "changed since the example was saved. Run the test without --pallas-replay."
            ) from error
        # The failure is fixed, which Hypothesis reports as an error.


def blob_of(error: BaseException) -> str:
    """Return the text with which ``replay`` runs the failing example again, or ""."""
    for note in reversed(getattr(error, "__notes__", ())):
        blob = _BLOB.search(note)
        if blob:
            return blob.group(2)
    return ""


def effort(examples: int) -> tuple[int, int]:
    """Return the number of draws for so many examples, and the number of calls of each.

    Up to ``DRAWS`` examples, each is a draw. Beyond that, draws and variants both grow with the
    square root, until each draw has ``EACH`` calls.
    """
    calls = min(EACH, max(1, round(math.sqrt(examples / DRAWS))))
    return math.ceil(examples / calls), calls


def _remembered(what: Fuzz, runner: ExampleRunner, database: Any) -> None:
    """Run the failures of earlier runs that a database has."""
    phases = [Phase.reuse, Phase.shrink] if what.shrink else [Phase.reuse]
    # Hypothesis raises SkipTest if nothing is saved.
    with without_module_constants(), suppress(SkipTest):
        unshared(
            _test(
                what,
                lambda drawn: runner.group(drawn, MOST_VARIANTS),
                phases=phases,
                max_examples=REMEMBERED,
                database=database,
            )
        )


def _pool_size(what: Fuzz, seed: int, draws: int) -> int:
    """Return the number of draws among which ``draws`` of a seed were chosen."""
    return what.source.pool(seed, draws_for(draws, what.subjects)).size


def _shrunk(
    what: Fuzz,
    runner: ExampleRunner,
    text: str,
    strategy: Any,
    *,
    seed: int,
    examples: int,
    most: int,
) -> None:
    """Shrink the failure, save the simplest example, and raise its error.

    Hypothesis draws the same examples again, and sees one failure.
    """

    def example(drawn: Any) -> None:
        __tracebackhide__ = True
        if seen or draw_name(drawn) == text:
            seen.append(True)
            runner.group(drawn, most)

    seen: list[bool] = []
    phases = [Phase.generate, Phase.shrink] if what.shrink else [Phase.generate]
    with planning(), without_module_constants():  # as in choose
        test = _test(
            what,
            example,
            strategy=strategy,
            phases=phases,
            max_examples=examples,
            seed=seed,
            database=what.database,
            backend=PLANNED,
        )
        unshared(test)


def _test(
    what: Fuzz,
    example: Callable[[Any], None],
    *,
    phases: list[Phase],
    strategy: Any = None,
    max_examples: int = 1,
    seed: int | None = None,
    database: Any = None,
    backend: str = "hypothesis",
) -> Any:
    """Return a Hypothesis test of ``example``; ``database`` gets its failures."""

    def run_example(drawn: Any) -> None:
        __tracebackhide__ = True
        run_shared(example, drawn)

    test = hypothesis.given(drawn=what.source.strategy if strategy is None else strategy)(
        run_example
    )
    if seed is not None:
        test = hypothesis.seed(seed)(test)  # which sets the database to None, until settings follow
    test = hypothesis.settings(
        max_examples=max_examples,
        deadline=None,
        phases=phases,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        database=database,
        backend=backend,
    )(test)
    set_database_key(test, what.key)
    return test


# Run the calls of one check, each once, until one fails and its shrinking takes too long.


#: Time limit in seconds for shrinking after the first failure: every new shape is compiled, so
#: Hypothesis would often use its own limit of five minutes.
SHRINK_SECONDS = 20.0


@dataclass
class ExampleRunner:
    """Runs calls, each once: Hypothesis repeats examples.

    Attributes:
      run: see ``Fuzz``.
      passed: calls that passed, by their words.
      shrink_seconds: how long after the first failure new calls may still run.
      until: when to stop, by ``time.monotonic``; None for never.
      failed: the calls that failed, with their errors.
      growth: gets what the calls reached.
    """

    run: Callable[[Any], object]
    passed: set[str]
    shrink_seconds: float = SHRINK_SECONDS
    until: float | None = None
    failed: dict[str, Exception] = field(default_factory=dict[str, Exception])
    first_failure: float | None = None
    growth: Growth | None = None

    @property
    def over(self) -> bool:
        """Whether no new call may run."""
        if self.first_failure is not None:
            return agreed(time.monotonic() - self.first_failure >= self.shrink_seconds)
        return self.until is not None and agreed(time.monotonic() >= self.until)

    def group(self, drawn: Any, most: int) -> None:
        """Run a draw and its variants, ``most`` in all.

        Raises:
          Exception: the error of the first failure.
        """
        __tracebackhide__ = True
        mark_drawn(drawn)
        for call in islice(chain([drawn], variants(drawn)), most):
            self.one(call)

    def one(self, call: Any) -> None:
        """Run a call, unless it ran before or time is over."""
        __tracebackhide__ = True
        text = draw_name(call)
        if text in self.failed:
            raise self.failed[text]
        if text in self.passed or self.over:
            return
        try:
            result = self.run(call)
        except Exception as error:
            if type(error) in _REFUSALS and exceeds_declared(call):
                self.passed.add(text)
                return
            self.first_failure = self.first_failure or time.monotonic()
            self.failed[text] = error
            if getattr(error, "timed_out", False):
                self.shrink_seconds = 0.0  # each further call could take as long
            raise
        self.passed.add(text)
        if self.growth is not None:
            self.growth.note(call, result)
