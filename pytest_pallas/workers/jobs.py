"""What kind of worker a job wants, and what became of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["done", "raised", "timed out", "crashed", "out of memory"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A kind of worker. Jobs of equal setups share processes.

    Attributes:
      name: for messages, such as ``"libtpu"``.
      job: what a job is called in messages.
      entry: ``"module:function"``. A worker imports the module once, with the ``sys.path`` that
        this process has then, and calls ``function(payload: bytes) -> bytes`` for each job.
      environment: variables, as pairs, that are set in the worker beside those of this process.
      memory_bytes: the resident memory of the worker and its children, in bytes, above which it is
        killed; None for no limit. Pages that processes share count once for each. Watched on
        Linux only.
      talks: whether the function takes a second argument, ``say(note: bytes)``, to tell what it is
        about to do. Each note gives the job its whole time anew.

    Raises:
      ValueError: ``entry`` is not of that form, or ``memory_bytes`` is not positive.
    """

    name: str
    entry: str
    environment: tuple[tuple[str, str], ...] = ()
    memory_bytes: int | None = None
    talks: bool = False
    job: str = "a job"

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
class Result:
    """What became of a job.

    Attributes:
      status: ``"done"`` if the function returned, ``"raised"`` if it raised an ``Exception``, or
        how the worker ended that had the job.
      value: what the function returned, if it is done.
      message: the traceback of what it raised, or else what happened in a sentence.
      fate: what became of the worker that had the job, as its message says it after the worker's
        name: ``"died of SIGABRT (Aborted) during a job."``; "" if it answered.
      output: the last 64 kB of what the worker wrote to its stdout and stderr during the job; of
        what it wrote while it started, if it did not get further.
      seconds: from handing the job to the worker until its end, without the start of a process.
      started: whether a worker was ready for the job. If twice in a row none was, a pool tries no
        more for that setup, and gives the same result to the jobs that follow.
      note: the last that the worker said during the job, if it talks.
      silence: seconds from that, or from the beginning, to the end of the job.
    """

    status: Status
    value: bytes = b""
    message: str = ""
    fate: str = ""
    output: str = ""
    seconds: float = 0.0
    started: bool = True
    note: bytes = b""
    silence: float = 0.0
