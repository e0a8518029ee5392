"""Who sets a variable of the environment."""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def variables_of_imports() -> Generator[set[str]]:
    """Collect the names of the variables that are set while a module is being imported.

    ``os.environ`` calls ``os.putenv`` for each. Seen in Python 3.12 to 3.14.
    """
    names: set[str] = set()
    put = os.putenv

    def noted(name: bytes | str, value: bytes | str) -> None:
        if _importing(inspect.currentframe()):
            names.add(os.fsdecode(name))
        put(name, value)

    os.putenv = noted
    try:
        yield names
    finally:
        os.putenv = put


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
