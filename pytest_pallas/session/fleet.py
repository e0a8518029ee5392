"""What a run knows of the workers of ``--pallas-fleet``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class FleetFacts:
    """The workers of a run.

    Attributes:
      place: as on the command line.
      processes: number of worker processes that were started on this machine; 0 for none.
      workers: number of workers that took part.
      threads: number of tests that they run at a time, now.
      refused: why workers did not take part, by worker.
      lost: workers that were lost, with how they ended.
      tasks: number of kernels and other tests.
      done: number of those that are done.
      sent: number of tasks that were sent: parts and repeated ones count.
      repeated: number of times that the worker of a task was lost.
    """

    place: str
    processes: int = 0
    workers: int = 0
    threads: int = 0
    refused: dict[str, str] = field(default_factory=dict[str, str])
    lost: dict[str, str] = field(default_factory=dict[str, str])
    tasks: int = 0
    done: int = 0
    sent: int = 0
    repeated: int = 0

    @property
    def encrypted(self) -> bool:
        """Whether the scheduler asks for certificates (TLS)."""
        return self.place.startswith(("tls://", "wss://"))


def to_json(facts: FleetFacts) -> Mapping[str, Any]:
    """The facts as plain JSON values."""
    return {**vars(facts), "refused": dict(facts.refused), "lost": dict(facts.lost)}
