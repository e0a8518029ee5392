"""Which kernels a GPU program is made of, and what each costs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_pallas.analysis.machine_code import Cost, ptxas

_CALL = re.compile(r'custom_call_target="(mosaic_gpu_v2|__gpu\$xla\.gpu\.triton)"')
_STRING = r'"((?:[^"\\]|\\.)*)"'
_HASH = re.compile(rf"\bkernel_hash = {_STRING}")
_NAME = re.compile(rf"\bname = {_STRING}")
_SCOPE = re.compile(rf"\bop_name={_STRING}")

# The tables of an HLO module, in which an instruction's stack frame is looked up.
_FRAME_OF = re.compile(r"\bstack_frame_id=(\d+)")
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)", re.MULTILINE)
_LOCATION = re.compile(r"^(\d+) \{file_name_id=\d+ function_name_id=(\d+)", re.MULTILINE)
_FUNCTION = re.compile(rf"^(\d+) {_STRING}$", re.MULTILINE)
_JIT = re.compile(r"jit\(([^()]+)\)")

#: What Mosaic GPU appends to a kernel's name.
_SUFFIX = "_mosaic_gpu_kernel"


@dataclass(frozen=True)
class GpuCustomCall:
    """A Pallas custom call of a compiled program.

    Attributes:
      name: the kernel's, for people.
      entry: of Triton's kernels, the name of the function in PTX, without XLA's suffix; else "".
      digest: of Mosaic GPU's kernels, by which it differs from others; else "".
    """

    name: str
    entry: str = ""
    digest: str = ""


def calls(hlo: str) -> tuple[GpuCustomCall, ...]:
    """The Pallas custom calls of an optimized HLO module, in its order."""
    functions = _functions(hlo)
    return tuple(_call(line, functions) for line in hlo.splitlines() if _CALL.search(line))


def _functions(hlo: str) -> Mapping[str, str]:
    """The innermost function of the user's code, by number of a stack frame."""
    names = dict(_FUNCTION.findall(hlo.partition("FunctionNames")[2].partition("FileLocations")[0]))
    locations = dict(_LOCATION.findall(hlo))
    return {frame: names.get(locations.get(at, ""), "") for frame, at in _FRAME.findall(hlo)}


def _call(line: str, functions: Mapping[str, str]) -> GpuCustomCall:
    scope = _SCOPE.search(line)
    path = scope[1].split("/") if scope else []
    frame = _FRAME_OF.search(line)
    around = (functions.get(frame[1], "") if frame else "", *_JIT.findall("/".join(path))[-1:])
    if digest := _HASH.search(line):
        # .../jit(wrapper)/name of the kernel/name of the primitive
        named = path[-2] if len(path) > 1 else ""
        return GpuCustomCall(_for_people(named, *around), digest=digest[1])
    name = _NAME.search(line)
    entry = name[1] if name else ""
    return GpuCustomCall(_for_people(entry, *around), entry=entry)


def _for_people(*names: str) -> str:
    """The first name that says something: a kernel that is a ``partial`` or a lambda has none."""
    mute = ("anonymous", "_lambda_")
    identifiers = (name for name in names if name.isidentifier() and name not in mute)
    return next(identifiers, names[0])


def host_code(folder: Path) -> Mapping[str, str]:
    """The LLVM of the host's side of Mosaic GPU kernels, by file's stem, if files were written."""
    files = [path for path in folder.glob("*.ll") if re.search(r"^[^.]*_\d+$", path.stem)]
    files.sort(key=lambda path: int(path.stem.rpartition("_")[2]))
    return {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in files}


def thunk_sequence(folder: Path) -> str:
    """XLA's list of what the program launches; empty if it was not written."""
    files = sorted(folder.glob("*thunk_sequence.txt"))
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


