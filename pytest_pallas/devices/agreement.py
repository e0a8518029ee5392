"""What the processes of a gang tell each other while they run a test.

A gang is one ``jax.distributed`` program whose processes run the same tests at the same time. A
collective waits for all of them, so all must run the same calls: each example ends with an
agreement on whether it failed anywhere. A process that leaves a test says so, so that no other one
waits for it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_pallas.errors import PeerError

if TYPE_CHECKING:
    from pytest_pallas.compat.coordination import Store

#: Seconds that a process which failed waits for the others, to fail together with them.
PATIENCE = 2.0

#: Seconds between looks at which processes have left the test.
_LOOK = 0.5


@dataclass(frozen=True, kw_only=True)
class Member:
    """The place of this process in its gang.

    Attributes:
      process: its number, from 0, as ``jax.process_index()``.
      hosts: the name of the host of each process.
    """

    process: int
    hosts: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number of processes."""
        return len(self.hosts)


class OutOfStepError(BaseException):
    """A failure that the other processes do not know, because they wait in a collective.

    Not an ``Exception``, so that neither Hypothesis nor a kernel handles it: this process must run
    no further call.
    """

    def __init__(self, error: Exception) -> None:
        """With the failure."""
        super().__init__(str(error))
        self.error = error


class Agreement:
    """The messages of one process about its test. Not for several threads."""

    def __init__(self, member: Member, store: Store, key: str = "") -> None:
        """Of a member, through the store of its program; ``key`` begins all keys."""
        self.member = member
        self._store = store
        self._root = key
        self._test = ""
        self._limit = 0.0
        self._number = 0

    def begin(self, test: str, limit: float) -> Mapping[int, str]:
        """Wait until all processes begin a test.

        Args:
          test: the key of the test, a new one for each time that a test is run.
          limit: time limit in seconds of this and of every later wait.

        Returns:
          The processes that did not come, by number, with the name of the host.
        """
        self._test, self._limit, self._number = f"{self._root}{test}", limit, 0
        return self._meet("begin", limit)

    def end(self, outcome: str) -> Mapping[int, str]:
        """End a test: wait for the others if it passed, otherwise tell them that this one left.

        Returns:
          The processes that did not come.
        """
        if outcome != "passed":
            self._store.put(f"{self._test}/left/{self.member.process}", outcome.encode())
            return {}
        return self._meet("end", self._limit)

    def settle(self, error: Exception | None) -> None:
        """Agree with all other processes on an example.

        Args:
          error: why it failed here, or None.

        Raises:
          PeerError: it failed in other processes only, which the message names.
          OutOfStepError: it failed here, and the others did not come.
          Exception: ``error``.
        """
        self._number += 1
        place = f"{self._test}/{self._number}"
        text = "" if error is None else f"{type(error).__name__}: {_first_line(error)}"
        self._store.put(f"{place}/{self.member.process}", text.encode())
        until = time.monotonic() + (self._limit if error is None else PATIENCE)
        failed: dict[int, str] = {}
        for process in self._others():
            found = self._wait(f"{place}/{process}", process, until)
            if found is None and error is not None:
                raise OutOfStepError(error)
            if found is None:
                found = "it did not come to the end of this example"
            if found:
                failed[process] = found
        if error is not None:
            raise error
        if failed:
            words = "; ".join(f"{self.name_of(each)}: {why}" for each, why in failed.items())
            peers = PeerError(f"the example failed in {words}")
            peers.processes = tuple(failed)
            raise peers

    @contextlib.contextmanager
    def settled(self) -> Generator[None]:
        """Agree on the example that the body runs; raises as ``settle``."""
        __tracebackhide__ = True
        try:
            yield
        except Exception as error:
            self.settle(error)
            raise
        self.settle(None)

    def name_of(self, process: int) -> str:
        """A process for messages: ``process 1 (host)``."""
        return f"process {process} ({self.member.hosts[process]})"

    def _others(self) -> list[int]:
        return [each for each in range(self.member.count) if each != self.member.process]

    def _meet(self, what: str, limit: float) -> Mapping[int, str]:
        """Wait for all; returns those that did not come."""
        place = f"{self._test}/{what}"
        self._store.put(f"{place}/{self.member.process}", b"")
        until = time.monotonic() + limit
        missing: dict[int, str] = {}
        for process in self._others():
            if self._wait(f"{place}/{process}", process, until) is None:
                missing[process] = self.member.hosts[process]
        return missing

    def _wait(self, key: str, process: int, until: float) -> str | None:
        """The text of a key; None if its process has left the test, or the time is over."""
        while True:
            left = until - time.monotonic()
            found = self._store.get(key, min(_LOOK, max(left, 0.0)))
            if found is not None:
                return found.decode()
            if left <= 0:
                return None
            if self._store.get(f"{self._test}/left/{process}", 0.0) is not None:
                return None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
