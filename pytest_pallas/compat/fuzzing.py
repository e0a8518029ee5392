"""Private names of hypothesis."""

from __future__ import annotations

import hashlib
import sys
from typing import Any


def set_database_key(test: Any, key: str) -> None:
    """Name the entry of hypothesis' example database that a ``@given`` test uses.

    By default that is a digest of its source, which tests made in a loop share. Hypothesis' own
    pytest plugin sets the same attribute. Seen in hypothesis 6.131 to 6.170.
    """
    inner = test.hypothesis.inner_test
    inner._hypothesis_internal_add_digest = hashlib.sha384(key.encode()).digest()


def hypothesis_profile() -> str:
    """The name of hypothesis' profile, without importing hypothesis for it.

    ``get_current_profile_name`` is public in hypothesis 6.170 and missing in 6.131.
    """
    if "hypothesis" not in sys.modules:
        return "default"
    settings: Any = sys.modules["hypothesis"].settings
    public = getattr(settings, "get_current_profile_name", None)
    return str(public() if public is not None else settings._current_profile)


def hypothesis_settings(test: Any) -> Any:
    """The settings of a ``@given`` test, or None if it has none of its own.

    Seen in hypothesis 6.131 to 6.170.
    """
    return getattr(test, "_hypothesis_internal_use_settings", None)


def set_hypothesis_settings(test: Any, settings: Any) -> None:
    """Replace the settings of a ``@given`` test; ``settings`` as a decorator refuses a second one.

    Seen in hypothesis 6.131 to 6.170.
    """
    test._hypothesis_internal_use_settings = settings


def hypothesis_seed(test: Any) -> int | None:
    """The seed that ``@hypothesis.seed`` gave a test, or None.

    Seen in hypothesis 6.131 to 6.170.
    """
    return getattr(test, "_hypothesis_internal_use_seed", None)