class GpuKernelCosts:
    """What kernels cost, remembered: Mosaic GPU compiles a kernel once in the life of a process."""

    def __init__(self, shared_capacity: int) -> None:
        """Nothing is known.

        Args:
          shared_capacity: bytes of shared memory that a block can have.
        """
        self._shared_capacity = shared_capacity
        self._mosaic: dict[str, Cost] = {}
        self._stems: dict[str, str] = {}

    def stems(self, calls: Sequence[GpuCustomCall] | None = None) -> set[str]:
        """Stems of the files of Mosaic GPU kernels: of a program, or of all that are known."""
        wanted = self._stems if calls is None else {call.digest for call in calls}
        return {stem for digest, stem in self._stems.items() if digest in wanted}

    def costs(
        self,
        calls: Sequence[GpuCustomCall],
        *,
        log: str,
        printed: str,
        files: Mapping[str, str],
        thunks: str,
    ) -> tuple[Cost, ...]:
        """What each kernel of a program costs, in the order of its first call.

        Args:
          calls: the program's Pallas calls.
          log: output of ptxas while it was compiled.
          printed: LLVM of the host's side of the kernels that were compiled.
          files: the same by stem of a file, if it was written to files.
          thunks: XLA's list of what the program launches.
        """
        costs_of_log = ptxas.costs(log)
        new = {stem: text for stem, text in files.items() if stem not in self.stems()}
        launched = ptxas.launches("\n".join((printed, *new.values())))
        mosaic = [cost for cost in costs_of_log if cost.kernel.endswith(_SUFFIX)]
        self._remember(calls, mosaic, launched, list(new))
        costs: dict[str, Cost] = {}
        triton = _triton(costs_of_log, thunks)
        for call in calls:
            if call.digest:
                # A kernel that was not reported is still one of the program's.
                cost = self._mosaic.get(call.digest, Cost())
                costs.setdefault(call.digest, dataclasses.replace(cost, kernel=call.name))
            else:
                left = [name for name in triton if name not in costs and _is(name, call.entry)]
                name = next(iter(sorted(left, key=lambda name: name != call.entry)), None)
                if name is not None:
                    costs[name] = dataclasses.replace(triton[name], kernel=call.name)
                elif not any(_is(known, call.entry) for known in costs):
                    costs[call.entry] = Cost(kernel=call.name)
        capacity = self._shared_capacity
        return tuple(dataclasses.replace(c, shared_capacity=capacity) for c in costs.values())

    def _remember(
        self,
        calls: Sequence[GpuCustomCall],
        costs_of_log: Sequence[Cost],
        launched: Sequence[int],
        stems: Sequence[str],
    ) -> None:
        """Take up the kernels that were compiled now: in the order of the program."""
        digests = dict.fromkeys(call.digest for call in calls if call.digest)
        new = [digest for digest in digests if digest not in self._mosaic]
        if len(new) != len(costs_of_log):
            return
        # What ptxas calls static is one byte in place of what the launch requests.
        dynamic = launched if len(launched) == len(costs_of_log) else (None,) * len(costs_of_log)
        for digest, cost, size in zip(new, costs_of_log, dynamic, strict=True):
            self._mosaic[digest] = dataclasses.replace(cost, shared_bytes=size)
        if len(stems) == len(new):
            self._stems.update(zip(new, stems, strict=True))


def _triton(costs_of_log: Sequence[Cost], thunks: str) -> dict[str, Cost]:
    """What kernels compiled by XLA cost, by their names in PTX, in the order of the program."""
    costs = {cost.kernel: cost for cost in costs_of_log}
    return {
        name: dataclasses.replace(cost, shared_bytes=size + (cost.shared_bytes or 0))
        for name, size in ptxas.thunks(thunks).items()
        if (cost := costs.get(name)) is not None
    }


def _is(name: str, entry: str) -> bool:
    """Whether XLA's name of a function is that of a kernel, with a number to tell two apart."""
    return re.fullmatch(rf"{re.escape(entry)}(_+\d+)*", name) is not None
