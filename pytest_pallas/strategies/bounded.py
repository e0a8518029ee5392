"""``bounded``: a strategy for arrays of one size, with an error if they are too large."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.budget import check_bytes


def bounded[T](
    what: str, shape: Iterable[int], strategy: SearchStrategy[T], *, itemsize: int = 4
) -> SearchStrategy[T]:
    """``strategy``, which draws arrays of ``shape``, within ``--pallas-max-bytes``.

    Args:
      what: name of the drawn object, for the message.
      shape: of each draw.
      strategy: draws it.
      itemsize: bytes of an element.

    Raises:
      DrawTooLargeError: when drawing, if it is too large.
    """
    sizes = tuple(shape)
    return _bounded(f"{what}{list(sizes)}", math.prod(sizes) * itemsize, strategy)


@st.composite
def _bounded(draw: DrawFn, what: str, number: int, strategy: SearchStrategy[Any]) -> Any:
    check_bytes(what, number)
    return draw(strategy)


def bytes_in(value: Any) -> int:
    """The bytes of all arrays in a value, which may be a tuple, a list or a mapping of them."""
    if isinstance(value, dict):
        return sum(bytes_in(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return sum(bytes_in(item) for item in value)
    return int(value.nbytes) if isinstance(value, (np.ndarray, np.generic)) else 0
