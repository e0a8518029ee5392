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
    """Add up the fields of ``Cost`` for kernels that run one after the other.

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


# Output of ``ptxas -v``, NVIDIA's assembler, of versions 12.9 to 13.5, alone or in a log of XLA.
# PTX lacks the shared memory that a launch requests, which ``launches`` and ``thunks`` read
# elsewhere.


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


def costs(text: str) -> tuple[Cost, ...]:
    """Return what each entry function costs, in the order of the text.

    ``shared_bytes`` is the static part. Functions that are no entries are left out, and so is the
    warning of spilled registers, which the numbers count.

    Args:
      text: output of one or several runs of ptxas, with anything in between.
    """
    entries: list[dict[str, Any]] = []  # the fields of each Cost
    pending: list[str] = []  # warnings come before the entry that they are about, or after the last
    described, running = "", False

    def add_warnings(named: str = "") -> None:
        """Add pending warnings to the last entry; keep those that name another function."""
        kept: list[str] = []
        for warning in pending:
            function = _NAMED.search(warning)
            if named and function and function[1] != named:
                kept.append(warning)
            elif running:
                entries[-1]["warnings"] += (_NAMED.sub("", warning),)
        pending[:] = kept

    for line in text.splitlines():
        if _LOGGED.match(line):  # another run of ptxas begins
            add_warnings()
            running = False
        if entry := _ENTRY.search(line):
            entries.append({"kernel": entry[1], "warnings": ()})
            described, running = "", True
            add_warnings(entry[1])
        elif properties := _PROPERTIES.search(line):
            described = properties[1]
        elif warning := _WARNING.search(line):
            if "spilled to local memory" not in warning[1]:
                pending.append(warning[1].strip())
        elif running and described == entries[-1]["kernel"]:
            entries[-1].update(_numbers(line))
    add_warnings()
    for entry in entries:
        entry["warnings"] = tuple(dict.fromkeys(entry["warnings"]))
    return tuple(Cost(**entry) for entry in entries)


def _numbers(line: str) -> Mapping[str, int]:
    """Read the fields of a ``Cost`` that a line has."""
    if stack := _STACK.search(line):
        names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
        return dict(zip(names, map(int, stack.groups()), strict=True))
    if used := _USED.search(line):
        static = _STATIC.search(line)
        return {"registers": int(used[1]), "shared_bytes": int(static[1]) if static else 0}
    return {}


def launches(host_code: str) -> tuple[int, ...]:
    """Return the bytes of shared memory that each Mosaic GPU kernel is launched with, in order.

    Args:
      host_code: LLVM of the host's side, which ``MOSAIC_GPU_DUMP_HOST_LLVM`` writes.
    """
    return tuple(int(size) for size in _LAUNCH.findall(host_code))


def thunks(sequence: str) -> Mapping[str, int]:
    """Return the bytes of shared memory that each kernel compiled by XLA is launched with.

    Args:
      sequence: the ``thunk_sequence.txt`` that ``--xla_dump_to`` writes.
    """
    return {name: int(size) for name, size in _THUNK.findall(sequence)}


# Loops in the machine code of a TPU kernel, as ranges of VLIW bundles; formats of libtpu 0.0.51.


_BUNDLE = re.compile(r" *(?P<address>0x[0-9a-f]+|0) +(?P<marks>[A-Z: ]*): *>* *\{")
_STARTS = re.compile(r"Start(?:/End empty)? region (\d+)")
_ENDS = re.compile(r"End (?:empty )?region (\d+)")
_BRANCH = re.compile(r"%(?P<name>\d+) = sbr\.rel [^=]*target = \$region(?P<target>\d+)")
_REGION_OR_BRANCH = re.compile(r"\$region(?P<region>\d+):|%(?P<branch>\d+) = sbr\.rel ")


def split_bundles(text: str) -> list[str]:
    """Split a ``final_bundles`` dump into its bundles, in the order of their addresses.

    A bundle can take several lines, because comments in it have line breaks.
    """
    bundles: list[list[str]] = []
    for line in text.splitlines():
        header = _BUNDLE.match(line)
        if header and int(header["address"], 16) == len(bundles):
            bundles.append([line])
        elif bundles:
            bundles[-1].append(line)
    return ["\n".join(lines) for lines in bundles]


def find_loops(bundles: Sequence[str], code: str) -> list[range]:
    """Find all loops of a kernel, nested ones too.

    A loop is a branch back to the first bundle of a region. It runs from there to the last delay
    slot of that branch: 1 bundle after the branch on v4, 4 on v5e, v5p and v6e, 6 on tpu7x. There
    the dump ends the region that the branch is in. Bundles of the loop can belong to the code
    around it: the compiler fills slots with instructions of other regions, under a predicate.

    Args:
      bundles: the kernel's bundles.
      code: the kernel's code in the same order (``post-delay-converter``), which names the region
        of each branch.

    Returns:
      Ranges of indices of ``bundles``, in the order of their starts.

    Raises:
      ValueError: the dump does not show where a loop ends.
    """
    starts = _first_bundles(_STARTS, bundles)
    branches = [
        (number, branch["name"], branch["target"])
        for number, bundle in enumerate(bundles)
        for branch in _BRANCH.finditer(bundle)
    ]
    delay = _delay_slots(bundles, code, branches)
    stops: dict[int, int] = {}
    for number, _, target in branches:
        start = starts.get(target, len(bundles))
        if start <= number:
            if delay is None:
                raise ValueError(f"no end of the loop at bundle {start:#x} in the dump")
            stops[start] = min(number + delay + 1, len(bundles))
    return [range(start, stop) for start, stop in sorted(stops.items())]


def main_loop(loops: Sequence[range], computing: Collection[int]) -> range | None:
    """Return the loop that computes most outside of its inner loops; None without a loop.

    If the body of a pipeline is a loop, it is that loop. If the body is straight code with small
    loops that run now and then, it is the loop of the pipeline.

    Args:
      loops: all loops of a kernel.
      computing: numbers of the bundles that compute on vectors.
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
    """Count the bundles after a branch that are executed before it is taken.

    All branches of a chip have as many. On tpu7x the dump lacks the ends of some regions, where
    another one starts earlier.
    """
    ends = _first_bundles(_ENDS, bundles)
    regions: dict[str, str] = {}  # of each branch
    region = ""
    for match in _REGION_OR_BRANCH.finditer(code):
        if match["region"]:
            region = match["region"]
        else:
            regions[match["branch"]] = region
    delays = [
        end - number
        for number, name, _ in branches
        if (end := ends.get(regions.get(name, ""))) is not None
    ]
    return max(delays, default=None)


