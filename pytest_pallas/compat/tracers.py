"""Private names of JAX: a tracer that has a value.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when a subclass of ``jax.core.Tracer`` need not set
private fields. Probe: ``tests/unit/simulator/test_eager.py``.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def tracer_type() -> Any:
    """The class of tracers ``(trace, aval, value)``, which functions may ask for their value."""
    import numpy as np

    core: Any = importlib.import_module("jax.core")

    class Tracer(core.Tracer):
        """A value that operations are evaluated on."""

        __slots__ = ("value",)

        def __init__(self, trace: Any, aval: Any, value: Any) -> None:
            super().__init__(trace, aval)
            self._line_info = None
            self.value = value

        def _origin_msg(self) -> str:
            return ""

        def to_concrete_value(self) -> Any:
            """The value itself, if it is an array."""
            value = self.value
            return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None

        def __array__(self, *args: Any, **options: Any) -> Any:
            return np.asarray(self.value, *args, **options)

        def is_deleted(self) -> bool:
            """False: values are never deleted."""
            return False

        def __float__(self) -> float:
            return float(self.value)

        def __complex__(self) -> complex:
            return complex(self.value)

        def tolist(self) -> Any:
            """As of an array."""
            return np.asarray(self.value).tolist()

        def item(self, *args: int) -> Any:
            """As of an array."""
            return np.asarray(self.value).item(*args)

    return Tracer
