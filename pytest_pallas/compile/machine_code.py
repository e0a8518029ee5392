"""``Cost``: what the machine code of a kernel costs, by the compiler's own account.

``costs`` reads the output of ptxas for GPUs, and ``launches`` and ``thunks`` the shared memory that
a launch requests. ``tpu_costs`` reads what libtpu wrote to a folder: bundles and their loops
(``find_loops``), allocations (``allocated_bytes``) and the use of slots (``read_utilization``).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pallas_sim.findings import Text
from pytest_pallas.decoding import Count


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the machine code of one kernel, or of all kernels of a program, costs.

    Numbers that a platform does not have, or that the compiler did not tell, are None. Bytes are
    bytes; a bundle is one VLIW instruction word of a TensorCore.

    Attributes:
      kernel: the kernel's name; names joined with a comma for a whole program.
      vmem_bytes: TPU: VMEM allocated at once.
      vmem_capacity: TPU: VMEM that the chip has.
      smem_bytes: TPU: SMEM allocated at once.
      smem_capacity: TPU: SMEM that the chip has.
      bundles: TPU: scheduled bundles in the code, each counted once however often it is executed.
      empty_bundles: TPU: those that do nothing but wait.
      loop_bundles: TPU: bundles in the main loop, the one with most bundles of its own; None
        without a loop.
      loop_slots: TPU: share of the main loop's slots that are in use, from 0 to 1, by unit:
        ``mxu``, ``xlu``, ``valu``, ``eup``, ``load``, ``store``, ``scalar``. Of the whole kernel
        where there is no loop.
      spills: TPU: bundles' slots that store a spilled register.
      fills: TPU: bundles' slots that load one back.
      code_bytes: bytes of machine code.
      registers: GPU: registers a thread.
      shared_bytes: GPU: shared memory a block, static and dynamic.
      shared_capacity: GPU: shared memory that a block can have.
      stack_bytes: GPU: stack frame a thread.
      spill_store_bytes: GPU: bytes a thread stores to spill registers.
      spill_load_bytes: GPU: bytes a thread loads back.
      warnings: what the assembler warns of, such as a serialised wgmma.
    """

    kernel: str = ""
    vmem_bytes: Count | None = None
    vmem_capacity: Count | None = None
    smem_bytes: Count | None = None
    smem_capacity: Count | None = None
    bundles: Count | None = None
    empty_bundles: Count | None = None
    loop_bundles: Count | None = None
    loop_slots: Mapping[str, float] = field(default_factory=dict[str, float])
    spills: Count | None = None
    fills: Count | None = None
    code_bytes: Count | None = None
    registers: Count | None = None
    shared_bytes: Count | None = None
    shared_capacity: Count | None = None
    stack_bytes: Count | None = None
    spill_store_bytes: Count | None = None
    spill_load_bytes: Count | None = None
    warnings: tuple[Text, ...] = ()


#: Numbers of kernels that follow each other: what they take at once is the largest, not the sum.
_LARGEST = frozenset(
    {
        *("vmem_bytes", "vmem_capacity", "smem_bytes", "smem_capacity", "registers"),
        *("shared_bytes", "shared_capacity", "stack_bytes"),
    }
)


def total(costs: Iterable[Cost]) -> dict[str, Any]:
    """The fields of a ``Cost`` for kernels that run one after the other.

    The main loop is that of the kernel whose loop is longest.
    """
    kernels = list(costs)
    fields: dict[str, Any] = {
        "kernel": ", ".join(cost.kernel for cost in kernels),
        "warnings": tuple(dict.fromkeys(text for cost in kernels for text in cost.warnings)),
    }
    longest = max(kernels, key=lambda c: (c.loop_bundles or 0, c.bundles or 0), default=Cost())
    fields["loop_bundles"], fields["loop_slots"] = longest.loop_bundles, longest.loop_slots
    for name in (f.name for f in dataclasses.fields(Cost) if f.name not in fields):
        values = [v for cost in kernels if (v := getattr(cost, name)) is not None]
        combine = max if name in _LARGEST else sum
        fields[name] = combine(values) if values else None
    return fields


# What ``ptxas -v``, NVIDIA's assembler, says of the kernels it assembles.
#
# The lines are those of ptxas 12.9 to 13.5, alone or in a log of XLA. Shared memory that is
# requested when a kernel is launched is not in PTX: ``launches`` and ``thunks`` read it where it
# is.


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


# Loops in the machine code of a TPU kernel, as ranges of VLIW bundles.
#
# Formats as libtpu 0.0.51 writes them.


