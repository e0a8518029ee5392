"""Shrink an example that ends its process: each try runs in a worker of its own.

Hypothesis draws and shrinks in the process that reports, and a worker runs each example, by the
blob of its choices. So an example that crashes or hangs costs a worker each time, and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_sim.errors import PallasError
from pytest_pallas.compat.fuzzing import blob_of_draw
from pytest_pallas.draw.diversity import draw_name
from pytest_pallas.run.drawn import fuzz_of
from pytest_pallas.run.fuzzing import shrink_with
from pytest_pallas.workers.process import JobResult


@dataclass(frozen=True)
class Shrunk:
    """The simplest example that ends its process.

    Attributes:
      result: of its job.
      notes: what Hypothesis says of it, with the blob that repeats it.
    """

    result: JobResult
    notes: Sequence[str] = ()


class _ProcessEndedError(Exception):
    """An example ended its process."""

    def __init__(self, result: JobResult) -> None:
        super().__init__(result.status)
        self.result = result


def shrink(
    item: Any, call: str, attempt: Callable[[str], JobResult | None], seconds: float
) -> Shrunk | None:
    """Shrink the example of an item that ended its process.

    Args:
      item: the item of a spec.
      call: the name of the example (``draw_name``).
      attempt: runs the example of a blob in a worker; None if that survives it.
      seconds: time limit for all tries; the last one may exceed it.

    Returns:
      The simplest one; None if the example is not one of a usual round, or ends no process again.
    """

    def run(drawn: Any) -> None:
        del drawn
        result = attempt(blob_of_draw())
        if result is not None:
            raise _ProcessEndedError(result)

    try:
        run_of_item = item.check_run()
        what = dataclasses.replace(fuzz_of(run_of_item), run=run)
        shrink_with(
            what,
            lambda other: draw_name(other) == call,
            seed=run_of_item.options.seed,
            max_examples=run_of_item.examples,
            seconds=seconds,
        )
    except _ProcessEndedError as simplest:
        return Shrunk(simplest.result, getattr(simplest, "__notes__", ()))
    except PallasError:  # it cannot be drawn here
        return None
    return None
