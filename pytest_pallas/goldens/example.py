"""``Example``: one call of one check in one file, to be run again on another machine.

The file is one of safetensors: the arrays of the call, and as metadata a JSON of the rest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_pallas.errors import GoldenError
from pytest_pallas.goldens.tensors import Array, dump, load, metadata_of
from pytest_pallas.goldens.values import read

#: Version of the JSON; see docs/goldens.md.
SCHEMA = 1

#: The name of the JSON in the metadata.
_KEY = "pytest-pallas example"

#: The largest file that is read.
_MOST = 2**34


@dataclass(frozen=True, kw_only=True)
class Example:
    """A call that a check was asked about.

    Attributes:
      test: of a test function the node id without parameters; "" for a spec.
      variant: the parameters in that node id, without the backend.
      suite: of a spec, what ``--pallas-suite`` said.
      kernel: name of the kernel.
      check: name of the check.
      mesh: axis name to size, or empty.
      plain: arguments, options and tuning, as ``values.write`` gives them.
      kinds: dtype and shape of each array in ``plain``.
      backend: label of the backend on which it failed.
      message: what was said there, in its first line.
      versions: of what ran there.
    """

    test: str = ""
    variant: str = ""
    suite: tuple[str, ...] = ()
    kernel: str
    check: str
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    plain: Any
    kinds: tuple[tuple[str, tuple[int, ...]], ...]
    backend: str = ""
    message: str = ""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Loaded:
    """An example, and its call: positional arguments, options and tuning."""

    example: Example
    call: tuple[tuple[Any, ...], Mapping[str, Any], Mapping[str, Any]]


def content_of(example: Example, arrays: Sequence[Array]) -> bytes:
    """The content of an example's file.

    Raises:
      OptionError: safetensors is not installed.
    """
    plain = {"schema": SCHEMA, **dataclasses.asdict(example)}
    named = {f"in{number}": array for number, array in enumerate(arrays)}
    return dump(named, {_KEY: json.dumps(plain)})


def load_example(path: Path) -> Loaded:
    """The example in a file. Nothing in it is executed.

    Raises:
      GoldenError: there is no such file, or it is none of these, or damaged, or newer.
      OptionError: safetensors is not installed.
    """
    try:
        if path.stat().st_size > _MOST:
            raise GoldenError(f"{path}: this is too large for an example")
        return _loaded(path.read_bytes())
    except OSError as error:
        raise GoldenError(f"{path}: {error.strerror}") from None
    except GoldenError as error:
        raise GoldenError(f"{path}: {error}") from None


def _loaded(content: bytes) -> Loaded:
    text = metadata_of(content).get(_KEY)
    if text is None:
        raise GoldenError("this is no example of pytest-pallas")
    try:
        plain = json.loads(text)
        schema = plain.pop("schema")
        if schema != SCHEMA:
            raise GoldenError(
                f"it has the schema {schema!r}, and this pytest-pallas reads {SCHEMA}; install the "
                "version that wrote it"
            )
        plain["suite"] = tuple(str(word) for word in plain["suite"])
        plain["mesh"] = {str(axis): int(size) for axis, size in plain["mesh"].items()}
        plain["kinds"] = tuple(
            (str(dtype), tuple(map(int, shape))) for dtype, shape in plain["kinds"]
        )
        example = Example(**plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GoldenError(f"this is no example of pytest-pallas: {error!r}") from None
    named = {f"in{number}": kind for number, kind in enumerate(example.kinds)}
    arrays = load(content, named)
    value = read(example.plain, [arrays[name] for name in named])
    if not isinstance(value, tuple) or len(value) != 3:
        raise GoldenError("it holds no call")
    return Loaded(example, value)
