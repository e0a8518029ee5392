"""On-chip memory that a TPU kernel allocates, read off libtpu's low-level code (LLO).

Formats as libtpu 0.0.51 writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_pallas.analysis.machine_code.cost import Cost
from pytest_pallas.analysis.machine_code.loops import find_loops, main_loop, split_bundles

#: An allocation of the kernel's own; those at a fixed address (``fixed_abs``) are the system's.
_ALLOCATION = re.compile(
    r"^ *#allocation\w+ \[shape = '[^']*', space=(?P<space>\w+), size = (?P<size>0x[0-9a-f]+|\d+), "
    r"offset = (?P<offset>0x[0-9a-f]+|\d+), scoped\b",
    re.MULTILINE,
)


def allocated_bytes(code: str, space: str) -> int | None:
    """Bytes that a kernel allocates at once in one memory space.

    This is the distance from the lowest to the highest address that the compiler gave to the
    kernel's scoped allocations: windows of operands (twice each where they are double buffered),
    scratch operands, ``run_scoped`` buffers, the compiler's internal scratch and slots of spilled
    registers. Scopes that are not live at the same time share addresses and count once; gaps
    between allocations count.

    Not counted: operands that XLA itself put into the memory space before the kernel starts, which
    are its own allocations; memory that is reserved at fixed addresses.

    Args:
      code: the kernel's code with final addresses of allocations (``post-delay-converter``).
      space: ``"vmem"`` or ``"smem"``.

    Returns:
      Bytes, 0 if the kernel allocates nothing there; None if ``code`` is incomplete.
    """
    if not is_complete(code):
        return None
    found = [
        (int(match["offset"], 0), int(match["size"], 0))
        for match in _ALLOCATION.finditer(code)
        if match["space"] == space
    ]
    if not found:
        return 0
    return max(offset + size for offset, size in found) - min(offset for offset, _ in found)


def is_complete(code: str) -> bool:
    """Whether a kernel's code is there from its first region to the empty one that closes it."""
    return "$region0:" in code and code.rstrip().endswith("_")


#: The title of the first table is spelt "CAPACTIY" there.
_CAPACITY = "== CAPA"
_UTILIZATION = "== UTILIZATION"

#: Units of the report and their columns.
_UNITS = {
    "mxu": ("MATMUL", "MATPUSH", "MXU"),
    "xlu": ("XLU",),
    "valu": ("VALU",),
    "eup": ("EUP",),
    "load": ("VLOAD",),
    "store": ("VSTORE",),
    "scalar": ("SALU",),
}

#: Columns of units that compute on vectors.
_COMPUTING = ("MATMUL", "MATPUSH", "MXU", "XLU", "VALU", "EUP")

#: Slots by column.
Row = Mapping[str, int]


@dataclass(frozen=True)
class Utilization:
    """The table.

    Attributes:
      capacity: slots in a bundle, by column.
      rows: slots in use, by column; one row a bundle.
    """

    capacity: Row
    rows: tuple[Row, ...]

    def total(self, column: str) -> int | None:
        """Slots in use in all bundles; None if there is no such column."""
        if column not in self.capacity:
            return None
        return sum(row[column] for row in self.rows)

    def computing(self) -> set[int]:
        """Places of the bundles that do more than load, store, count and wait."""
        return {
            place
            for place, row in enumerate(self.rows)
            if any(row.get(column, 0) for column in _COMPUTING)
        }

    def shares(self, bundles: range) -> dict[str, float]:
        """Share of the slots in use in some bundles, from 0 to 1, by unit.

        An MXU is in use in a bundle in which it multiplies (MATMUL) or takes in weights (MATPUSH).
        It does both at once in some; the table does not tell which MXU does what, so the larger of
        both columns counts, which is the least number of MXUs that can be in use. Loads include
        fills, stores include spills.
        """
        shares: dict[str, float] = {}
        for unit, columns in _UNITS.items():
            slots = max(self.capacity.get(column, 0) for column in columns) * len(bundles)
            if slots:
                used = sum(
                    max(self.rows[place].get(column, 0) for column in columns) for place in bundles
                )
                shares[unit] = min(1.0, used / slots)
        return shares


def read_utilization(text: str) -> Utilization | None:
    """The table in a ``final_hlo-static-per-bundle-utilization`` dump; None if it is damaged."""
    lines = text.splitlines()
    if (
        len(lines) < 4
        or not lines[0].startswith(_CAPACITY)
        or not lines[3].startswith(_UTILIZATION)
    ):
        return None
    columns = [name.strip() for name in lines[1].split(",")]
    try:
        capacity, *rows = (_row(columns, line) for line in _numbers(lines))
    except ValueError:
        return None
    return Utilization(capacity, tuple(rows))


def _numbers(lines: list[str]) -> Iterable[str]:
    return [lines[2], *(line for line in lines[4:] if line.strip())]


def _row(columns: list[str], line: str) -> Row:
    return dict(zip(columns, map(int, line.split()), strict=True))


_CODE = "post-delay-converter"
_BUNDLES = "final_bundles"
_ANALYSIS = "schedule-analysis_final_bundles"
_USE = "final_hlo-static-per-bundle-utilization"