_BUNDLE = re.compile(r" *(?P<address>0x[0-9a-f]+|0) +(?P<marks>[A-Z: ]*): *>* *\{")
_STARTS = re.compile(r"Start(?:/End empty)? region (\d+)")
_ENDS = re.compile(r"End (?:empty )?region (\d+)")
_BRANCH = re.compile(r"%(?P<name>\d+) = sbr\.rel [^=]*target = \$region(?P<target>\d+)")
_REGION_OR_BRANCH = re.compile(r"\$region(?P<region>\d+):|%(?P<branch>\d+) = sbr\.rel ")


def split_bundles(text: str) -> list[str]:
    """The bundles in a ``final_bundles`` dump, in the order of their addresses.

    A bundle can take several lines: comments in it hold line breaks.
    """
    bundles: list[list[str]] = []
    for line in text.splitlines():
        found = _BUNDLE.match(line)
        if found and int(found["address"], 16) == len(bundles):
            bundles.append([line])
        elif bundles:
            bundles[-1].append(line)
    return ["\n".join(lines) for lines in bundles]


def find_loops(bundles: Sequence[str], code: str) -> list[range]:
    """All loops of a kernel, nested ones too.

    A loop is a branch back to the first bundle of a region. It runs from there to the last delay
    slot of that branch: 1 bundle after the branch on v4, 4 on v5e, v5p and v6e, 6 on tpu7x. The
    dump tells, for there ends the region that the branch is in. Bundles of the loop can belong to
    what surrounds it: the compiler fills slots with instructions of other regions, under a
    predicate.

    Args:
      bundles: the kernel's bundles.
      code: the kernel's code in the same order (``post-delay-converter``), which names the region
        of each branch.

    Returns:
      Ranges of indices of ``bundles``, in the order of their starts.

    Raises:
      ValueError: the end of a loop is not known.
    """
    starts = _first_places(_STARTS, bundles)
    branches = [
        (place, found["name"], found["target"])
        for place, bundle in enumerate(bundles)
        for found in _BRANCH.finditer(bundle)
    ]
    delay = _delay_slots(bundles, code, branches)
    stops: dict[int, int] = {}
    for place, _, target in branches:
        start = starts.get(target, len(bundles))
        if start <= place:
            if delay is None:
                raise ValueError(f"no end of the loop at bundle {start:#x} in the dump")
            stops[start] = min(place + delay + 1, len(bundles))
    return [range(start, stop) for start, stop in sorted(stops.items())]


def main_loop(loops: Sequence[range], computing: Collection[int]) -> range | None:
    """The loop in which most is computed that is in no loop inside of it; the first of equals.

    Of a pipeline whose body is a loop, that is the body; of one whose body is straight code, with
    small loops that are taken once in a while, the pipeline's round.

    Args:
      loops: all loops of a kernel.
      computing: places of the bundles that compute on vectors.

    Returns:
      One of the loops; None without any.
    """

    def own(loop: range) -> tuple[int, int]:
        inside = [
            other
            for other in loops
            if other != loop and loop.start <= other.start and other.stop <= loop.stop
        ]
        left = set(loop).difference(*inside)
        return len(left.intersection(computing)), len(left)

    return max(loops, key=own, default=None)


def _delay_slots(
    bundles: Sequence[str], code: str, branches: Sequence[tuple[int, str, str]]
) -> int | None:
    """Bundles after a branch that are executed before it is taken.

    The same for all branches of a chip; on tpu7x the ends of some are not in the dump, where
    something else starts before.
    """
    ends = _first_places(_ENDS, bundles)
    homes = _regions_of_branches(code)
    seen = [
        end - place
        for place, name, _ in branches
        if (end := ends.get(homes.get(name, ""))) is not None
    ]
    return max(seen, default=None)


def _first_places(pattern: re.Pattern[str], bundles: Sequence[str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, bundle in enumerate(bundles):
        for region in pattern.findall(bundle):
            places.setdefault(region, place)
    return places


def _regions_of_branches(code: str) -> dict[str, str]:
    """The region that each branch is in, both by number."""
    homes: dict[str, str] = {}
    region = ""
    for found in _REGION_OR_BRANCH.finditer(code):
        if found["region"]:
            region = found["region"]
        else:
            homes[found["branch"]] = region
    return homes


# On-chip memory that a TPU kernel allocates, read off libtpu's low-level code (LLO).
#
# Formats as libtpu 0.0.51 writes them.


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
        numbers = [lines[2], *(line for line in lines[4:] if line.strip())]
        capacity, *rows = (
            dict(zip(columns, map(int, line.split()), strict=True)) for line in numbers
        )
    except ValueError:
        return None
    return Utilization(capacity, tuple(rows))


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
        (places.get(name, len(places)), _bundles_cost(name, dump))
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


def _bundles_cost(name: str, dump: Mapping[str, Path]) -> Cost:
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
