"""What ``ptxas -v``, NVIDIA's assembler, says of the kernels it assembles.

The lines are those of ptxas 12.9 to 13.5, alone or in a log of XLA. Shared memory that is requested
when a kernel is launched is not in PTX: ``launches`` and ``thunks`` read it where it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.analysis.machine_code.cost import Cost

#: Begins the message of one run of ptxas in a log.
_LOGGED = re.compile(r"^[IWEF]\d{4} \S+ +\d+ \S+\] ")
_ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"ptxas info\s*: Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"ptxas info\s*: Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")
_WARNING = re.compile(
    r"(?:ptxas info\s*: (?=\(C\d+\) Potential Performance Loss)|ptxas .*?\bwarning\s*: )(.*)"
)
_NAMED = re.compile(r" in (?:the )?function '([^']+)'(?: in line \d+)?")

#: ``f(spec, grid x 3, cluster x 3, block x 3, bytes of shared memory, ...)`` in Mosaic GPU's host
#: code: of jax 0.12, and of jax 0.11.
_LAUNCH = re.compile(
    r"call [^@]*@mosaic_gpu_(?:build_kernel_spec|launch_kernel)"
    r"\(ptr [^,]*(?:, i32 [^,]+){9}, i32 (\d+)"
)
_THUNK = re.compile(r"kCustomKernel .*?\] (\S+) grid: .*shared_memory: (\d+) bytes")


@dataclass
class _Entry:
    """An entry function while its lines are read."""

    name: str
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    warnings: list[str] = field(default_factory=list[str])


def costs(text: str) -> tuple[Cost, ...]:
    """What each entry function costs, in the order of the text.

    ``shared_bytes`` is the static part. What ptxas says of a function that is not an entry is left
    out, and so is the warning of spilled registers: they are in the numbers.

    Args:
      text: ptxas' output, of one run or of many, with anything in between.
    """
    entries: list[_Entry] = []
    run: list[_Entry] = []  # the entries of one run of ptxas
    pending: list[str] = []  # warnings come before the entry that they are about, or after the last
    described = ""
    for line in text.splitlines():
        if _LOGGED.match(line):
            _give(pending, run[-1:])
            run, pending = [], []
        if entry := _ENTRY.search(line):
            run.append(_Entry(entry[1]))
            entries.append(run[-1])
            pending = _give(pending, run[-1:], named=entry[1])
            described = ""
        elif properties := _PROPERTIES.search(line):
            described = properties[1]
        elif warning := _WARNING.search(line):
            if "spilled to local memory" not in warning[1]:
                pending.append(warning[1].strip())
        elif run and described == run[-1].name:
            run[-1].numbers.update(_numbers(line))
    _give(pending, run[-1:])
    return tuple(_cost(entry) for entry in entries)


def _cost(entry: _Entry) -> Cost:
    numbers: dict[str, Any] = {**entry.numbers}
    return Cost(kernel=entry.name, warnings=tuple(dict.fromkeys(entry.warnings)), **numbers)


def _give(warnings: list[str], to: list[_Entry], *, named: str = "") -> list[str]:
    """Add warnings to an entry; those that name another function than ``named`` are returned."""
    kept: list[str] = []
    for warning in warnings:
        function = _NAMED.search(warning)
        if named and function and function[1] != named:
            kept.append(warning)
            continue
        for entry in to:
            entry.warnings.append(_NAMED.sub("", warning))
    return kept


def _numbers(line: str) -> Mapping[str, int]:
    """What a line says of the function that is described."""
    if stack := _STACK.search(line):
        names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
        return dict(zip(names, map(int, stack.groups()), strict=True))
    if used := _USED.search(line):
        static = _STATIC.search(line)
        return {"registers": int(used[1]), "shared_bytes": int(static[1]) if static else 0}
    return {}


def launches(host_code: str) -> tuple[int, ...]:
    """Bytes of shared memory that each Mosaic GPU kernel is launched with, in order.

    Args:
      host_code: LLVM of the host's side, which ``MOSAIC_GPU_DUMP_HOST_LLVM`` writes.
    """
    return tuple(int(size) for size in _LAUNCH.findall(host_code))


def thunks(sequence: str) -> Mapping[str, int]:
    """Bytes of shared memory that each kernel compiled by XLA is launched with, in order.

    Args:
      sequence: the ``thunk_sequence.txt`` that ``--xla_dump_to`` writes.
    """
    return {name: int(size) for name, size in _THUNK.findall(sequence)}