#: The passes whose output ``tpu_costs`` reads, as libtpu's option
#: ``--xla_jf_dump_llo_pass_label_regex`` wants them. ``post-delay-converter`` is the last pass that
#: lists allocations, with their final addresses and the slots of spilled registers.
PASS_LABELS = f"({_CODE}|{_ANALYSIS}|{_BUNDLES}|{_USE})"

_FILE = re.compile(
    rf"(?P<time>\d+)-(?P<name>.+)-\d+-(?P<label>{_CODE}|{_ANALYSIS}|{_BUNDLES}|{_USE})\.txt"
)
_PROGRAM = "*-hlo.txt"

_CALL = " custom-call("
_TARGET = 'custom_call_target="tpu_custom_call"'
_COMPUTATION = re.compile(r"(?:ENTRY )?%(?P<name>\S+) \(.*\{$")
_INSTRUCTION = re.compile(r" *(?:ROOT )?%(?P<name>\S+) = ")
_CALLS = re.compile(r" fusion\(.*\bcalls=%(?P<name>[^\s,]+)")
_TOTAL = re.compile(r"total scheduled bundles: +(\d+)")
_EMPTY = re.compile(r"(?<!non )empty scheduled bundles: +(\d+)")


def tpu_costs(folder: Path) -> list[Cost]:
    """What each Pallas kernel that was compiled into a folder costs.

    Kernels are distinguished from XLA's own fusions by the program, which names the custom calls.
    Calls that are equal in kernel and shapes are compiled once, and are one ``Cost``. What a
    missing or cut file does not tell is None; so is everything but the name of a SparseCore kernel,
    for which libtpu writes no such files.

    VMEM and SMEM are those of ``allocated_bytes``. Spills and fills are those of vector registers,
    as spilled scalars go to SMEM in slots that the table does not tell apart. The loop is
    ``main_loop``: loops that only copy or wait, which the compiler adds around a pipeline, count as
    part of what surrounds them unless there are no others. The chip's capacities are left None.

    Args:
      folder: where libtpu wrote its dumps; may hold those of several programs.

    Returns:
      One ``Cost`` a kernel, in the order of the program. ``kernel`` is the name of the
      ``pallas_call``.
    """
    dumps: dict[tuple[str, str], dict[str, Path]] = {}
    for path in sorted(folder.glob("*.txt")):
        if found := _FILE.fullmatch(path.name):
            dumps.setdefault((found["time"], found["name"]), {})[found["label"]] = path
    programs = [_kernels_of(_read(path)) for path in sorted(folder.glob(_PROGRAM))]
    places = {name: place for place, name in enumerate(n for names in programs for n in names)}
    costs = [
        (places.get(name, len(places)), _cost(name, dump))
        for (_, name), dump in dumps.items()
        if name in places or _is_kernel(name, dump)
    ]
    known = {cost.kernel for _, cost in costs}
    for name, place in places.items():
        if (kernel := _kernel_name(name)) not in known:
            known.add(kernel)
            costs.append((place, Cost(kernel=kernel)))
    return [cost for _, cost in sorted(costs, key=lambda found: found[0])]


def _kernels_of(program: str) -> list[str]:
    """Instructions that run a kernel: custom calls, and fusions around one."""
    kernels: list[tuple[str, str]] = []
    fusions: dict[str, str] = {}
    computation = ""
    for line in program.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header["name"]
        elif instruction := _INSTRUCTION.match(line):
            if _CALL in line and _TARGET in line:
                kernels.append((computation, instruction["name"]))
            elif calls := _CALLS.search(line):
                fusions[calls["name"]] = instruction["name"]
    return list(dict.fromkeys(fusions.get(where, name) for where, name in kernels))


def _kernel_name(instruction: str) -> str:
    """What the ``pallas_call`` was called; XLA appends a number."""
    return re.sub(r"\.\d+$", "", instruction)


def _is_kernel(name: str, dump: Mapping[str, Path]) -> bool:
    """Whether the schedule analysis says so; for a folder without its program."""
    return any(
        _TARGET in line and f" %{name} = " in line
        for line in _read(dump.get(_ANALYSIS)).splitlines()
    )


def _cost(name: str, dump: Mapping[str, Path]) -> Cost:
    code, analysis = _read(dump.get(_CODE)), _read(dump.get(_ANALYSIS))
    bundles = split_bundles(_read(dump.get(_BUNDLES)))
    total, empty = _number(_TOTAL, analysis), _number(_EMPTY, analysis)
    use = read_utilization(_read(dump.get(_USE)))
    if use is not None and len(use.rows) != total:
        use = None
    complete = len(bundles) == total and is_complete(code)
    return Cost(
        kernel=_kernel_name(name),
        vmem_bytes=allocated_bytes(code, "vmem"),
        smem_bytes=allocated_bytes(code, "smem"),
        bundles=total,
        empty_bundles=empty,
        spills=use.total("VSTORE:SPILL") if use else None,
        fills=use.total("VLOAD:FILL") if use else None,
        **(_loop(bundles, code, use) if use and complete else {}),
    )


def _loop(bundles: list[str], code: str, use: Utilization) -> dict[str, Any]:
    """``loop_bundles`` and ``loop_slots``."""
    try:
        loops = find_loops(bundles, code)
    except ValueError:
        return {}
    longest = main_loop(loops, use.computing())
    return {
        "loop_bundles": None if longest is None else len(longest),
        "loop_slots": use.shares(range(len(bundles)) if longest is None else longest),
    }


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
