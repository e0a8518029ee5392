"""Variations of a run: fills and schedules, which must not affect the output, and probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

#: Uninitialized memory of a kernel: the padding of a block beyond the edge of its array, outputs,
#: and scratch memory, which includes allocations of the body.
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
    """The usual contents of XLA's buffers: 0 and False."""
    import jax.numpy as jnp

    number = jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool)
    return 0 if number else None


#: The value of a fill; see ``FILLS``.
Contents = Literal["high", "low", "zero"]

#: By name, the value for a dtype; None keeps the contents.
FILLS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {"high": highest, "low": lowest, "zero": zero}
)

#: By name, the text of messages.
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "": "NaN (for integers, an end of their range)",
        "high": "the largest finite number (for bools, True)",
        "low": "the lowest finite number (for integers 0, for bools False)",
        "zero": "0 (for bools, False)",
    }
)

#: By name, the memory that is filled, and the text of messages.
PLACES: Mapping[str, tuple[frozenset[Place], str]] = MappingProxyType(
    {
        "": (frozenset({"padding", "output", "scratch"}), "uninitialized memory"),
        "padding": (frozenset({"padding"}), "elements beyond the edges of arrays"),
        "output": (frozenset({"output"}), "uninitialized outputs"),
        "scratch": (frozenset({"scratch"}), "uninitialized scratch memory"),
        "memory": (
            frozenset({"output", "scratch"}),
            "uninitialized scratch memory and outputs",
        ),
    }
)


@dataclass(frozen=True)
class Fill:
    """The contents of uninitialized memory.

    Attributes:
      value: a name of ``FILLS``.
      where: the memory; a name of ``PLACES``.
    """

    value: Contents
    where: Literal["", "padding", "output", "scratch", "memory"] = ""

    def __str__(self) -> str:
        """In words: ``0 (for bools, False) in uninitialized scratch memory``."""
        return f"{WORDS[self.value]} in {self.memory}"

    @property
    def memory(self) -> str:
        """The memory, such as ``uninitialized scratch memory``."""
        return PLACES[self.where][1]


def filler_of(fill: Fill | None) -> Callable[[Any, str], Any] | None:
    """The simulator's fill value for a dtype and a place; None for its default."""
    if fill is None:
        return None
    value, places = FILLS[fill.value], PLACES[fill.where][0]
    return lambda dtype, where: value(dtype) if where in places else None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One legal order of copies, devices, cores and the programs of ``parallel`` grid dimensions.

    Attributes:
      seed: determines the order of all concurrent steps.
      cores: number of cores of a device that share the programs of parallel dimensions.
    """

    seed: int = 0
    cores: int = 1

    def __str__(self) -> str:
        """For messages: the difference from the default schedule."""
        words: list[str] = []
        if self.seed:
            words.append(f"seed {self.seed} of the schedule")
        if self.cores > 1:
            words.append(f"parallel programs divided over {self.cores} cores")
        return ", ".join(words) or "seed 0 of the schedule"


#: ``"outputs"``: the outputs of each kernel. ``"separate"``: no results, but outputs that are
#: aliased to an input get memory of their own. ``"late"``: no results, but blocks are fetched just
#: before the body that reads them. ``"loads"``: the values of each load and copy.
Probe = Literal["", "outputs", "separate", "late", "loads"]
