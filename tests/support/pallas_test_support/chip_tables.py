"""The chips that are known, as they were before a test that adds some."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pallas_sim import chips

#: What ``add_chip`` writes to.
TABLES: tuple[Any, ...] = (
    *(chips.GPUS, chips.TPUS, chips.TARGETS),
    chips._added,  # pyright: ignore[reportPrivateUsage]
)


@contextmanager
def chips_as_before() -> Generator[None]:
    """Forget what is added in this context."""
    before = [dict(table) for table in TABLES]
    try:
        yield
    finally:
        for table, entries in zip(TABLES, before, strict=True):
            table.clear()
            table.update(entries)
