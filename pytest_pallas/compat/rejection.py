"""Private names of hypothesis: what ``reject()`` and ``assume()`` raise.

Seen in hypothesis 6.131 to 6.170. It can go when hypothesis documents the exception. Probe:
``tests/unit/compat/test_rejection.py``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def rejecting() -> Generator[None]:
    """Let ``assume()`` and ``reject()`` be called where hypothesis runs no test of its own.

    A spec's examples are drawn by hypothesis, and run afterwards.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*outside a property-based test")
        yield


def is_rejection(error: BaseException) -> bool:
    """Whether hypothesis rejects the example that is running: nothing failed."""
    errors = sys.modules.get("hypothesis.errors")
    return errors is not None and isinstance(error, errors.UnsatisfiedAssumption)
