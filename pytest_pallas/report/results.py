"""``--pallas-results``: the records of a session as JSON. Documented in docs/results.md."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.backends import label
from pytest_pallas.errors import OptionError
from pytest_pallas.record import SCHEMA, Record, to_json
from pytest_pallas.session import Session


def check_writable(path: Path) -> None:
    """Find out before anything runs whether results can be written.

    Raises:
      OptionError: they cannot.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
    except OSError as error:
        raise OptionError(
            f"--pallas-results={path}: cannot write there: {error}. Give a file in a folder that "
            "exists and can be written."
        ) from None


def write(path: Path, session: Session, records: Sequence[Record]) -> None:
    """Write results in one step, so that no reader ever sees half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(_document(session, records), file, indent=1)
            file.write("\n")
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _document(session: Session, records: Sequence[Record]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "environment": {
            "pytest_pallas": metadata.version("pytest-pallas"),
            "jax": metadata.version("jax"),
            "pytest": pytest.__version__,
            "python": sys.version.split()[0],
            "machine": platform.machine(),
        },
        "options": {
            "backends": [label(backend) for backend in session.selection.backends],
            "devices": session.options.devices,
            "max_examples": session.options.max_examples,
            "seed": session.options.seed,
        },
        "records": [to_json(record) for record in records],
    }
