"""What must not matter in a run, or is asked of it besides its answer: fills, schedules, probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

#: Memory that a kernel gets without contents: what pads a block beyond the edge of its array, an
#: output, and scratch, which includes what the body allocates.
Place = Literal["padding", "output", "scratch"]


def highest(dtype: Any) -> Any:
    """The largest finite number, and True."""
    import jax.numpy as jnp

    if jnp.issubdtype(dtype, jnp.bool):
        return True
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).max)
    return jnp.finfo(dtype).max if jnp.issubdtype(dtype, jnp.floating) else None


def lowest(dtype: Any) -> Any:
    """The lowest finite number of floats, 0 of integers (which have their lowest anyway), False."""
    import jax.numpy as jnp

    if jnp.issubdtype(dtype, jnp.bool) or jnp.issubdtype(dtype, jnp.integer):
        return 0
    return jnp.finfo(dtype).min if jnp.issubdtype(dtype, jnp.floating) else None


def zero(dtype: Any) -> Any:
    """What XLA's buffers often are: 0 and False."""
    import jax.numpy as jnp

    number = jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool)
    return 0 if number else None


#: What memory may hold; see ``FILLS``.
Contents = Literal["high", "low", "zero"]

#: By name, the value for a dtype; None leaves what is there.
FILLS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {"high": highest, "low": lowest, "zero": zero}
)

#: By name, what a reader is told.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "": "NaN (of integers an end of their range)",
        "high": "the largest finite number (of bools True)",
        "low": "the lowest finite number (of integers 0, of bools False)",
        "zero": "0 (of bools False)",
    }
)

#: Which memory is filled, by name, and what a reader is told.
PLACES: Mapping[str, tuple[frozenset[Place], str]] = MappingProxyType(
    {
        "": (frozenset({"padding", "output", "scratch"}), "memory that nobody has written"),
        "padding": (frozenset({"padding"}), "what is beyond the edges of arrays"),
        "output": (frozenset({"output"}), "outputs that nobody has written"),
        "scratch": (frozenset({"scratch"}), "scratch memory that nobody has written"),
        "memory": (
            frozenset({"output", "scratch"}),
            "scratch memory and outputs that nobody has written",
        ),
    }
)


@dataclass(frozen=True)
class Fill:
    """What some memory holds that nobody has written.

    Attributes:
      value: a name of ``FILLS``.
      where: which memory; a name of ``PLACES``.
    """

    value: Contents
    where: Literal["", "padding", "output", "scratch", "memory"] = ""

    def __str__(self) -> str:
        """In words: ``0 (of bools False) in scratch memory that nobody has written``."""
        return f"{WORDS[self.value]} in {self.memory}"

    @property
    def memory(self) -> str:
        """Which memory, such as ``scratch memory that nobody has written``."""
        return PLACES[self.where][1]


def filler_of(fill: Fill | None) -> Callable[[Any, str], Any] | None:
    """What a simulator fills memory with: of a dtype and a place; None for its own."""
    if fill is None:
        return None
    value, places = FILLS[fill.value], PLACES[fill.where][0]
    return lambda dtype, where: value(dtype) if where in places else None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One legal order of copies, devices, cores and the programs of ``parallel`` grid dimensions.

    Attributes:
      seed: of everything that may happen in any order.
      cores: over how many cores of a device the programs of parallel dimensions are divided.
    """

    seed: int = 0
    cores: int = 1

    def __str__(self) -> str:
        """For messages: what is not as in the plain one."""
        words: list[str] = []
        if self.seed:
            words.append(f"seed {self.seed} of the schedule")
        if self.cores > 1:
            words.append(f"parallel programs divided over {self.cores} cores")
        return ", ".join(words) or "seed 0 of the schedule"


#: ``"outputs"``: what each kernel returned. ``"separate"``: nothing, but outputs that are aliased
#: to an input get memory of their own. ``"late"``: nothing, but blocks are fetched just before the
#: body that reads them. ``"loads"``: what each load and copy read.
Probe = Literal["", "outputs", "separate", "late", "loads"]
