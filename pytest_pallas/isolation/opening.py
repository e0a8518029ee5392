"""The configuration of a session of pytest that runs tests for another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_pallas.isolation.messages import Opening

#: Options that such a session must not use: start workers, debug, stop early, write files of the
#: reporting session.
_OPTIONS: Mapping[str, Any] = {
    "dist": "no",
    "tx": [],
    "numprocesses": None,
    "maxprocesses": None,
    "looponfail": False,
    "distload": False,
    "usepdb": False,
    "trace": False,
    "maxfail": 0,
    "stepwise": False,
    "cacheclear": False,
    "xmlpath": None,
    "htmlpath": None,
    "report_log": None,
    "log_file": "/dev/null",
}

#: Options that choose or order tests by earlier runs.
_CHOOSING: Mapping[str, Any] = {"lf": False, "failedfirst": False, "newfirst": False}


def opening_of(
    config: pytest.Config,
    options: Mapping[str, Any],
    attributes: Mapping[str, Any] | None = None,
    *,
    chooses: bool = False,
) -> Opening:
    """The configuration of a session like this one.

    Args:
      config: of this session.
      options: further changes of its options.
      attributes: further attributes of its configuration.
      chooses: whether it chooses tests by earlier runs (``--lf``), because this one does not.
    """
    changed = {**_OPTIONS, **({} if chooses else _CHOOSING), **options}
    if config.option.basetemp:
        # pytest clears that folder at its first use
        changed["basetemp"] = f"{config.option.basetemp}-isolated"
    attributes = dict(attributes or {})
    if hasattr(config, "workerinput"):  # of pytest-xdist, for its fixtures
        attributes |= {"workerinput": dict(config.workerinput), "workeroutput": {}}  # pyright: ignore[reportAttributeAccessIssue]
    return Opening(
        args=[str(arg) for arg in config.invocation_params.args],
        folder=str(config.invocation_params.dir),
        options=changed,
        attributes=attributes,
        chooses=chooses,
    )
