"""Report in how many orders of their threads and copies the calls of kernels ran, from records.

The sanitizers of schedules share their runs, so that a call is in the records of each of them: of
the checks of a kernel on a backend, the one that asked about most calls counts, in all tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_pallas.draw.meshes import place_of
from pytest_pallas.record import Orders, Record, orders_of
from pytest_pallas.report.section import Line, Results, group_by, number, section

#: Number of kernels with a line of their own without ``-v``.
_KERNELS = 5


@dataclass(frozen=True, kw_only=True)
class KernelOrders:
    """The orders of a kernel on one backend and mesh.

    Attributes:
      kernel: its name.
      where: backend and mesh, as in the names of tests.
      orders: of its calls.
    """

    kernel: str
    where: str
    orders: Orders


def ordered(records: Iterable[Record]) -> list[KernelOrders]:
    """Return the orders of each kernel that ran in several, by backend and mesh."""
    groups = group_by(
        (record for record in records if record.orders is not None),
        lambda record: (
            record.test.partition("::")[0],
            record.kernel,
            record.backend + place_of(record.mesh),
        ),
    )
    kernels: list[KernelOrders] = []
    for (_, kernel, where), rows in groups.items():
        checks = group_by(rows, lambda record: record.check).values()
        sums = filter(None, (orders_of(row.orders for row in same) for same in checks))
        most = max(sums, key=lambda orders: orders.calls)
        kernels.append(KernelOrders(kernel=kernel, where=where, orders=most))
    return kernels


def counts_of(orders: Orders) -> str:
    """Count calls by their verdict: ``3 proved, 1 wrong (unconfirmed), 2 open, in 48 runs``."""
    wrong = f"{orders.wrong:,} wrong" if orders.wrong else ""
    if wrong and orders.unconfirmed:
        wrong += (
            " (unconfirmed: no run showed it)"
            if orders.unconfirmed == orders.wrong
            else f" ({orders.unconfirmed:,} of them unconfirmed: no run showed it)"
        )
    parts = [f"{orders.proved:,} proved" if orders.proved else "", wrong]
    parts.append(f"{orders.open:,} open" if orders.open else "")
    return f"{', '.join(filter(None, parts))}, in {number(orders.runs, 'run')}"


def open_text(orders: Orders) -> str:
    """Say how much of the open calls was run, and how to go on; "" if none is open."""
    if not orders.open:
        return ""
    if not orders.left:
        return "; ".join(orders.stopped)
    known = f"{orders.tried:,} of at least {orders.tried + orders.left:,} classes of orders"
    return f"{known} were run; --pallas-schedules={10 * max(orders.most, 1)} goes on"


def summary(kernels: Sequence[KernelOrders]) -> str:
    """Count the calls of all kernels by their verdict, in one line."""
    whole = orders_of(kernel.orders for kernel in kernels)
    assert whole is not None
    names = {kernel.kernel for kernel in kernels}
    return (
        f"orders: {number(whole.calls, 'call')} of {number(len(names), 'kernel')}: "
        f"{counts_of(whole)}"
    )


def notes(kernels: Sequence[KernelOrders], *, every: bool = False) -> Iterator[str]:
    """Yield a line for each kernel with open calls; with ``every``, also why it has orders."""
    undecided = [kernel for kernel in kernels if kernel.orders.open]
    for kernel in undecided if every else undecided[:_KERNELS]:
        yield f"open: {kernel.kernel} on {kernel.where}: {open_text(kernel.orders)}"
    if not every and len(undecided) > _KERNELS:
        yield f"open: {number(len(undecided) - _KERNELS, 'more kernel')} (-v lists them)"
    for kernel in kernels if every else ():
        for reason in kernel.orders.reasons:
            yield f"orders of {kernel.kernel} on {kernel.where}: {reason}"


@section("orders", quiet=False)
def section_of_orders(results: Results) -> Iterator[str | Line]:
    """Write the verdicts of calls in all their orders, in one line, and a line for what is open."""
    if kernels := ordered(results.executed):
        yield summary(kernels)
        for line in notes(kernels, every=results.every):
            yield Line(line, "yellow")
