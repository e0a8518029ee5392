"""Run the calls of one check, each once, until one fails and its shrinking takes too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from pytest_pallas.sampling.diversity import words_of
from pytest_pallas.sampling.together import agreed
from pytest_pallas.strategies.value_variants import settle, variants

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
    """

    run: Callable[[Any], object]
    passed: set[str]
    shrink_seconds: float = SHRINK_SECONDS
    until: float | None = None
    failed: dict[str, Exception] = field(default_factory=dict[str, Exception])
    first_failure: float | None = None

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
        settle(drawn)
        for call in islice(chain([drawn], variants(drawn)), most):
            self.one(call)

    def one(self, call: Any) -> None:
        """Run a call, unless it ran before or time is over."""
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
            if getattr(error, "timed_out", False):
                self.shrink_seconds = 0.0  # each further call could take as long
            raise
        self.passed.add(words)
