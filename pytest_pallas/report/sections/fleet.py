"""The workers of ``--pallas-fleet``."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_pallas.report.section import Line, Results, section
from pytest_pallas.report.sections.not_applicable import number


@section("fleet")
def section_of_workers(results: Results) -> Iterator[str | Line]:
    """The number of workers, and those that were refused or lost."""
    fleet = results.session.fleet
    if fleet is None:
        return
    if results.verbosity >= 0:
        words = f"{fleet.workers} workers took part" if fleet.workers != 1 else "1 worker took part"
        if fleet.repeated:
            words += f", {number(fleet.repeated, 'task')} lost with a worker"
        yield f"fleet {fleet.place}: {words}"
    for worker, why in fleet.refused.items():
        yield Line(f"refused worker {worker}: {why}", "yellow")
    for worker, how in fleet.lost.items():
        yield Line(f"lost worker {worker}: {how}", "yellow")
