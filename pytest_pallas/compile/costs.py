"""``--pallas-cost``: record what the machine code of kernels costs, and compare with it later."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_sim.errors import OptionError
from pallas_sim.findings import Text
from pytest_pallas.compile.service import CompileReport
from pytest_pallas.decoding import Count, DataError, decode, parse

#: Version of the file.
SCHEMA = 1

#: Numbers that may not grow at all, because the first spill costs most.
_NEVER = ("spills", "fills", "spill_store_bytes", "spill_load_bytes")

#: Numbers that may grow by the limit.
_LIMITED = ("vmem_bytes", "bundles", "loop_bundles", "registers", "shared_bytes", "stack_bytes")

#: Names of the numbers in messages.
_NAMES = {
    "vmem_bytes": "bytes of VMEM",
    "loop_bundles": "bundles in the main loop",
    "shared_bytes": "bytes of shared memory",
    "stack_bytes": "bytes of stack",
    "spill_store_bytes": "bytes of spill stores",
    "spill_load_bytes": "bytes of spill loads",
}


@dataclass(frozen=True, kw_only=True)
class RecordedCost:
    """What one program cost.

    Attributes:
      kernel: name of the kernel.
      check: name of the check whose program it is.
      target: the chip.
      signature: dtypes, shapes and options.
      compiler: the compiler's name and version.
      cost: the numbers that are compared, by the names of ``Cost``.
    """

    kernel: str
    check: str
    target: str
    signature: Text
    compiler: str
    cost: Mapping[str, Count]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What was compiled, and for which chip."""
        return (self.kernel, self.check, self.target, self.signature)


@dataclass(frozen=True)
class RecordedCosts:
    """Recorded costs, and how far a kernel may exceed them.

    Attributes:
      entries: the recorded costs by ``RecordedCost.key``.
      limit: by how many percent a cost may grow.
    """

    entries: Mapping[tuple[str, str, str, str], RecordedCost]
    limit: float

    def grown(self, kernel: str, check: str, report: CompileReport | None) -> str | None:
        """Say which numbers of a report exceed the recorded ones; None if none does."""
        if report is None or report.status != "compiled":
            return None
        new = entry(kernel, check, report)
        old = self.entries.get(new.key)
        if old is None:
            return None
        problems = list(_problems(old.cost, new.cost, self.limit))
        if not problems:
            return None
        text = f"its code for {report.target} costs more than recorded: {'; '.join(problems)}"
        if old.compiler != new.compiler:
            text += f". Recorded with {old.compiler}, compiled with {new.compiler}"
        return text + ". If that is right, record it: --pallas-cost=record"


def entry(kernel: str, check: str, report: CompileReport) -> RecordedCost:
    """Make the entry for a report."""
    numbers = {name: getattr(report, name) for name in (*_NEVER, *_LIMITED)}
    return RecordedCost(
        kernel=kernel,
        check=check,
        target=report.target,
        signature=report.signature,
        compiler=report.compiler,
        cost={name: value for name, value in numbers.items() if value is not None},
    )


def _problems(old: Mapping[str, int], new: Mapping[str, int], limit: float) -> Iterator[str]:
    for name, before in old.items():
        after = new.get(name)
        allowed = before if name in _NEVER else before * (1 + limit / 100)
        if after is not None and after > allowed:
            growth = f" (+{100 * (after - before) / before:.0f} %)" if before else ""
            yield f"{after:,} {_NAMES.get(name, name)}, recorded {before:,}{growth}"


def load(path: Path, limit: float) -> RecordedCosts:
    """Read the costs recorded in a file.

    Raises:
      OptionError: there is no such file, or it is no file of costs.
    """
    entries = _entries(path)
    if entries is None:
        raise OptionError(
            f"--pallas-cost=compare: there is no file {path}; make it with --pallas-cost=record, "
            "or name another with --pallas-cost-file"
        )
    return RecordedCosts({entry.key: entry for entry in entries}, limit)


def save(path: Path, new: Iterable[RecordedCost]) -> int:
    """Write entries to a file, and keep those in it that have another key.

    Returns the number of new entries.

    Raises:
      OptionError: the file holds something else.
      OSError: it cannot be written.
    """
    fresh = {entry.key: entry for entry in new}
    merged = {entry.key: entry for entry in _entries(path) or ()} | fresh
    ordered = [dataclasses.asdict(merged[key]) for key in sorted(merged)]
    text = json.dumps({"schema": SCHEMA, "costs": ordered}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    return len(fresh)


def _entries(path: Path) -> list[RecordedCost] | None:
    """Read the entries of a file; None if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OptionError(f"the cost file {path} cannot be read: {error}") from None
    try:
        plain: Any = parse(content)
        schema = decode(int, plain["schema"] if "schema" in decode(dict[str, Any], plain) else None)
        if schema != SCHEMA:
            raise OptionError(
                f"the cost file {path} has schema {schema}, and this version reads "
                f"{SCHEMA}; record it again with --pallas-cost=record in another file"
            )
        return decode(list[RecordedCost], plain.get("costs"))
    except DataError as error:
        raise OptionError(
            f"{path} is not a file of --pallas-cost=record ({error}); delete it, or name another "
            "with --pallas-cost-file"
        ) from None
