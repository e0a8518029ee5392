"""What an earlier run has caught, by the file of its ``--pallas-results``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.errors import OptionError
from pytest_pallas.hunting.verdict import Verdict, from_json, source_at
from pytest_pallas.options import place_of
from pytest_pallas.session import current

#: Who has caught a mutant, in words.
EARLIER = "an earlier run"


def caught_before(config: pytest.Config) -> dict[str, str]:
    """What the run of ``--pallas-mutate-after`` caught, as ``caught_earlier``; nothing without.

    Raises:
      OptionError: as ``caught_earlier``.
    """
    after = current(config).options.mutate_after
    if after is None:
        return {}
    try:
        return caught_earlier(config.invocation_params.dir / after)
    except OptionError as error:
        raise OptionError(f"{place_of(config, 'mutate_after')}: {error}") from None


def caught_earlier(path: Path) -> dict[str, str]:
    """The mutants that a run caught, by key, with ``EARLIER``.

    Those whose line reads otherwise now are left out.

    Args:
      path: of the results.

    Raises:
      OptionError: there is no such file, or it has no results.
    """
    try:
        verdicts = list(_verdicts(json.loads(path.read_text())))
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise OptionError(f"{path} was not written by --pallas-results") from None
    return {
        verdict.key: EARLIER
        for verdict in verdicts
        if verdict.status == "caught" and verdict.source == source_at(verdict.where)
    }


def _verdicts(plain: Any) -> Iterator[Verdict]:
    for record in plain["records"]:
        yield from map(from_json, record.get("mutants", ()))
