"""How many threads numpy's products use while a call is simulated: one.

OpenBLAS waits for its threads in busy loops. Where tests run on all cores (``pytest -n``), a
product of 256 x 256 matrices took 49 ms in two threads and 0.9 ms in one (OpenBLAS 0.3.34, two
cores).
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """Products use one thread in this context."""
    return _libraries().limit(limits=1)


@functools.cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
