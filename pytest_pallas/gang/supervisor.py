"""Start the processes of a host, have all of them run a test, and start them anew when one died."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.distributed import Place
from pytest_pallas.decoding import DataError
from pytest_pallas.errors import GangError
from pytest_pallas.gang.hosts import HostStore
from pytest_pallas.gang.layout import Layout, free_port
from pytest_pallas.gang.messages import (
    ENTRY,
    STEPS,
    Collected,
    RunTest,
    Start,
    StartFailure,
    TestEnd,
    from_json,
    request_to_json,
    to_json,
    unpacked,
)
from pytest_pallas.isolation.crash_reports import longest
from pytest_pallas.isolation.messages import Opening, StepNote
from pytest_pallas.isolation.requests import preloads
from pytest_pallas.workers import JobResult, WorkerPool, WorkerSetup

#: Seconds until the processes that wait for one that died are killed, and for one that failed:
#: they may be about to fail as well.
DIED_SECONDS, FAILED_SECONDS = 1.0, 3.0

#: Seconds between looks at other hosts.
_LOOK = 0.25

#: Seconds after a process's own time limits until it is killed.
_GRACE = 15.0


@dataclass(frozen=True, kw_only=True)
class GangSettings:
    """What all processes of a gang have in common.

    Attributes:
      opening: the configuration of their sessions.
      address: name of the first host, for the coordinator of the processes.
      host: the name of this host.
      join_seconds: time limit for all processes to start and to collect.
      memory_bytes: limit on the memory of each.
    """

    opening: Opening
    address: str
    host: str
    join_seconds: float
    memory_bytes: int


class Gang:
    """The processes of this host, and the agreement with other hosts about each test."""

    def __init__(self, layout: Layout, store: HostStore, settings: GangSettings) -> None:
        """Create without starting a process."""
        self.layout, self.settings = layout, settings
        self.hosts: tuple[str, ...] = ()
        self._store = store
        self._generation = -1
        self._number = 0
        self._timeout = 0.0
        self._pool: WorkerPool | None = None

    @property
    def leads(self) -> bool:
        """Whether this host reports."""
        return self.layout.host == 0

    def start(self) -> Collected:
        """Start all processes, and let them collect.

        Returns:
          What process 0 has collected.

        Raises:
          GangError: a process did not start, or collected other tests.
        """
        if not self.hosts:
            self.hosts = self._meet_hosts()
        self._generation += 1
        address = self._address()
        self._pool = WorkerPool(len(self.layout.processes))
        limit = self.settings.join_seconds
        futures = {
            number: self._submit(number, self._start_message(number, address), 2 * limit + _GRACE)
            for number in self.layout.processes
        }
        wait(futures.values(), timeout=2 * limit)
        late = [number for number, future in futures.items() if not future.done()]
        if late:
            self.close_processes()
        found = [self._started(n, future.result(), n in late) for n, future in futures.items()]
        every = self._shared(f"started/{self._generation}", found, 2 * limit + 2 * _GRACE)
        failures = [each for each in every if isinstance(each, StartFailure)]
        if failures:
            self.close_processes()
            raise GangError(_start_failures(failures, self.layout.count))
        first = every[0] if every else None
        if not isinstance(first, Collected):
            raise GangError(self._absent(0, "sent no collection"))
        self._timeout = first.timeout
        return first

    def run(self, nodeid: str, raised: Mapping[str, tuple[str, str, bool]]) -> Sequence[TestEnd]:
        """Run a test in all processes; starts them if one has died before.

        Args:
          nodeid: its node id.
          raised: the kernels that raised in earlier tests, as in ``PytestSession``.

        Returns:
          The end of the test in each process of all hosts.

        Raises:
          GangError: the processes cannot start, or a host has gone.
        """
        if self._pool is None:
            self.start()
        self._number += 1
        key = f"{self._generation}/{self._number}"
        message = RunTest(nodeid=nodeid, key=key, raised=raised)
        futures = {
            number: self._submit(number, message, longest(self._timeout) + _GRACE)
            for number in self.layout.processes
        }
        ends = self._gathered(futures)
        every = self._shared(f"ends/{key}", ends, None)
        if any(end.died is not None or end.stopped or end.absent for end in every):
            self.close_processes()
        return every

    def close_processes(self) -> None:
        """Kill the processes of this host."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def close(self) -> None:
        """Kill the processes, and leave the other hosts."""
        self.close_processes()
        self._store.close()

    def _meet_hosts(self) -> tuple[str, ...]:
        """The name of the host of each process.

        Raises:
          GangError: a host did not come.
        """
        names = [self.settings.host] * len(self.layout.processes)
        found = self._shared("hosts", names, self.settings.join_seconds)
        return tuple(map(str, found))

    def _address(self) -> str:
        """The coordinator of the next generation: a free port of the first host."""
        key = f"address/{self._generation}"
        if self.leads:
            self._store.put(key, f"{self.settings.address}:{free_port()}".encode())
        found = self._store.get(key, self.settings.join_seconds)
        if found is None:
            raise GangError(
                f"{self.hosts[0]}, the first host, did not start within "
                f"{self.settings.join_seconds:g} s"
            )
        return found.decode(errors="replace")

    def _start_message(self, number: int, address: str) -> Start:
        return Start(
            place=Place(address, self.layout.count, number, self.layout.devices),
            opening=self.settings.opening,
            seconds=self.settings.join_seconds,
        )

    def _submit(self, number: int, message: Start | RunTest, timeout: float) -> Future[JobResult]:
        assert self._pool is not None
        environment = self.layout.environments[number - self.layout.first]
        setup = WorkerSetup(
            name=f"process {number}",
            job="the test",
            entry=ENTRY,
            environment=tuple(environment.items()),
            memory_bytes=self.settings.memory_bytes,
            talks=True,
            # Drivers of accelerators start in processes of their own.
            preloads=preloads() if environment.get("JAX_PLATFORMS") == "cpu" else (),
        )
        return self._pool.submit(setup, request_to_json(message), timeout=timeout)

    def _started(self, number: int, result: JobResult, late: bool) -> Collected | StartFailure:
        """What a process has collected, or why it cannot be used."""
        if result.status == "done":
            collected: Collected = unpacked(result.value)
            if not collected.problem:
                return collected
            reason, step = collected.problem, len(STEPS) - 1
        else:
            note = StepNote.decode(result.note)
            # Other steps are of kernels that run while tests are collected.
            known = note is None or note.step in STEPS
            step = STEPS.index("" if note is None else note.step if known else "collection")
            reason = result.fate or result.message
            if late:
                reason = f"did not start within {2 * self.settings.join_seconds:g} s"
            if note is not None:
                reason += f" (step: {note.step})"
            if not late and result.output.strip():
                reason += f"\n{result.output.strip()}"
        return StartFailure(process=number, host=self.settings.host, reason=reason, step=step)

    def _gathered(self, futures: Mapping[int, Future[JobResult]]) -> list[TestEnd]:
        """Wait for the processes of this host, and kill those that can only wait for another."""
        until: float | None = None
        while pending := [number for number, each in futures.items() if not each.done()]:
            if until is not None and time.monotonic() > until:
                self.close_processes()
                wait(futures.values())
                return [self._end(n, each, stopped=n in pending) for n, each in futures.items()]
            waiting = [futures[number] for number in pending]
            wait(waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
            if until is None and (grace := self._patience(futures.values())) is not None:
                until = time.monotonic() + grace
        return [self._end(number, each) for number, each in futures.items()]

    def _patience(self, futures: Collection[Future[JobResult]]) -> float | None:
        """Seconds that the processes of this host may still take; None for their own limits."""
        lost = f"lost/{self._generation}"
        found = [_grace(each.result()) for each in futures if each.done()]
        graces = [grace for grace in found if grace is not None]
        if graces and self.layout.hosts > 1:
            self._store.put(f"{lost}/{self.layout.host}", b"")
        if not graces and self.layout.hosts > 1 and self._store.keys(f"{lost}/"):
            graces = [DIED_SECONDS]
        return min(graces, default=None)

    def _end(self, number: int, future: Future[JobResult], *, stopped: bool = False) -> TestEnd:
        result = future.result()
        end = TestEnd(process=number, host=self.settings.host, stopped=stopped)
        if stopped or result.status != "done":
            return dataclasses.replace(end, died=result)
        absent, reply = unpacked(result.value)
        return dataclasses.replace(end, absent=absent, reply=reply)

    def _shared(self, key: str, mine: Sequence[Any], seconds: float | None) -> list[Any]:
        """The lists of all hosts, one after the other.

        Args:
          key: a new one each time.
          mine: the list of this host.
          seconds: time limit; None to wait as long as the other hosts live.

        Raises:
          GangError: a host did not answer, or has gone.
        """
        self._store.put(f"{key}/{self.layout.host}", to_json(mine))
        until = None if seconds is None else time.monotonic() + seconds
        found: list[Any] = []
        for host in range(self.layout.hosts):
            if host == self.layout.host:
                found += mine
                continue
            while (body := self._store.get(f"{key}/{host}", 1.0)) is None:
                if until is not None and time.monotonic() > until:
                    raise GangError(self._absent(host, f"did not answer within {seconds:g} s"))
                if until is None and host not in self._store.live():
                    raise GangError(self._absent(host, "has gone: nothing was heard of it"))
            try:
                found += from_json(body)
            except DataError as error:
                raise GangError(self._absent(host, f"sent what cannot be read: {error}")) from None
        return found

    def _absent(self, host: int, what: str) -> str:
        name = f" ({self.hosts[host]})" if self.hosts else ""
        return (
            f"host {host} of {self.layout.hosts}{name} {what}. Start pytest with the same "
            "arguments on every host"
        )


def _grace(result: JobResult) -> float | None:
    """Seconds that others may take after this end of a test in one process; None for no limit."""
    if result.status != "done":
        return DIED_SECONDS
    absent, reply = unpacked(result.value)
    failed = absent or any(report["outcome"] == "failed" for report in reply.reports)
    return FAILED_SECONDS if failed else None


def _start_failures(failures: Sequence[StartFailure], count: int) -> str:
    """The message for processes that cannot be used.

    Those that came less far than others are the cause: the others wait for them.
    """
    first = min(each.step for each in failures)
    causes = [each for each in failures if each.step == first]
    lines = [f"process {each.process} ({each.host}): {each.reason}" for each in causes]
    if len(causes) < len(failures):
        rest = ", ".join(str(each.process) for each in failures if each.step != first)
        lines.append(f"waiting for it: process {rest}")
    return f"the {count} processes cannot run the tests:\n" + "\n".join(lines)