def _first_bundles(pattern: re.Pattern[str], bundles: Sequence[str]) -> dict[str, int]:
    """Return the number of the first bundle with each region that a pattern finds."""
    first: dict[str, int] = {}
    for number, bundle in enumerate(bundles):
        for region in pattern.findall(bundle):
            first.setdefault(region, number)
    return first


# On-chip memory that a TPU kernel allocates, in the low-level code (LLO) of libtpu 0.0.51.


#: An allocation of the kernel's own; those at a fixed address (``fixed_abs``) are the system's.
_ALLOCATION = re.compile(
    r"^ *#allocation\w+ \[shape = '[^']*', space=(?P<space>\w+), size = (?P<size>0x[0-9a-f]+|\d+), "
    r"offset = (?P<offset>0x[0-9a-f]+|\d+), scoped\b",
    re.MULTILINE,
)


def allocated_bytes(code: str, space: str) -> int | None:
    """Return the bytes that a kernel allocates at once in one memory space.

    This is the distance from the lowest to the highest address that the compiler gave to the
    kernel's scoped allocations: windows of operands (twice each where they are double buffered),
    scratch operands, ``run_scoped`` buffers, the compiler's internal scratch and slots of spilled
    registers. Scopes that are not live at the same time share addresses and count once; gaps
    between allocations count. Operands that XLA puts into the memory space before the kernel starts
    do not count, nor does memory that is reserved at fixed addresses.

    Args:
      code: the kernel's code with final addresses of allocations (``post-delay-converter``).
      space: ``"vmem"`` or ``"smem"``.

    Returns:
      Bytes, 0 if the kernel allocates nothing there; None if ``code`` is incomplete.
    """
    if not is_complete(code):
        return None
    allocations = [
        (int(match["offset"], 0), int(match["size"], 0))
        for match in _ALLOCATION.finditer(code)
        if match["space"] == space
    ]
    highest = max((offset + size for offset, size in allocations), default=0)
    return highest - min((offset for offset, _ in allocations), default=0)


