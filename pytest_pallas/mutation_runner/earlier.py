"""Verdicts of an earlier run, from the file of its ``--pallas-results``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pallas_sim.errors import OptionError
from pallas_sim.findings import read
from pytest_pallas.mutation_runner.verdict import MutantVerdict, from_json
from pytest_pallas.options.values import place_of
from pytest_pallas.results import read_results
from pytest_pallas.session import current

#: The name of the earlier run in reports.
EARLIER = "an earlier run"


@dataclass(frozen=True)
class Earlier:
    """The verdicts of a run on mutants whose source line has not changed.

    Attributes:
      killed: the mutants that it killed, by key, with ``EARLIER``.
      marked: keys of survivors that a spec marked as equivalent.
    """

    killed: dict[str, str] = field(default_factory=dict[str, str])
    marked: frozenset[str] = frozenset()


def earlier_run(config: pytest.Config) -> Earlier:
    """The verdicts of ``--pallas-mutate-after``; empty without it.

    Raises:
      OptionError: as ``read_earlier``.
    """
    after = current(config).options.mutate_after
    if after is None:
        return Earlier()
    try:
        return read_earlier(config.invocation_params.dir / after)
    except OptionError as error:
        raise OptionError(f"{place_of(config, 'mutate_after')}: {error}") from None


def read_earlier(path: Path) -> Earlier:
    """Read the verdicts of a results file.

    Args:
      path: the results file.

    Raises:
      OptionError: as ``read_results``.
    """
    verdicts = [from_json(each) for r in read_results(path).records for each in r.mutants]
    same = [verdict for verdict in verdicts if _unchanged(verdict)]
    return Earlier(
        {verdict.key: EARLIER for verdict in same if verdict.status == "killed"},
        frozenset(v.key for v in same if v.status == "equivalent" and v.marked),
    )


def _unchanged(verdict: MutantVerdict) -> bool:
    """Whether the line of a mutant is as it was; what is named may be no file, or have no end."""
    found = read(verdict.where)
    if found is None or not found.file.endswith(".py") or not os.path.isfile(found.file):
        return False
    return found.text == verdict.source
