"""The setup of a job's worker, and the result of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pallas_sim.findings import Text

Status = Literal["done", "raised", "timed out", "crashed", "out of memory"]


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """A kind of worker. Jobs of equal setups share processes.

    Attributes:
      name: for messages, such as ``"libtpu"``.
      job: the name of a job in messages.
      entry: ``"module:function"``. A worker imports the module once, with the ``sys.path`` that
        this process has then, and calls ``function(payload: bytes) -> bytes`` for each job.
      environment: environment variables of the worker, as pairs, besides those of this process.
      memory_bytes: limit on the resident memory of the worker and its children, in bytes; None for
        no limit. Shared pages count once for each process. Enforced on Linux only.
      talks: whether the function takes a second argument, ``say(note: bytes)``, with which it
        reports its next step. Each note restarts the time limit of the job.
      preloads: on Linux, one process imports these modules, and the workers are its forks; with ()
        each worker is a new interpreter. None may start a thread or a backend of JAX.

    Raises:
      ValueError: ``entry`` is not of that form, or ``memory_bytes`` is not positive.
    """

    name: str
    entry: str
    environment: tuple[tuple[str, str], ...] = ()
    memory_bytes: int | None = None
    talks: bool = False
    job: str = "a job"
    preloads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        module, colon, function = self.entry.partition(":")
        if not (module and colon and function):
            raise ValueError(
                f"The entry of the worker {self.name!r} is {self.entry!r}: write it as "
                '"module:function".'
            )
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(
                f"The memory limit of the worker {self.name!r} is {self.memory_bytes} bytes: give "
                "a positive number, or None for no limit."
            )


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job.

    Attributes:
      status: ``"done"`` if the function returned, ``"raised"`` if it raised an ``Exception``, or
        how its worker ended.
      value: the return value of the function, if it is done.
      message: the traceback of its error, or a sentence about the failure.
      fate: the end of the worker, as in the message after the worker's name: ``"died of SIGABRT
        (Aborted) during a job."``; "" if it answered.
      output: the last 64 kB of the worker's stdout and stderr during the job, or during its start
        if that failed.
      seconds: from the handover to the worker until the end, without the start of a process.
      started: whether a worker was ready for the job. After two failed starts in a row, a pool
        gives the same result to all further jobs of that setup.
      note: the last note of the worker during the job.
      silence: seconds from the last note, or from the start, to the end of the job.
    """

    status: Status
    value: bytes = b""
    message: Text = ""
    fate: Text = ""
    output: Text = ""
    seconds: float = 0.0
    started: bool = True
    note: bytes = b""
    silence: float = 0.0
