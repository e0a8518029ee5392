"""A failing call as one file that ``--pallas-replay`` runs again, on another machine, too."""

from __future__ import annotations

from importlib import metadata, util
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas._version import __version__
from pytest_pallas.checks.golden import written_call
from pytest_pallas.errors import PallasTestError
from pytest_pallas.goldens.example import Example, content_of
from pytest_pallas.session import Session, variant_of

SUFFIX = ".safetensors"


def example_of(session: Session, item: pytest.Item, error: PallasTestError) -> bytes | None:
    """The content of the file, or None: something in the call has no words, or it is too large.

    Also where safetensors is not installed: the extra ``golden`` has it.
    """
    from pytest_pallas.backends import label

    if util.find_spec("safetensors") is None:
        return None
    failure = error.failure
    written = written_call(failure.trial.arguments)
    if written.opaque or sum(array.nbytes for array in written.arrays) > session.options.max_bytes:
        return None
    spec: Any = getattr(item, "spec", None)
    example = Example(
        test="" if spec is not None else item.nodeid.partition("[")[0],
        variant="" if spec is not None else variant_of(item),
        suite=session.options.suite if spec is not None else (),
        kernel=failure.name,
        check=failure.check,
        mesh=dict(getattr(item, "mesh", None) or {}),
        plain=written.plain,
        kinds=tuple((array.dtype.name, array.shape) for array in written.arrays),
        backend=label(failure.trial.backend),
        message=str(error).partition("\n")[0],
        versions={"jax": metadata.version("jax"), "pytest-pallas": __version__},
    )
    return content_of(example, written.arrays)


def beside(script: Path) -> Path:
    """Where the example of a script is."""
    return script.with_suffix(SUFFIX)
