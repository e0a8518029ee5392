"""The connection to a Dask scheduler, and the workers that take part in a run.

Only here, and in the workers, is ``distributed`` imported. ``DaskCluster`` calls functions on
workers, ``Workers`` knows which of them take part, are refused, silent or lost.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import logging
import os
import queue
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any

from pallas_sim.errors import OptionError, one_line
from pytest_pallas.decoding import DataError
from pytest_pallas.distribute.fleet import worker
from pytest_pallas.distribute.messages import Answer
from pytest_pallas.isolate.messages import decoded
from pytest_pallas.options import FleetPlace
from pytest_pallas.pytest_session import FleetFacts
from pytest_pallas.workers import forks

#: Time limit in seconds for a connection to a scheduler, and for its answers.
CONNECT_SECONDS = 5.0

#: Time limit in seconds for a scheduler that was connected to answer.
ANSWER_SECONDS = 60.0

#: Time limit in seconds for the result of a task that has ended to arrive.
_GATHER_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """A worker, as the scheduler knows it.

    Attributes:
      address: its address, which no other worker ever has.
      threads: number of tasks that it runs at a time.
      silence: seconds in which this process has seen no new sign of life of it.
    """

    address: str
    threads: int
    silence: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A submitted call that has ended.

    Attributes:
      key: its name.
      answer: what it returned; empty if it did not return.
      problem: why it did not return; or "".
    """

    key: str
    answer: bytes = b""
    problem: str = ""


class ClusterLostError(Exception):
    """The scheduler does not answer any more."""