def is_complete(code: str) -> bool:
    """Return whether a kernel's code reaches from its first region to the empty last one."""
    return "$region0:" in code and code.rstrip().endswith("_")


#: How the titles of both tables begin; libtpu spells that of the first one "CAPACTIY".
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
    """Which slots the bundles of a kernel use.

    Attributes:
      capacity: slots in a bundle, by column.
      rows: slots in use, by column; one row a bundle.
    """

    capacity: Row
    rows: tuple[Row, ...]

    def total(self, column: str) -> int | None:
        """Count the slots in use in all bundles; None if there is no such column."""
        if column not in self.capacity:
            return None
        return sum(row[column] for row in self.rows)

    def computing(self) -> set[int]:
        """Return the numbers of the bundles that do more than load, store, count and wait."""
        rows = enumerate(self.rows)
        return {number for number, row in rows if _most(row, _COMPUTING)}

    def shares(self, bundles: range) -> dict[str, float]:
        """Return the share of the slots in use in some bundles, from 0 to 1, by unit.

        An MXU is in use in a bundle in which it multiplies (MATMUL) or takes in weights (MATPUSH).
        It does both at once in some. The table does not say which MXU does what, so the larger of
        both columns counts: the least number of MXUs that can be in use. Loads include fills,
        stores include spills.
        """
        shares: dict[str, float] = {}
        for unit, columns in _UNITS.items():
            slots = _most(self.capacity, columns) * len(bundles)
            if slots:
                used = sum(_most(self.rows[number], columns) for number in bundles)
                shares[unit] = min(1.0, used / slots)
        return shares


def _most(row: Row, columns: Sequence[str]) -> int:
    return max(row.get(column, 0) for column in columns)


def read_utilization(text: str) -> Utilization | None:
    """Read a ``final_hlo-static-per-bundle-utilization`` dump; None if it is damaged."""
    lines = text.splitlines()
    if len(lines) < 4 or (lines[0][:7], lines[3][:14]) != (_CAPACITY, _UTILIZATION):
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
    """Return what each Pallas kernel costs that was compiled into a folder.

    The program tells kernels from XLA's own fusions, because it names the custom calls. Calls that
    are equal in kernel and shapes are compiled once, and are one ``Cost``. Fields of a missing or
    cut file are None. So are all fields but the name of a SparseCore kernel, for which libtpu
    writes no such files.

    VMEM and SMEM are those of ``allocated_bytes``. Spills and fills are those of vector registers,
    because scalars spill to SMEM in slots that the table does not tell apart. The loop is
    ``main_loop``: loops that only copy or wait, which the compiler adds around a pipeline, count as
    part of the code around them unless there are no others. The chip's capacities are left None.

    Args:
      folder: where libtpu wrote its dumps; may hold those of several programs.

    Returns:
      One ``Cost`` a kernel, in the order of the program. ``kernel`` is the name of the
      ``pallas_call``.
    """
    dumps: dict[tuple[str, str], dict[str, Path]] = {}
    for path in sorted(folder.glob("*.txt")):
        if match := _FILE.fullmatch(path.name):
            dumps.setdefault((match["time"], match["name"]), {})[match["label"]] = path
    programs = [_kernels_of(_read(path)) for path in sorted(folder.glob(_PROGRAM))]
    order = {name: number for number, name in enumerate(n for names in programs for n in names)}
    costs = [
        (order.get(name, len(order)), _bundles_cost(name, dump))
        for (_, name), dump in dumps.items()
        if name in order or _is_kernel(name, dump)
    ]
    dumped = {cost.kernel for _, cost in costs}
    for name, number in order.items():
        if (kernel := _kernel_name(name)) not in dumped:
            dumped.add(kernel)
            costs.append((number, Cost(kernel=kernel)))
    return [cost for _, cost in sorted(costs, key=lambda numbered: numbered[0])]


def _kernels_of(program: str) -> list[str]:
    """Return the instructions that run a kernel: custom calls, and fusions around one."""
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
    """Return the name of the ``pallas_call``, to which XLA appends a number."""
    return re.sub(r"\.\d+$", "", instruction)


def _is_kernel(name: str, dump: Mapping[str, Path]) -> bool:
    """Return whether the schedule analysis shows a kernel, for a folder without its program."""
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
    """Return ``loop_bundles`` and ``loop_slots`` of a ``Cost``."""
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
    match = pattern.search(text)
    return int(match[1]) if match else None


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
