"""The texts of options as values: one function an option, or a kind of option.

Every run of pytest imports it, so it has no imports of its own.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_sim.errors import OptionError
    from pytest_pallas.database import DatabasePlace
    from pytest_pallas.options.values import Distributed, FleetPlace, Replay, Shard


def wrong(problem: str) -> OptionError:
    """The error for a wrong value."""
    from pallas_sim.errors import OptionError

    return OptionError(problem)


def words(text: str) -> tuple[str, ...]:
    """A comma-separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def whole(least: int) -> Callable[[str], int]:
    """Parse an integer of at least ``least``."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise wrong(f"must be an integer of at least {least}, not {text!r}")
        return number

    return parse


def amount(unit: str, *, zero: bool = False) -> Callable[[str], float]:
    """Parse a number of ``unit`` above 0, or of at least 0 with ``zero``."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not (0 < number < float("inf") or (zero and number == 0)):
            least = "of at least 0" if zero else "above 0"
            raise wrong(f"must be a number of {unit} {least}, not {text!r}")
        return number

    return parse


def size(text: str) -> int:
    """A number of bytes, such as ``64MiB``."""
    from pytest_pallas.budget import parse_bytes

    number = parse_bytes(text.strip())
    if number is None:
        raise wrong(f"must be a number of bytes such as 64MiB, 1GiB or 65536, not {text!r}")
    return number


def mutants(text: str) -> int | None:
    """The number of mutants of a kernel: 0 for all, None for off."""
    if text in ("off", "all"):
        return None if text == "off" else 0
    try:
        return whole(1)(text)
    except Exception:
        raise wrong(
            f"must be all, off or the maximum number of mutants of a kernel, not {text!r}; before "
            "a path, write --pallas-mutate=all"
        ) from None


def one_of(*valid: str) -> Callable[[str], str]:
    """Parse one of some words."""

    def parse(text: str) -> str:
        if text not in valid:
            raise wrong(f"must be one of {', '.join(valid)}, not {text!r}")
        return text

    return parse


def places(text: str) -> tuple[DatabasePlace, ...]:
    """The places of a database of failing examples."""
    from pytest_pallas.database import parse_places

    return parse_places(text)


def path(text: str) -> Path | None:
    """A path, or None."""
    return Path(text) if text else None


#: Limit on the bytes of an example of Hypothesis, whose own limit is 8 KiB of choices.
_MOST_BLOB = 2**20


def replay(text: str) -> Replay:
    """A file or a blob: Hypothesis' text in base64, which begins with a byte 0 or 1."""
    from pytest_pallas.options.values import Replay

    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        content = b""
    if content[:1] not in (b"\0", b"\1") or os.path.exists(text):
        return Replay(file=Path(text))
    if content[:1] == b"\1":  # what follows is compressed
        from pytest_pallas.decoding import DataError, unpacked

        try:
            unpacked(content[1:], _MOST_BLOB)
        except DataError as error:
            raise wrong(f"the blob of {len(text):,} characters {error}") from None
    return Replay(blob=text)


def distributed(text: str) -> Distributed | None:
    """``auto``, or ``I/N@HOST:PORT``."""
    from pytest_pallas.options.values import Distributed

    if text in ("", "auto"):
        return Distributed() if text else None
    place, at, address = text.partition("@")
    index, slash, count = place.partition("/")
    host, colon, port = address.rpartition(":")
    numbers = index.isdigit() and count.isdigit() and port.isdigit()
    if not (at and slash and colon and host and numbers and int(index) < int(count)):
        raise wrong(
            "must be auto, or I/N@HOST:PORT with the number of this host from 0, the number of "
            f"hosts and the address of host 0, such as 1/4@10.0.0.1:8476, not {text!r}"
        )
    return Distributed(address, int(index), int(count))


#: Variables with the number of a job among equal ones, that of all jobs, and where numbers begin.
_JOBS = (
    ("CI_NODE_INDEX", "CI_NODE_TOTAL", 1),  # GitLab
    ("CIRCLE_NODE_INDEX", "CIRCLE_NODE_TOTAL", 0),
    ("BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT", 0),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", 0),  # Kubernetes; the second is one's own
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", 0),
)


def shard(text: str) -> Shard | None:
    """``I/N``, ``auto/N`` with the number of the job from the environment, or ``auto``."""
    from pytest_pallas.options.values import Shard

    if not text:
        return None
    index, _, count = text.partition("/")
    if index == "auto":
        jobs = [each for each in _JOBS if each[0] in os.environ]
        if not jobs:
            names = ", ".join(each[0] for each in _JOBS)
            raise wrong(f"auto reads the number of the job from {names}, and none is set")
        index, total, first = os.environ[jobs[0][0]], jobs[0][1], jobs[0][2]
        count = count or os.environ.get(total, "")
        if not count:
            raise wrong(f"auto: {total} is not set; write auto/N for N jobs")
        index = str(int(index) - first + 1) if index.isdecimal() else index
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise wrong(f"must be I/N with I from 1 to N, such as 2/4, or auto, not {text!r}")
    return Shard(int(index), int(count))


def fleet(text: str) -> FleetPlace | None:
    """``local:N``, or the address of a Dask scheduler: ``HOST:PORT``, also with a scheme."""
    from pytest_pallas.options.values import FleetPlace

    if not text:
        return None
    scheme, _, rest = text.rpartition("://")
    host, _, port = rest.rpartition(":")
    number = int(port) if port.isdecimal() else 0
    if host == "local" and not scheme and number:
        return FleetPlace(workers=number)
    known = scheme in ("", "tcp", "tls", "ucx", "ws", "wss")
    if not known or not host or host == "local" or not 0 < number < 2**16:
        raise wrong(
            "must be local:N for N worker processes on this machine, or the address of a Dask "
            f"scheduler, such as tcp://HOST:8786, not {text!r}"
        )
    return FleetPlace(address=f"{scheme or 'tcp'}://{rest}")
