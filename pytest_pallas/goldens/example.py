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

from pallas_sim.findings import Text
from pytest_pallas.decoding import Count, DataError, decode, parse, shown
from pytest_pallas.errors import GoldenError
from pytest_pallas.goldens.entry import Kind, PlainCall, without_schema
from pytest_pallas.goldens.tensors import Array, dump, load, metadata_of
from pytest_pallas.goldens.values import call_of, read

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
    mesh: Mapping[str, Count] = field(default_factory=dict[str, int])
    plain: PlainCall
    kinds: tuple[Kind, ...]
    backend: str = ""
    message: Text = ""
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
    name = shown(str(path))
    try:
        if not path.is_file() and path.exists():
            raise GoldenError("this is no file")
        if path.stat().st_size > _MOST:
            raise GoldenError("this is too large for an example")
        return _loaded(path.read_bytes())
    except OSError as error:
        raise GoldenError(f"{name}: {error.strerror}") from None
    except (GoldenError, ValueError) as error:  # a path with a NUL
        raise GoldenError(f"{name}: {error}") from None


def _loaded(content: bytes) -> Loaded:
    text = metadata_of(content).get(_KEY)
    if text is None:
        raise GoldenError("this is no example of pytest-pallas")
    try:
        example: Example = decode(Example, without_schema(parse(text), SCHEMA, "example"))
    except DataError as error:
        raise GoldenError(f"this is no example of pytest-pallas: {error}") from None
    named = {f"in{number}": kind for number, kind in enumerate(example.kinds)}
    arrays = load(content, named)
    value = read(example.plain, [arrays[name] for name in named])
    return Loaded(example, call_of(value))
