"""In a worker: say what is about to be done, and end the process when a step of it does not end."""

from __future__ import annotations

import dataclasses
import faulthandler
from collections.abc import Callable, Sequence
from typing import Any

from pytest_pallas.analysis.hazards import hazards
from pytest_pallas.backends import Call
from pytest_pallas.explanations import Fact
from pytest_pallas.isolation.messages import Note

#: Seconds that everything but a kernel may take, at least, and as a multiple of --pallas-timeout:
#: setting up, drawing, the reference in float64, tearing down.
LEAST, MULTIPLE = 60.0, 5.0

#: How many lines of an example are said, and how many characters of each.
_LINES, _WIDTH = 8, 300


def limit_of(timeout: float) -> float:
    """Seconds until a kernel is taken to hang in the interpreter or compiler itself.

    Later than ``timeout``, at which an interpreter is stopped that only waits.
    """
    return timeout + min(max(timeout / 2, 1.0), 10.0)


def longest(timeout: float) -> float:
    """Seconds that any step may take."""
    return max(LEAST, MULTIPLE * limit_of(timeout))


class Alarm:
    """An ``Observer`` of calls that arms ``faulthandler`` anew at each step.

    That needs neither the interpreter's lock nor its main thread, so it also ends a process whose
    kernel holds the one or is in XLA.
    """

    def __init__(self, say: Callable[[bytes], None], output: int) -> None:
        """Nothing is armed yet.

        Args:
          say: tells the parent.
          output: descriptor of the file that the parent reads tracebacks from.
        """
        self._say, self._output = say, output
        self._timeout = LEAST
        self._note = Note(step="start", limit=LEAST)
        self.hazards: list[str] | None = None

    def begin(self, step: str, timeout: float) -> None:
        """A test begins, whose kernels may take ``timeout`` seconds."""
        self._timeout = timeout
        self.hazards = None
        self._step(Note(step=step, limit=longest(timeout)))

    def stop(self) -> None:
        """Wait for nothing."""
        faulthandler.cancel_dump_traceback_later()

    def example(self, tally: Any, facts: Sequence[Fact]) -> None:
        """An example of a tally is about to be asked about."""
        note = Note(
            step="an example",
            limit=longest(self._timeout),
            kernel=tally.kernel,
            check=tally.check,
            backend=tally.backend,
            examples=tally.examples,
            drawn=[(fact.name, fact.text[:_WIDTH]) for fact in facts[:_LINES]],
        )
        self._step(note)

    def traced(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """A call is about to be compiled and executed."""
        self.hazards = self.hazards or []
        self.hazards += [] if jaxpr is None else hazards(jaxpr)
        self._begins(call, kernels)

    def simulated(self, call: Call, jaxpr: Any, kernels: Sequence[Any]) -> None:
        """A call is about to be simulated."""
        self.hazards = self.hazards or []
        self.hazards += [] if jaxpr is None else hazards(jaxpr, simulated=True)
        self._begins(call, kernels)

    def _begins(self, call: Call, kernels: Sequence[Any]) -> None:
        running = [f"{kernel.name} at {kernel.source}" for kernel in kernels]
        self._step(
            dataclasses.replace(
                self._note, step="a kernel", limit=limit_of(call.timeout), running=running
            )
        )

    def ended(self, call: Call) -> None:
        """A call has been executed."""
        del call
        limit = longest(self._timeout)
        self._step(dataclasses.replace(self._note, step="the rest", limit=limit, running=()))

    def _step(self, note: Note) -> None:
        self._note = note
        self._say(note.encode())
        faulthandler.dump_traceback_later(note.limit, exit=True, file=self._output)
