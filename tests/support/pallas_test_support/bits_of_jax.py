"""What XLA gives for the programs that rules of the simulator are compared with.

Compiling them is half of what these tests cost. ``bits_of_jaxlib_<version>.txt`` has a digest of
what came back for each, by a digest of all that decides it: the program that JAX made, its
operands, the version and the options of the compiler, and its pinned instructions. XLA compiles a
program that is not there, or for which the simulator gives something else. To write the file of the
installed version anew, of all tests that compare bits::

    PALLAS_STORE_BITS=1 uv run pytest --slow tests/pallas_sim
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

FILE = Path(__file__).with_name(f"bits_of_jaxlib_{jaxlib.__version__}.txt")

_added: dict[str, str] = {}


def digest(parts: Iterable[bytes]) -> str:
    """64 bits of what some bytes are."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()[:16]


def key_of(program: str, operands: Sequence[Any], options: Mapping[str, Any]) -> str:
    """What decides the results of a program: its StableHLO, its operands, and the compiler.

    Args:
      program: as text.
      operands: arrays.
      options: of the compiler.
    """
    flags = os.environ["XLA_FLAGS"].split()  # the number of devices decides nothing here
    flags = [each for each in flags if not each.startswith("--xla_force_host_platform")]
    compiler = f"{jaxlib.__version__} {platform.machine()} {flags} {sorted(options.items())}"
    arrays = (np.ascontiguousarray(_words(each)).tobytes() for each in operands)
    return digest([compiler.encode(), program.encode(), *arrays])


def _words(operand: Any) -> np.ndarray[Any, Any]:
    """An operand, or the words of one that is keys."""
    is_key = jax.dtypes.issubdtype(getattr(operand, "dtype", None), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(operand) if is_key else operand)


def known(key: str) -> str | None:
    """The digest of what XLA gives, if it is known."""
    return _stored().get(key)


def add(key: str, results: str) -> None:
    """Keep the digest of what XLA gave, where the file is written anew."""
    if _WRITES:
        if not _added:
            atexit.register(_write)
        _added[key] = results


_WRITES = os.environ.get("PALLAS_STORE_BITS") == "1"


@functools.cache
def _stored() -> dict[str, str]:
    if _WRITES or not FILE.exists():
        return {}
    lines = FILE.read_text().splitlines()
    return {key: results for key, _, results in (line.partition(" ") for line in lines)}


def _write() -> None:
    FILE.write_text("".join(f"{key} {results}\n" for key, results in sorted(_added.items())))
