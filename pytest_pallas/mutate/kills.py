"""Mutants that several tests or specs killed count for the first of them.

Where tests run in several processes, or in several runs, each may try a mutant that another one has
killed. The records are put right at the end, in the order of collection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_pallas.mutate.item import merge_into
from pytest_pallas.mutate.runner import from_json, merge_verdicts, to_json
from pytest_pallas.record import Record
from pytest_pallas.run.result import Result


def credit_first_kills(
    records: Sequence[Record], results: Mapping[str, Mapping[str, Any]], killed: dict[str, str]
) -> list[Record]:
    """Make records in which each killed mutant counts for the first test or spec that killed it.

    Args:
      records: of a run in several processes, in the order of collection.
      results: those of items of mutants, by test id, as of a part with all mutants.
      killed: names of the tests and specs that killed mutants, by key; new ones are added.
    """
    return [
        _credited(record, results.get(record.test), killed) if record.mutants else record
        for record in records
    ]


def _credited(record: Record, result: Mapping[str, Any] | None, killed: dict[str, str]) -> Record:
    if result is None:
        item = record.test.rpartition("::")[2]
        # an item of mutants is named after its spec, under whose name its kills count
        name = record.kernel if item == f"{record.kernel}-{record.check}" else item
        merged = merge_verdicts(map(from_json, record.mutants), name=name, killed=killed)
        return dataclasses.replace(record, mutants=tuple(map(to_json, merged)))
    builder = Result(kernel=record.kernel, check=record.check, backend=record.backend)
    merge_into(builder, [result], name=record.kernel, killed=killed)
    return dataclasses.replace(
        record,
        examples=builder.examples,
        mutants=tuple(builder.mutants),
        notes=tuple(builder.notes),
    )
