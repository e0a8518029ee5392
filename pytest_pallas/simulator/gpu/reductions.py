"""What atomic operations and reducing copies make of the old elements and the new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.arithmetic.dtypes import convert

Array = np.ndarray[Any, Any]

_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reducer(name: str, dtype: Any) -> Callable[[Array, Array], Array]:
    """The function of the old elements and the new ones, rounded once to their dtype.

    Args:
      name: ``"add"``, ``"min"``, ``"max"``, ``"and"``, ``"or"`` or ``"xor"``; what it may be
      prefixed
        with (``"smin"``, ``"umax"``) says how bits are read, which the dtype says here.
      dtype: of the elements.

    Raises:
      SimulationError: there is no such operation.
    """
    dtype = np.dtype(dtype)
    function = _FUNCTIONS.get(name) or _FUNCTIONS.get(name[1:])
    if function is None:
        raise SimulationError(f"the simulator does not know the atomic operation {name!r}")
    if dtype.kind in "iu" and dtype.itemsize >= 4:
        return lambda old, new: function(old, new)
    wide = np.dtype(np.int32) if dtype.kind in "iu" else np.dtype(np.float32)
    wide = dtype if dtype.itemsize >= 4 else wide
    return lambda old, new: convert(function(convert(old, wide), convert(new, wide)), dtype)
