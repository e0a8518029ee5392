"""``Precision``: where an oracle is less exact than float64."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_pallas.source_lines import SourceLine


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
