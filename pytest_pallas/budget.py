"""Limits: on what the examples of a check cost; on memory of draws, of this process, of caches.

Strategies are made when a module is imported, before there is a session. So they read the limit
here when they draw, and the plugin sets it for the time of a session.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Generator, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from pytest_pallas.errors import DrawTooLargeError

#: Oracle, baseline and interpreter hold about twenty copies of the arguments, some in float64, and
#: two test processes on a laptop have 8 GiB between them and everything else.
DEFAULT_MAX_BYTES = 64 * 2**20

#: The bytes that a check takes for each element of a call and its outputs, at least: of a floating
#: dtype, and of others as a multiple of the element's own bytes. Oracle and noise hold several
#: arrays in float64. Measured at the peaks of ``forward`` on tpu-sim and interpret, JAX 0.12.0.1:
#: 36 to 46 bytes of float32 and bfloat16, 12.4 of int8.
FLOAT_BYTES, COPIES = 36, 10

#: What it costs to draw and judge an example, in equations that the simulator evaluates, and the
#: number of elements of its arguments that cost one more for each run. An equation takes about
#: 10 microseconds.
EXAMPLE_COST, ELEMENTS_PER_EQUATION = 1000, 100

#: What it costs to trace an equation of a kernel, likewise: its references are traced, too.
TRACE_COST = 15

#: The cost of an ordinary example, likewise.
ORDINARY_COST = 3000

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_max_bytes: ContextVar[int] = ContextVar("pallas_max_bytes", default=DEFAULT_MAX_BYTES)


def max_bytes() -> int:
    """Return the most bytes that all arrays of one draw may have together."""
    return _max_bytes.get()


@contextmanager
def limited(number: int) -> Generator[None]:
    """Draw no more than ``number`` bytes within this context."""
    before = _max_bytes.get()
    _max_bytes.set(number)
    try:
        yield
    finally:
        _max_bytes.set(before)


def check_bytes(what: str, number: int) -> None:
    """Refuse to draw ``number`` bytes for ``what`` if that is too much.

    Raises:
      DrawTooLargeError: it is too large; the message has the remedy.
    """
    if number > max_bytes():
        raise DrawTooLargeError(
            f"{what} of {bytes_text(number)} does not fit within --pallas-max-bytes="
            f"{option_text(max_bytes())}; draw a smaller one, or raise the option"
        )


@dataclass(frozen=True, kw_only=True)
class ExampleBudget:
    """How many examples a check runs: more of cheap ones, fewer of expensive ones.

    Costs are counted in equations that the simulator evaluates, and never timed: every machine runs
    the same examples, whatever ran before in the same process.

    ``goes_on`` says whether another one of the usual examples runs, and ``has_room`` whether one
    does that needs no trace. For further examples, which are not among those, ask ``affords(cost)``
    before each: it is about how much is left alone.

    Attributes:
      count: the number of examples of ordinary cost that a check runs.
      least: so many run, whatever they cost.
      most: no more run, however cheap they are.
      varies: whether some are variants of others with the same shapes, as where those are compiled.
      costs: of the examples that ran, without their traces; ``run_example`` adds to it.
      traces: what it cost to trace their kernels, by the signature of their arguments.
    """

    count: int
    least: int
    most: int
    varies: bool = False
    costs: list[int] = field(default_factory=list[int])
    traces: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def fixed(cls, count: int, *, varies: bool = False) -> ExampleBudget:
        """Return the budget of exactly ``count`` examples."""
        return cls(count=count, least=count, most=count, varies=varies)

    @property
    def goes_on(self) -> bool:
        """Whether a check runs another one of its usual examples."""
        ran = len(self.costs)
        return ran < self.least or (ran < self.most and self.affords())

    @property
    def has_room(self) -> bool:
        """Whether an example runs besides the usual ones, if it needs no trace."""
        return sum(self.costs) < self.count * ORDINARY_COST

    @property
    def ended(self) -> bool:
        """Whether the cost of the examples left some of them out."""
        return 0 < len(self.costs) < self.count and not self.affords()

    def __str__(self) -> str:
        ran = len(self.costs)
        return (
            f"stopped after {ran} of {self.count} examples, which cost "
            f"{self._spent // max(1, ran):,} equations each (an ordinary one "
            f"{ORDINARY_COST:,}); give --pallas-max-examples for a fixed number"
        )

    def affords(self, cost: int = 1) -> bool:
        """Return whether an example of this cost may run besides those that ran."""
        return self._spent + cost <= self.count * ORDINARY_COST

    @property
    def _spent(self) -> int:
        return sum(self.costs) + sum(self.traces.values())


class LastUsed[Value]:
    """A cache of the values that were used last, limited by their number and their bytes.

    The last one is kept whatever it has, because several checks use it one after the other.

    Attributes:
      most: limit on their number.
      most_bytes: limit on their bytes together.
      bytes: those that are kept.
    """

    def __init__(self, most: int, most_bytes: int = 1) -> None:
        """Create an empty cache; of values without bytes, only the number is limited."""
        self.most, self.most_bytes, self.bytes = most, most_bytes, 0
        self._kept: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        """The number of values."""
        return len(self._kept)

    def get(self, key: Hashable) -> Value | None:
        """Return the value of a key, which is used by that; None if there is none."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def add(self, key: Hashable, value: Value, size: int = 0) -> None:
        """Keep a value of ``size`` bytes, in the place of others."""
        _, before = self._kept.pop(key, (None, 0))
        self._kept[key] = value, size
        self.bytes += size - before
        while len(self._kept) > self.most or (self.bytes > self.most_bytes and len(self._kept) > 1):
            _, (_, least) = self._kept.popitem(last=False)
            self.bytes -= least


def available_bytes() -> int | None:
    """Return the memory in bytes that this process can still take; None if the system does not say.

    It is the least of what the machine, the control group and the limit of the address space leave.
    """
    return min(_available(), default=None)


def _available() -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        yield int(line.split()[1]) * 2**10
    with suppress(OSError, ValueError):  # "max" is no number
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        yield max(0, limit - int((group / "memory.current").read_text()))
    with suppress(OSError, ValueError, IndexError):
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            yield max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))


def check_memory(what: str, own: int, needed: int, most: int | None) -> None:
    """Refuse a call whose check takes more memory than there is.

    Args:
      what: the kernel.
      own: the bytes of its arguments and outputs.
      needed: the bytes that its check takes, at least.
      most: those that there are; None if that is not known.

    Raises:
      DrawTooLargeError: it is too large; the message has the bytes and the remedy.
    """
    __tracebackhide__ = True
    if most is not None and needed > most:
        raise DrawTooLargeError(
            f"{what}: its arguments and outputs have {bytes_text(own)}, so a check takes "
            f"{bytes_text(needed)} of memory at least, and there are {bytes_text(most)}; give "
            "smaller arrays"
        )


def bytes_text(number: int) -> str:
    """``1000 bytes``, ``64 MiB``, ``1.5 MiB``."""
    for unit, size in reversed(_UNITS.items()):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number} bytes"


def option_text(number: int) -> str:
    """``number`` bytes as the option takes them: ``64MiB``, or ``1000``."""
    for unit, size in reversed(_UNITS.items()):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def parse_bytes(text: str) -> int | None:
    """Parse a number of bytes, as ``"64MiB"``, ``"1.5GiB"`` or ``"4096"``; None if it is none."""
    unit = next((unit for unit in _UNITS if text.lower().endswith(unit.lower())), "")
    try:
        number = float(text[: len(text) - len(unit)]) * _UNITS.get(unit, 1)
    except ValueError:
        return None
    return int(number) if 1 <= number < float("inf") else None
