"""Where an oracle leaves float64, and what products keep of float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pallas_sim.findings import SourceLine
from pytest_pallas.decoding import Between


@dataclass(frozen=True)
class Precision:
    """Where a reference leaves float64.

    Attributes:
      dtype: in which it computes from there on.
      line: where it does so; None if that is not known.
    """

    dtype: str
    line: SourceLine | None = None

    def __str__(self) -> str:
        """For messages: ``float32 (refs.py:12)``."""
        return f"{self.dtype} ({self.line})" if self.line else self.dtype


#: The fractional bits of the significand of float32.
FLOAT32_BITS = 23


@dataclass(frozen=True)
class ProductPrecision:
    """The precision of products of float32.

    Attributes:
      name: such as ``"tf32"``.
      bits: the fractional bits that a product keeps of the significand of an operand, fewer than
        ``FLOAT32_BITS``. An operand is rounded to nearest, half away from zero.
    """

    name: str
    bits: Annotated[int, Between(0, FLOAT32_BITS)]
