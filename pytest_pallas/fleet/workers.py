"""The workers of a run: which take part, which are refused, silent or lost."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_pallas.decoding import DataError
from pytest_pallas.fleet.cluster import Cluster, Ended, WorkerInfo
from pytest_pallas.fleet.messages import Answer, decoded
from pytest_pallas.session.fleet import FleetFacts

#: How a worker is lost that the scheduler does not know any more.
CLOSED = "its connection to the scheduler was closed"


@dataclass(frozen=True)
class Silent:
    """A worker of which nothing was heard for some seconds."""

    address: str
    seconds: float


class Workers:
    """The workers of a run.

    Attributes:
      known: those that the scheduler knows, by address.
      greetings: the workers that have not answered yet, by the key of the question.
    """

    def __init__(
        self,
        cluster: Cluster,
        facts: FleetFacts,
        *,
        greet: Callable[..., None],
        say: Callable[[str], None],
        silence: float,
    ) -> None:
        """Know none yet.

        Args:
          cluster: the scheduler.
          facts: what the report says of the workers.
          greet: asks a worker whether it can take part, by a ``key`` and its ``address``.
          say: prints a line.
          silence: seconds without a sign of life after which a worker is silent.
        """
        self.known: dict[str, WorkerInfo] = {}
        self.greetings: dict[str, str] = {}
        self._cluster, self._facts, self._greet, self._say = cluster, facts, greet, say
        self._silence = silence
        self._names: dict[str, str] = {}
        self._accepted: set[str] = set()
        self._silent: set[str] = set()
        self._keys = (
            f"pallas-greeting-{uuid.uuid4().hex}-{number}" for number in itertools.count(1)
        )

    @property
    def active(self) -> list[str]:
        """The addresses of those that get tasks."""
        return sorted((self._accepted - self._silent) & self.known.keys())

    @property
    def threads(self) -> int:
        """The number of tasks that they run at a time."""
        return sum(self.known[address].threads for address in self.active)

    def name_of(self, address: str) -> str:
        """A worker in words."""
        return self._names.get(address, address)

    def look(self) -> Iterator[Silent]:
        """Greet new workers, notice lost ones, and yield those that are silent.

        Raises:
          ClusterLostError: the scheduler does not answer.
        """
        now = self._cluster.workers()
        for address in self.known.keys() - now.keys():
            self._left(address)
        for address in now.keys() - self.known.keys():
            key = next(self._keys)
            self.greetings[key] = address
            self._greet(key=key, address=address)
        self.known = dict(now)
        for address, info in now.items():
            if info.silence > self._silence:
                self._is_silent(address, info.silence)
                yield Silent(address, info.silence)
            elif address in self._silent:
                self._silent.discard(address)
                self._say(f"worker {self.name_of(address)} answers again")

    def _left(self, address: str) -> None:
        """The scheduler does not know a worker any more."""
        for key in [key for key, at in self.greetings.items() if at == address]:
            del self.greetings[key]
            self._cluster.cancel([key])
        self._silent.discard(address)
        if address in self._accepted:
            self._accepted.discard(address)
            self._facts.lost.pop(self.name_of(address), None)  # it was silent before
            self.lose(self.name_of(address))

    def lose(self, worker: str) -> None:
        """Report a worker that was lost, also one that had a task before it was greeted."""
        if worker not in self._facts.lost:
            self._facts.lost[worker] = CLOSED
            self._say(f"lost worker {worker}: {CLOSED}")

    def _is_silent(self, address: str, seconds: float) -> None:
        if address in self._silent:
            return
        self._silent.add(address)
        if address in self._accepted:
            self._facts.lost[self.name_of(address)] = f"silent for {seconds:.0f} s"
            self._say(f"worker {self.name_of(address)} is silent for {seconds:.0f} s")

    def greeted(self, key: str, ended: Ended | None) -> bool:
        """Take the answer of a worker; False if the key is not that of a greeting."""
        address = self.greetings.pop(key, None)
        if address is None:
            return False
        if ended is None:
            return True
        if ended.problem:
            self.refuse(address, f"it cannot run pytest-pallas: {ended.problem}")
            return True
        try:
            answer = decoded(Answer, ended.answer)
        except DataError as error:
            self.refuse(address, f"it gave an answer that cannot be read: {error}")
            return True
        self._names[address] = answer.worker
        if answer.refused:
            self.refuse(answer.worker, answer.refused)
            return True
        self._accepted.add(address)
        self._facts.workers += 1
        if self._facts.done:
            self._say(f"worker {answer.worker} takes part")
        return True

    def refuse(self, worker: str, why: str) -> None:
        """Let a worker have no tests."""
        if worker not in self._facts.refused:
            self._facts.refused[worker] = why
            self._say(f"refused worker {worker}: {why}")
