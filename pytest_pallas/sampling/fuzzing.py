"""Draw examples of a spec and run a check on each, with hypothesis' own machinery.

What failed before runs first. Then come draws that differ most (``variety``), each with siblings of
other values, which cost next to nothing once a shape is compiled. Only what fails goes through
hypothesis once more, which shrinks it and keeps it for the next run.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any
from unittest import SkipTest

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import DidNotReproduce, InvalidArgument

from pytest_pallas.checks.inputs import inputs_of
from pytest_pallas.compat.fuzzing import set_database_key, without_module_constants
from pytest_pallas.errors import OptionError
from pytest_pallas.sampling.diversity import Choice, Source, Subjects, pool_size, words_of
from pytest_pallas.strategies.arguments import as_arguments
from pytest_pallas.strategies.value_variants import MOST, settle, siblings

#: Seconds that shrinking may go on after the first failure: every new shape is compiled, so
#: hypothesis' own limit of five minutes would be spent often.
SHRINK_SECONDS = 20.0

#: Up to this many examples, each is another draw; of more, some are siblings: up to ``EACH`` of a
#: draw, itself included.
DRAWS, EACH = 8, 8

#: Up to this many examples of earlier runs that pass by now are asked about, until one fails.
REMEMBERED = 10

#: Draws of a round of fuzzing for a time.
ROUND = 32

#: Two fifths of the time go to new shapes, or more where siblings are soon done.
CHEAP = 1.5

_BLOB = re.compile(r"reproduce_failure\('([^']*)', b'([^']*)'\)")


@dataclass(frozen=True, kw_only=True)
class Fuzz:
    """What to run, and where failures are kept.

    Attributes:
      run: raises if the example fails.
      source: of the examples.
      key: names the question in hypothesis' example database: failures are kept and replayed
        first under it, on every backend.
      shrink: whether to look for a simpler failing example.
      database: hypothesis' database of failing examples, or None to keep none.
      passed: calls that passed so far, by their words: they are not asked about again.
      shapes: signatures of the draws of all rounds so far: those of other shapes come first.
      subjects: see ``Source.choose``.
    """

    run: Callable[[Any], object]
    source: Source
    key: str
    shrink: bool = True
    database: Any = None
    passed: set[str] = field(default_factory=set[str])
    shapes: set[str] = field(default_factory=set[str])
    subjects: Subjects | None = None


@dataclass
class ExampleRunner:
    """Asks about calls, each once: hypothesis repeats itself, and checks repeat on purpose.

    Attributes:
      run: see ``Fuzz``, as for ``passed``.
      passed: calls that passed, by their words.
      shrink_seconds: how long after the first failure calls that are new are still asked about.
      until: when to stop asking, by ``time.monotonic``; None for never.
      failed: those that failed, with their errors.
    """

    run: Callable[[Any], object]
    passed: set[str]
    shrink_seconds: float = SHRINK_SECONDS
    until: float | None = None
    failed: dict[str, Exception] = field(default_factory=dict[str, Exception])
    first_failure: float | None = None

    @property
    def over(self) -> bool:
        """Whether no new call may be asked about."""
        if self.first_failure is not None:
            return time.monotonic() - self.first_failure > self.shrink_seconds
        return self.until is not None and time.monotonic() >= self.until

    def group(self, drawn: Any, most: int) -> None:
        """Ask about a draw and its siblings, ``most`` in all.

        Raises:
          Exception: what ``run`` raised for the first that fails.
        """
        __tracebackhide__ = True
        settle(drawn)
        for call in islice(chain([drawn], siblings(drawn)), most):
            self.one(call)

    def one(self, call: Any) -> None:
        """Ask about a call, unless it was asked about before or time is over."""
        __tracebackhide__ = True
        words = words_of(call)
        if words in self.failed:
            raise self.failed[words]
        if words in self.passed or self.over:
            return
        try:
            self.run(call)
        except Exception as error:
            self.first_failure = self.first_failure or time.monotonic()
            self.failed[words] = error
            raise
        self.passed.add(words)


def fuzz(
    what: Fuzz,
    *,
    seed: int,
    max_examples: int,
    until: float | None = None,
    remember: bool = True,
) -> None:
    """Ask about ``max_examples`` different examples, and shrink the first that fails.

    Args:
      what: the question.
      seed: seed of the draws.
      max_examples: how many examples to run.
      until: when to stop, by ``time.monotonic``; None for never.
      remember: whether to begin with what failed in earlier runs.

    Raises:
      Exception: what ``what.run`` raised for the simplest failing example.
    """
    __tracebackhide__ = True
    runner = ExampleRunner(what.run, what.passed, until=until)
    if remember:
        _remembered(what, runner)
    draws, calls = _planned(what.source, seed, max_examples, what.subjects)
    _explore(what, runner, calls, seed=seed, draws=draws)


def drawn_calls(
    source: Source, seed: int, max_examples: int, subjects: Subjects | None = None
) -> Iterator[Any]:
    """The calls that ``fuzz`` asks about."""
    return (planned.call for planned in _planned(source, seed, max_examples, subjects)[1])


def fuzz_until(what: Fuzz, *, seed: int, until: float) -> None:
    """Ask about ``ROUND`` draws until a time, each with siblings as long as they are cheap.

    That is as long as they took no more than ``CHEAP`` times what the draw itself took, which was
    compiled.

    Args:
      what: the question.
      seed: seed of the draws.
      until: when to stop, by ``time.monotonic``.

    Raises:
      Exception: as ``fuzz``.
    """
    __tracebackhide__ = True
    runner = ExampleRunner(what.run, what.passed, until=until)
    choice = what.source.choose(seed, ROUND, functools.partial(_new, what))
    what.shapes.update(map(_shape, choice.chosen.values()))
    spent = _Spent()
    calls = _calls(choice, MOST, lambda: spent.siblings > CHEAP * spent.draw)
    _explore(what, runner, calls, seed=seed, draws=ROUND, spent=spent)


def _new(what: Fuzz, drawn: Any) -> Collection[Any]:
    """What is new of a draw: nothing if its shape was asked about, else all there is to ask."""
    shape = _shape(drawn)
    if shape in what.shapes:
        return ()
    if what.subjects is None:
        return (shape,)
    return [(shape, each) for each in what.subjects(drawn)]


def _shape(drawn: Any) -> str:
    """The signature of a draw, which may be looked at by now."""
    return inputs_of(as_arguments(drawn)).signature


@dataclass
class _Spent:
    """Seconds that were spent on a draw, the last one that was not asked about before.

    Attributes:
      draw: on itself.
      siblings: on the siblings of the current draw.
    """

    draw: float = math.inf
    siblings: float = 0.0

    def add(self, number: int, seconds: float) -> None:
        """Add the seconds of a call; see ``_Planned.number``."""
        if number:
            self.siblings += seconds
        else:
            self.draw = seconds


@dataclass(frozen=True)
class _Planned:
    """A call to ask about.

    Attributes:
      call: the call.
      words: of the draw that it is or is a sibling of.
      number: of the sibling, from 1; the draw itself has 0.
    """

    call: Any
    words: str
    number: int


def _planned(
    source: Source, seed: int, examples: int, subjects: Subjects | None
) -> tuple[int, Iterator[_Planned]]:
    """How many draws so many examples take, and the calls to ask about."""
    draws, each = effort(examples)
    choice = source.choose(seed, draws, subjects)
    each = min(MOST, max(each, math.ceil(examples / max(1, len(choice.chosen)))))
    return draws, islice(_calls(choice, each), examples)


def _calls(
    choice: Choice, each: int, enough: Callable[[], bool] = lambda: False
) -> Iterator[_Planned]:
    """The chosen draws, ``each`` with its siblings, as long as those are not ``enough``."""
    for words, drawn in choice.chosen.items():
        for number, call in enumerate(islice(chain([drawn], siblings(drawn)), each)):
            yield _Planned(call, words, number)
            if enough():
                break


def _explore(
    what: Fuzz,
    runner: ExampleRunner,
    calls: Iterable[_Planned],
    *,
    seed: int,
    draws: int,
    spent: _Spent | None = None,
) -> None:
    """Ask about calls, and shrink the first that fails; ``spent`` is told how long they take."""
    __tracebackhide__ = True
    spent = _Spent() if spent is None else spent
    for planned in calls:
        if not planned.number:
            spent.siblings = 0.0
        if words_of(planned.call) in runner.passed:
            continue
        started = time.monotonic()
        try:
            runner.one(planned.call)
        except Exception as error:
            most = max(EACH, planned.number + 1)
            _shrunk(what, runner, planned.words, seed=seed, draws=draws, each=most)
            raise error from error.__cause__
        if runner.over:
            return
        spent.add(planned.number, time.monotonic() - started)


def replay(what: Fuzz, blob: str) -> None:
    """Ask about one example again (see ``blob_of``).

    Raises:
      Exception: what ``what.run`` raised for it.
      OptionError: ``blob`` is no example of the strategy.
    """
    __tracebackhide__ = True
    runner = ExampleRunner(what.run, what.passed)
    test = _test(what, lambda drawn: runner.group(drawn, MOST), phases=[Phase.explicit])
    test = hypothesis.reproduce_failure(hypothesis.__version__, blob.encode())(test)
    try:
        test()
    except (DidNotReproduce, InvalidArgument) as error:
        if not runner.passed:
            raise OptionError(
                f"--pallas-replay={blob}: cannot replay {what.key}: its strategy or Hypothesis "
                "changed since the example was saved. Run it without --pallas-replay."
            ) from error
        # The failure is mended, which hypothesis calls an error.


def blob_of(error: BaseException) -> str:
    """The text with which ``replay`` runs the failing example again, or "" if there is none."""
    for note in reversed(getattr(error, "__notes__", ())):
        found = _BLOB.search(note)
        if found:
            return found.group(2)
    return ""


def effort(examples: int) -> tuple[int, int]:
    """How many draws to make for so many examples, and how many calls of each to ask about.

    Up to ``DRAWS`` examples each is a draw. Beyond, draws and siblings grow alike, as the square
    root, until each draw has ``EACH`` calls.
    """
    each = min(EACH, max(1, round(math.sqrt(examples / DRAWS))))
    return math.ceil(examples / each), each


def _remembered(what: Fuzz, runner: ExampleRunner) -> None:
    """Ask about what failed in earlier runs, here or on other backends."""
    phases = [Phase.reuse, Phase.shrink] if what.shrink else [Phase.reuse]
    # SkipTest is what hypothesis raises where nothing is kept.
    with without_module_constants(), suppress(SkipTest):
        _test(
            what,
            lambda drawn: runner.group(drawn, MOST),
            phases=phases,
            max_examples=REMEMBERED,
        )()


def _shrunk(
    what: Fuzz, runner: ExampleRunner, words: str, *, seed: int, draws: int, each: int
) -> None:
    """Raise the error of the simplest example like the one that failed, and keep that one.

    Hypothesis draws what was drawn before, and gets to see one failure.
    """

    def example(drawn: Any) -> None:
        __tracebackhide__ = True
        if seen or words_of(drawn) == words:
            seen.append(True)
            runner.group(drawn, each)

    seen: list[bool] = []
    phases = [Phase.generate, Phase.shrink] if what.shrink else [Phase.generate]
    test = _test(what, example, phases=phases, max_examples=pool_size(draws), seed=seed)
    with without_module_constants():  # as in choose
        test()


def _test(
    what: Fuzz,
    example: Callable[[Any], None],
    *,
    phases: list[Phase],
    max_examples: int = 1,
    seed: int | None = None,
) -> Any:
    """A hypothesis test of ``example``."""

    def asks(drawn: Any) -> None:
        __tracebackhide__ = True
        example(drawn)

    test = hypothesis.given(drawn=what.source.strategy)(asks)
    if seed is not None:
        test = hypothesis.seed(seed)(test)  # which sets the database to None, until settings follow
    test = hypothesis.settings(
        max_examples=max_examples,
        deadline=None,
        phases=phases,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        database=what.database,
    )(test)
    set_database_key(test, what.key)
    return test
