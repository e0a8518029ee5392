"""Draw examples of a spec and ask a check about each, with hypothesis' own machinery."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import DidNotReproduce, InvalidArgument

from pytest_pallas import compat
from pytest_pallas.errors import OptionError
from pytest_pallas.suites.variety import Choice, choose, pool_size

#: Seconds that shrinking may go on after the first failure: every new shape is compiled, so
#: hypothesis' own limit of five minutes would be spent often.
SHRINK_SECONDS = 20.0

_BLOB = re.compile(r"reproduce_failure\('([^']*)', b'([^']*)'\)")


@dataclass
class Budget:
    """Stops shrinking when its time is over: examples that are new then pass unseen."""

    seconds: float
    first_failure: float | None = None
    failing: set[str] = field(default_factory=set[str])

    def spent(self, example: str) -> bool:
        """Whether to leave out an example. One that failed before is run again."""
        return (
            self.first_failure is not None
            and time.monotonic() - self.first_failure > self.seconds
            and example not in self.failing
        )

    def failed(self, example: str) -> None:
        """Remember that an example failed."""
        self.first_failure = self.first_failure or time.monotonic()
        self.failing.add(example)


def fuzz(
    ask: Callable[[Any], None],
    strategy: Any,
    *,
    key: str,
    seed: int,
    max_examples: int,
    shrink: bool = True,
    blob: str = "",
) -> None:
    """Ask about ``max_examples`` different examples of ``strategy``; shrink the first that fails.

    Args:
      ask: raises if the example fails.
      strategy: draws the examples.
      key: names the question in hypothesis' example database: failures are kept and replayed
        first under it, on every backend.
      seed: seed of the draws.
      max_examples: how many examples to draw.
      shrink: whether to look for a simpler failing example.
      blob: run this one example instead (see ``blob_of``).

    Raises:
      Exception: what ``ask`` raised for the simplest failing example.
      OptionError: ``blob`` is no example of the strategy.
    """
    budget = Budget(SHRINK_SECONDS)
    passed: set[str] = set()
    choice = Choice(frozenset(), {})
    if not blob:
        choice = choose(strategy, seed=seed, examples=max_examples)
    left_out = choice.everything - set(choice.chosen)
    del choice  # with every value that was drawn

    def example(drawn: Any) -> None:
        __tracebackhide__ = True
        words = repr(drawn)
        if budget.spent(words):
            return
        if words in passed:
            return  # hypothesis repeats itself; the determinism check does so on purpose
        # What is in neither comes from the database, or from shrinking.
        if words in left_out and budget.first_failure is None:
            return
        try:
            ask(drawn)
        except Exception:
            budget.failed(words)
            raise
        passed.add(words)

    phases = [Phase.reuse, Phase.generate, Phase.explicit] + ([Phase.shrink] if shrink else [])
    test = hypothesis.given(drawn=strategy)(example)
    test = hypothesis.seed(seed)(test)
    test = hypothesis.settings(
        max_examples=pool_size(max_examples),
        deadline=None,
        phases=phases,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )(test)
    compat.set_database_key(test, key)
    if blob:
        test = hypothesis.reproduce_failure(hypothesis.__version__, blob.encode())(test)
    try:
        test()
    except (DidNotReproduce, InvalidArgument) as error:
        if not blob:
            raise
        if not passed:
            raise OptionError(
                f"--pallas-example={blob}: this is no example of {key}: its inputs have changed, "
                "or another version of hypothesis drew it. Run it again without --pallas-example."
            ) from error
        # The failure is mended, which hypothesis calls an error.


def blob_of(error: BaseException) -> str:
    """The text with which ``fuzz`` runs the failing example again, or "" if there is none."""
    for note in getattr(error, "__notes__", ()):
        found = _BLOB.search(note)
        if found:
            return found.group(2)
    return ""