class DaskCluster:
    """A Dask scheduler with its workers.

    Attributes:
      ends: the keys of the calls that have ended.
    """

    def __init__(self, location: FleetPlace) -> None:
        """Connect to the scheduler of ``location``, or start one with workers on this machine.

        Raises:
          OptionError: ``distributed`` is not installed, or the scheduler cannot be reached.
        """
        if importlib.util.find_spec("distributed") is None:
            raise OptionError(
                f"--pallas-fleet={location} needs the package distributed: pip install "
                "'pytest-pallas[fleet]'"
            )
        self.location = location
        self.ends: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._close = contextlib.ExitStack()
        self._futures: dict[str, Any] = {}
        self._heard: dict[str, tuple[float, float]] = {}
        with _quiet(), contextlib.ExitStack() as failed:
            failed.callback(self._close.close)
            self._client: Any = self._connected()
            failed.pop_all()

    def _connected(self) -> Any:
        from dask import config
        from distributed import Client, LocalCluster

        set_options: Any = config.set  # pyright: ignore[reportPrivateImportUsage]
        self._close.enter_context(set_options({"distributed.admin.tick.limit": "1h"}))
        self._close.enter_context(_logging_critical())
        address: Any = self.location.address
        if not address:
            before = dict(os.environ)
            self._close.enter_context(forks.shared())
            # Worker processes inherit what they log from the environment, and with a fork server
            # they import Dask once.
            methods = {"distributed.worker.multiprocessing-method": "forkserver"}
            self._close.enter_context(set_options({"logging.distributed": "critical", **methods}))
            local: Any = LocalCluster
            address = local(
                n_workers=self.location.workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
                preload=[worker.__name__],
            )
            # Dask sets variables for its workers in this process, and leaves them there.
            after = dict(os.environ)
            changed = {name for name in after if after[name] != before.get(name)}
            self._close.callback(_restore, {name: before.get(name) for name in changed})
            self._close.callback(_closed, address)
        connect = functools.partial(Client, address, timeout=CONNECT_SECONDS, set_as_default=False)
        try:
            client = _within(2 * CONNECT_SECONDS, connect)
        except Exception as error:  # of any type: something else may listen there
            raise OptionError(
                f"--pallas-fleet={self.location}: no Dask scheduler can be reached there within "
                f"{CONNECT_SECONDS:g} s ({one_line(error)}). Start one with `dask scheduler`, "
                "and workers with `dask worker ADDRESS --nthreads 1`, or write "
                "--pallas-fleet=local:N"
            ) from None
        self._close.callback(_closed, client)
        return client

    def close(self) -> None:
        """Cancel everything, and end the workers that this process has started."""
        with _quiet():
            self.cancel(list(self._futures))
            self._close.close()

    def workers(self) -> Mapping[str, WorkerInfo]:
        """Return the workers that the scheduler knows, by address.

        Raises:
          ClusterLostError: the scheduler does not answer.
        """
        now = time.monotonic()
        workers: dict[str, WorkerInfo] = {}
        answer = self._ask("scheduler_info", n_workers=-1)  # some versions list five
        if "workers" not in answer:
            raise ClusterLostError("its connection was closed")
        for address, data in answer["workers"].items():
            # Only differences of the scheduler's clock count, which may go wrong.
            stamp, since = self._heard.get(address, (0.0, now))
            if data["last_seen"] != stamp:
                since = now
            self._heard[address] = (data["last_seen"], since)
            workers[address] = WorkerInfo(
                address=address, threads=int(data["nthreads"]), silence=now - since
            )
        self._heard = {address: self._heard[address] for address in workers}
        return workers

    def tasks(self) -> Mapping[str, Collection[str]]:
        """Return the names of the tasks that each worker runs, or has been given, by address.

        Raises:
          ClusterLostError: the scheduler does not answer.
        """
        tasks = self._ask("processing")
        return {address: list(map(str, keys)) for address, keys in tasks.items()}

    def begun(self, key: str) -> str:
        """Return the name of the worker that has begun a task; "" if none has.

        Raises:
          ClusterLostError: the scheduler does not answer.
        """
        return str(self._ask("get_metadata", [key], default=""))

    def _ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Return what a method of the client returns, within a time limit.

        Raises:
          ClusterLostError: the scheduler does not answer.
        """
        ask = functools.partial(getattr(self._client, method), *args, **options)
        try:
            with _quiet():
                return _within(ANSWER_SECONDS, ask)
        except Exception as error:  # of several types, also of tornado
            raise ClusterLostError(one_line(error)) from None

    def call(
        self,
        key: str,
        function: Callable[..., bytes],
        *args: bytes,
        addresses: Collection[str] | None = None,
    ) -> None:
        """Call a function on a worker. Once the call has ended, its key is in ``ends``.

        Args:
          key: the name of the call.
          function: the function, which the worker imports.
          *args: its arguments.
          addresses: the workers that may run it; None for all.
        """
        options = {"key": key, "pure": False, "retries": 0, "allow_other_workers": False}
        workers = None if addresses is None else list(addresses)
        future = self._ask("submit", function, *args, workers=workers, **options)
        self._futures[key] = future
        future.add_done_callback(lambda _: self.ends.put(key))

    def ended(self, key: str) -> Ended | None:
        """Return the result of a task; None if it was cancelled."""
        future = self._futures.pop(key, None)
        if future is None or future.cancelled():
            return None
        path = [worker.answer_key(key)]
        answer = self._ask("get_metadata", path, default=b"")
        try:
            if answer:
                self._ask("set_metadata", path, b"")
                return Ended(key=key, answer=answer)
            with _quiet():
                return Ended(key=key, answer=future.result(timeout=_GATHER_SECONDS))
        except CancelledError:
            return None
        except Exception as error:  # of any type: of the function, its import, or Dask
            return Ended(key=key, problem=f"{type(error).__name__}: {one_line(error)}")
        finally:
            with _quiet():
                future.release()

    def cancel(self, keys: Collection[str]) -> None:
        """Forget tasks; what runs goes on, and its result is dropped."""
        futures = [self._futures.pop(key) for key in keys if key in self._futures]
        if futures:
            with _quiet(), contextlib.suppress(Exception):
                self._client.cancel(futures, force=True)


#: How a worker is lost that the scheduler does not know any more.
CLOSED = "its connection to the scheduler was closed"


class Workers:
    """The workers of a run.

    Attributes:
      known: those that the scheduler knows, by address.
      greetings: the workers that have not answered yet, by the key of the question.
    """

    def __init__(
        self,
        cluster: DaskCluster,
        facts: FleetFacts,
        *,
        setup: bytes,
        say: Callable[[str], None],
        silence: float,
    ) -> None:
        """Know none yet.

        Args:
          cluster: the scheduler.
          facts: what the report says of the workers.
          setup: the encoded ``RunSetup``, by which a worker says whether it can take part.
          say: prints a line.
          silence: seconds without a sign of life after which a worker is silent.
        """
        self.known: dict[str, WorkerInfo] = {}
        self.greetings: dict[str, str] = {}
        self._cluster, self._facts, self._setup, self._say = cluster, facts, setup, say
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
        """Return a worker's name in messages."""
        return self._names.get(address, address)

    def look(self) -> Iterator[WorkerInfo]:
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
            self._cluster.call(key, worker.greet, self._setup, addresses=[address])
        self.known = dict(now)
        for address, info in now.items():
            if info.silence > self._silence:
                if address not in self._silent:
                    self._silent.add(address)
                    self._tell_silent(address, info.silence)
                yield info
            elif address in self._silent:
                self._silent.discard(address)
                self._say(f"worker {self.name_of(address)} answers again")

    def _left(self, address: str) -> None:
        """Forget a worker that the scheduler does not know any more."""
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

    def _tell_silent(self, address: str, seconds: float) -> None:
        if address in self._accepted:
            worker = self.name_of(address)
            self._facts.lost[worker] = f"silent for {seconds:.0f} s"
            self._say(f"worker {worker} is silent for {seconds:.0f} s")

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
        else:
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


# The connection in detail.


def _within[T](seconds: float, function: Callable[[], T]) -> T:
    """Return what a function returns, in a thread: some functions of Dask wait for ever.

    Raises:
      TimeoutError: it did not return within so many seconds.
      Exception: what it raised.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)
        except BaseException as error:  # of asyncio
            future.set_exception(OSError(one_line(error)))

    threading.Thread(target=run, name="fleet", daemon=True).start()
    wait([future], seconds)
    if not future.done():
        raise TimeoutError(f"it does not answer within {seconds:g} s")
    return future.result()


def _restore(variables: Mapping[str, str | None]) -> None:
    """Set variables as they were before; None for those that were not."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _closed(closable: Any) -> None:
    with _quiet(), contextlib.suppress(Exception):
        closable.close(timeout=CONNECT_SECONDS)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Ignore Dask's warnings, such as of other versions: the projects are compared anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _logging_critical() -> Generator[None]:
    """Silence Dask's log: the run reports lost workers."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
