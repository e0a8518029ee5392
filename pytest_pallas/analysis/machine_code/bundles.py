"""What the machine code of TPU kernels costs, from the files that libtpu writes on request.

libtpu writes them when ``LIBTPU_INIT_ARGS`` holds ``--xla_jf_dump_to=FOLDER
--xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=PASS_LABELS``. Names and formats are
those of libtpu 0.0.51: ``<time>-<HLO instruction>-<number>-<label>.txt``, and the program itself in
``<time>-TLP-hlo.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_pallas.analysis.machine_code.allocations import allocated_bytes, is_complete
from pytest_pallas.analysis.machine_code.cost import Cost
from pytest_pallas.analysis.machine_code.loops import find_loops, main_loop, split_bundles
from pytest_pallas.analysis.machine_code.slots import Utilization, read_utilization

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

    Kernels are told from XLA's own fusions by the program, which names the custom calls. Calls that
    are equal in kernel and shapes are compiled once, and are one ``Cost``. What a missing or cut
    file does not tell is None; so is everything but the name of a SparseCore kernel, for which
    libtpu writes no such files.

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
