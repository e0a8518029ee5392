"""The section of the terminal about the workers of ``--pallas-fleet``."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_pallas.report.section import Line, Results, number, section


@section("fleet")
def section_of_workers(results: Results) -> Iterator[str | Line]:
    """Yield the number of workers, and those that were refused or lost."""
    fleet = results.session.fleet
    if fleet is None:
        return
    if results.verbosity >= 0:
        lost = f", {number(fleet.repeated, 'task')} lost with a worker" if fleet.repeated else ""
        yield f"fleet {fleet.place}: {number(fleet.workers, 'worker')} took part{lost}"
    for worker, why in fleet.refused.items():
        yield Line(f"refused worker {worker}: {why}", "yellow")
    for worker, how in fleet.lost.items():
        yield Line(f"lost worker {worker}: {how}", "yellow")
