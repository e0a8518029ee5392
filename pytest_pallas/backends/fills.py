"""What memory is filled with that nobody has written: scratch, outputs, and padding.

By itself it holds NaN, and integers at an end of their range, which shows wherever it is computed
with. It hides from ``max`` by comparison, from counts and masks (every comparison with NaN is
false), and in integers and bools that look like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def words_of(fill: str) -> str:
    """A fill in words: "0 (of bools False) in scratch memory that nobody has written"."""
    name, _, place = fill.partition(":")
    return f"{WORDS[name]} in {PLACES[place][1]}"


def fill_of(fill: str) -> Callable[[Any, str], Any] | None:
    """What a simulator fills memory with: of a dtype and a place; None for its own.

    Args:
      fill: a name of ``FILLS``, for all memory; or name and place, such as ``"zero:scratch"``; ""
        changes nothing.
    """
    if not fill:
        return None
    name, _, place = fill.partition(":")
    value, places = FILLS[name], PLACES[place][0]
    return lambda dtype, where: value(dtype) if where in places else None
