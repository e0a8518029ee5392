"""Messages between the controller and the workers of a fleet; ``isolate.messages`` encodes them.

A worker gets a ``RunSetup`` once, and a ``FleetTask`` each time. It answers with an ``Answer`` that
has a ``TestResult`` for each test. Dask itself executes what it is sent: see docs/fleet.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pallas_sim.findings import Text
from pytest_pallas.decoding import AsWritten, Exact, Matching
from pytest_pallas.distribute.reports import PlainReport
from pytest_pallas.isolate.messages import (
    Change,
    Difference,
    Project,
    WorkerReply,
    WorkerRequest,
    message,
)
from pytest_pallas.workers.process import JobResult

#: The name of a file in a folder of goldens; see ``goldens.store``.
GOLDEN = Matching(
    r"goldens/[0-9a-f]{64}\.json|tensors/[0-9a-f]{64}\.safetensors", "the name of a golden"
)

#: The name of a file in a database of examples.
_EXAMPLE = Matching(r"[\w-]+(/[\w-]+)*", "the name of an example")


@message
@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What a worker must know of a run, before its first task.

    Attributes:
      run: the name of the run.
      args: the command line of pytest.
      folder: the working folder of the controller.
      options: changes of the options of the command line.
      gigabytes: memory limit of a test, in GiB.
      environment: variables of the processes that run tests.
      project: versions and files of the controller.
      examples: files of its database of failing examples, by path; None if workers open it.
      goldens: the folder in which tests record goldens, seen from the working folder; or "".
    """

    run: str
    args: Sequence[Exact]
    folder: Exact
    options: Mapping[str, Annotated[Any, AsWritten()]]
    gigabytes: float
    environment: Mapping[Exact, Exact]
    project: Project
    examples: Mapping[Annotated[str, _EXAMPLE], bytes] | None = None
    goldens: Exact = ""


@message
@dataclass(frozen=True, kw_only=True)
class FleetTask:
    """Tests that a worker runs one after the other: those of one kernel.

    Attributes:
      key: the name of the task.
      tests: the tests. The worker sets the other fields: the opening, what earlier tests have
        changed, and the file of a ``journal`` where that is not None.
      raised: the kernels that raised in earlier tests; see ``PytestSession``.
      changes: changes of the database by earlier tests of the kernel.
      most: number of failures after which it stops; 0 for no limit.
    """

    key: str
    tests: Sequence[WorkerRequest]
    raised: Mapping[Exact, tuple[Exact, Exact, bool]] = field(default_factory=dict[str, Any])
    changes: Sequence[Change] = ()
    most: int = 0


@message
@dataclass(frozen=True, kw_only=True)
class TestResult(WorkerReply):
    """The result of a test: the reply of the process that ran it, or the end of that process.

    Attributes:
      nodeid: its node id.
      files: contents of the files that the test wrote, by their path on the worker.
      goldens: the same for goldens, by their path in the folder of goldens.
      death: the end of its process; None if it replied.
    """

    __test__ = False

    nodeid: str
    reports: Sequence[PlainReport] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    goldens: Mapping[Annotated[str, GOLDEN], bytes] = field(default_factory=dict[str, bytes])
    death: JobResult | None = None


@message
@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker makes of a task, or of the question whether it can take part.

    Attributes:
      worker: its name in messages: address, host and process.
      results: of the tests that it ran, in order.
      differences: how it differs from the controller; such a worker runs nothing.
      problem: why it cannot run tests of this project; or "".
      before: the worker that had this task before, and was lost; "" for the first one.
    """

    worker: str
    results: Sequence[TestResult] = ()
    differences: Sequence[Difference] = ()
    problem: Text = ""
    before: str = ""

    @property
    def refused(self) -> str:
        """Why the worker cannot take part; "" if it can."""
        return self.problem or "; ".join(map(str, self.differences))
