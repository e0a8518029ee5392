"""Shrink an example that ends its process: each try runs in a worker of its own.

Hypothesis draws and shrinks in the process that reports, and a worker runs each example, by the
blob of its choices. So an example that crashes or hangs costs a worker each time, and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pallas_sim.errors import PallasError
from pytest_pallas.compat.fuzzing import blob_of_draw
from pytest_pallas.draw.covering import Goal
from pytest_pallas.isolate.messages import StepNote
from pytest_pallas.isolate.supervise import WorkerAnswer
from pytest_pallas.record import Aspect
from pytest_pallas.run.drawn import fuzz_of
from pytest_pallas.run.fuzzing import shrink_with


class _ProcessEndedError(Exception):
    """An example ended its process."""

    def __init__(self, answer: WorkerAnswer) -> None:
        super().__init__(answer.result.status)
        self.answer = answer


def shrink(
    item: Any, step: StepNote, attempt: Callable[[str], WorkerAnswer], seconds: float
) -> WorkerAnswer | None:
    """Shrink the example of an item that ended its process.

    Args:
      item: the item of a spec.
      step: the step in which the process ended.
      attempt: runs the example of a blob in a worker.
      seconds: time limit for all tries; the last one may exceed it.

    Returns:
      What came of the simplest one; None if no example of these sizes and choices ends a process
      again.
    """

    def run(drawn: Any) -> None:
        del drawn
        answer = attempt(blob_of_draw())
        if answer.ended_its_process:
            raise _ProcessEndedError(answer)

    try:
        run_of_item = item.check_run()
        shrink_with(
            dataclasses.replace(fuzz_of(run_of_item), run=run),
            step.call,
            Goal(step.sizes, {Aspect(role, name): word for role, name, word in step.choices}),
            seed=run_of_item.options.seed,
            budget=run_of_item.budget,
            seconds=seconds,
        )
    except _ProcessEndedError as simplest:
        notes = getattr(simplest, "__notes__", ())
        return dataclasses.replace(simplest.answer, notes=notes)
    except PallasError:  # it cannot be drawn here
        return None
    return None
