"""The GPU compilers: Mosaic GPU, XLA's Triton and ptxas, in a worker, for GPUs that are not there.

The calls are those of ``jax.experimental.topologies``; names, files and environment variables were
seen in jax 0.11.2 and 0.12.0. Importing this module imports no jax; ``compile_payload`` does, in
the worker. A worker compiles for one chip, because XLA keeps the first one.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from pallas_sim.chips import GPUS, learn
from pytest_pallas.compile import machine_code as ptxas
from pytest_pallas.compile.machine_code import Cost
from pytest_pallas.compile.service import (
    CompileReport,
    CompileRequest,
    compiled_report,
    divert,
    overhear_log,
)
from pytest_pallas.decoding import decode, json_of, parse
from pytest_pallas.tested import installed_version

#: What a worker calls.
ENTRY = "pytest_pallas.compile.cuda:compile_payload"

#: The variable with the folder in which a worker makes that of the compilers' files.
_SCRATCH = "PYTEST_PALLAS_SCRATCH"

#: The variable that makes compilers write all they can.
_EVERYTHING = "PYTEST_PALLAS_DUMP_PASSES"

#: Names of the custom calls that a Pallas kernel becomes.
CUSTOM_CALLS = ("mosaic_gpu_v2", "__gpu$xla.gpu.triton")

#: Endings of files that are worth keeping.
_TELLING = (
    *(".ll", ".mlir", ".ptx", ".ptxas", ".sass", ".sass_ctrl"),
    *("before_optimizations.txt", "thunk_sequence.txt"),
)

#: Begins the line before each of Mosaic GPU's passes.
_PASS = "// -----// "

#: The files that XLA writes for a Triton kernel; writing Triton's passes, too, takes seconds.
_EMITTERS = "--xla_dump_emitter_re=^(llvm|ptx)"

_INSTALL = "pip install 'pytest-pallas[gpu-compile]'"
_PLUGIN = "jax-cuda13-plugin"
_PJRT = "jax-cuda13-pjrt"


def missing() -> str | None:
    """Say what is missing to compile for GPUs, and how to install it; None if nothing is."""
    jaxlib = installed_version("jaxlib")
    for name in (_PLUGIN, _PJRT):
        version = installed_version(name)
        if not version:
            return f"{name} is not installed; {_INSTALL}"
        if _release(version) != _release(jaxlib):  # jaxlib would not use it
            return (
                f"{name} is {version} but jaxlib is {jaxlib}, and they must be the same; "
                f"pip install '{name}=={jaxlib}'"
            )
    if _runtime() is None:
        return f"libmosaic_gpu_runtime.so is not in the folder of {_PLUGIN}; {_INSTALL}"
    if _cuda_root() is None:
        return f"ptxas is neither in the nvidia packages nor on the PATH; {_INSTALL}"
    if util.find_spec("flatbuffers") is None:
        return "flatbuffers is not installed; pip install flatbuffers"
    return None


def version() -> str:
    """Return the compilers' names and versions."""
    root = _cuda_root()
    ptxas = "unknown" if root is None else _ptxas_version(root / "bin" / "ptxas")
    return f"{_PJRT} {installed_version(_PJRT)}, ptxas {ptxas}"


def flags() -> str:
    """Return the user's own flags for XLA on GPUs."""
    options = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(flag for flag in options if flag.startswith("--xla_gpu_"))


def environment(
    scratch: Path, *, target: str, everything: bool = False, costs: bool = True
) -> Mapping[str, str]:
    """Return the environment variables of a worker.

    Args:
      scratch: an existing folder, in which the worker makes its own.
      target: name of the chip; tells the workers of two chips apart.
      everything: whether compilers write all they can.
      costs: not used, because compilers always write what the costs are read from.
    """
    del costs
    root = _cuda_root() or Path("/usr/local/cuda")
    return {
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",  # a GPU that is there is not used
        # Without devices nothing can be timed.
        "XLA_FLAGS": f"--xla_gpu_autotune_level=0 {flags()}".strip(),
        # The runtime's functions are looked up at compile time.
        "MOSAIC_GPU_RUNTIME_LIB_PATH": str(_runtime() or ""),
        "MOSAIC_GPU_CUDA_ROOT": str(root),
        # Mosaic GPU takes the ptxas and nvlink that come first on the PATH.
        "PATH": os.pathsep.join((str(root / "bin"), os.environ.get("PATH", os.defpath))),
        # Nothing else has the bytes of shared memory that a kernel is launched with.
        "MOSAIC_GPU_DUMP_HOST_LLVM": "1",
        # XLA logs what ptxas says, as information.
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "subprocess_compilation=2",
        "PYTEST_PALLAS_TARGET": target,
        _SCRATCH: str(scratch),
        _EVERYTHING: "1" if everything else "",
    }


def compile_payload(payload: bytes) -> bytes:
    """Compile one ``CompileRequest`` in the worker; returns an encoded ``CompileReport``."""
    request = decode(CompileRequest, parse(payload))
    learn(request.target, request.chip)
    memory = _memory(request.target)
    folder = _dumps()
    _clear(folder, memory.stems())
    devices = _devices(request.target, request.devices)
    from pytest_pallas.compile.libtpu import compile_program

    executable, message = None, ""
    with divert(1) as printed, overhear_log() as logged:
        try:
            executable = compile_program(request.module, devices)
        except Exception as error:  # whatever the compiler raises is its answer
            message = f"{type(error).__name__}: {error}"
    if executable is None:
        # Before jax 0.12, the error says "Pass pipeline failed" and nothing else.
        remarks = [line for line in logged.remarks().splitlines() if line not in message]
        message = "\n".join((message, *remarks))
        report = CompileReport(target=request.target, status="refused", text=message)
        text, others = "", memory.stems()
    else:
        text = executable.as_text() or ""
        calls = gpu_kernel_calls(text)
        costs = memory.costs(
            calls,
            log=logged.text,
            printed=printed.text,
            files=host_code(folder),
            thunks=thunk_sequence(folder),
        )
        report = compiled_report(request.target, costs, kernel_calls=len(calls))
        others = memory.stems() - memory.stems(calls)
    if request.dump:
        _keep(folder, Path(request.dump), others)
        if text:
            Path(request.dump, "optimized.hlo").write_text(text, encoding="utf-8")
    return json_of(report)


def _release(version: str) -> str:
    """Return the part of a version that jaxlib and its plugin must have in common."""
    return re.split(r"[^0-9.]", version)[0].rstrip(".")


def _runtime() -> Path | None:
    """Find Mosaic GPU's runtime, which JAX looks for beside its CUDA plugin."""
    spec = util.find_spec(_PLUGIN.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(folder, "libmosaic_gpu_runtime.so")).is_file():
            return file
    return None


def _cuda_root() -> Path | None:
    """Find the folder of ``bin/ptxas``: NVIDIA's packages for CUDA 13, for CUDA 12, the system's.

    The packages come first, so that the compiled code does not depend on the machine.
    """
    spec = util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("cu13", "cuda_nvcc"):
            if Path(folder, name, "bin", "ptxas").is_file():
                return Path(folder, name)
    ptxas = shutil.which("ptxas")
    return Path(ptxas).resolve().parent.parent if ptxas else None


@functools.cache
def _ptxas_version(ptxas: Path) -> str:
    try:
        done = subprocess.run([ptxas, "--version"], capture_output=True, text=True)
    except OSError:
        return "unknown"
    number = re.search(r"\bV(\d+(?:\.\d+)+)", done.stdout)
    return number[1] if number else "unknown"


@functools.cache
def _dumps() -> Path:
    """Make the folder that the compilers write to. XLA reads its flags once, when it is loaded."""
    scratch = os.environ.get(_SCRATCH) or None
    folder = Path(tempfile.mkdtemp(dir=scratch))
    options = [os.environ.get("XLA_FLAGS", ""), f"--xla_dump_to={folder}"]
    # If the user had set them, files would go elsewhere, and the last one aborts.
    for name in ("MOSAIC_GPU_DUMP_TO", "MOSAIC_GPU_DUMP_MLIR_PASSES", "MOSAIC_GPU_DUMP_LLVM"):
        os.environ.pop(name, None)
    if os.environ.get(_EVERYTHING):
        options += ["--xla_dump_hlo_as_text", "--xla_gpu_dump_llvmir", _EMITTERS]
        os.environ["MOSAIC_GPU_DUMP_TO"] = str(folder)
    os.environ["XLA_FLAGS"] = " ".join(options).strip()
    return folder


def _clear(folder: Path, stems: AbstractSet[str]) -> None:
    """Remove all files but those of kernels that will not be compiled again."""
    for path in folder.iterdir():
        if _stem(path) not in stems:
            path.unlink()


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _keep(folder: Path, dump: Path, others: AbstractSet[str]) -> None:
    """Copy the program's files; ``others`` are the stems of other programs' kernels."""
    for path in folder.glob("*.mlir-passes.log"):
        # All passes are long. Keep the module that goes into the first one.
        passes = path.read_text(encoding="utf-8", errors="replace").split(_PASS)
        module = passes[min(1, len(passes) - 1)].partition("\n")[2]
        path.with_name(f"{_stem(path)}.mlir").write_text(module, encoding="utf-8")
        path.unlink()
    for path in sorted(folder.iterdir()):
        if _stem(path) not in others and path.name.endswith(_TELLING):
            shutil.copyfile(path, dump / path.name)


@functools.cache
def _devices(target: str, count: int) -> list[Any]:
    """Return ``count`` devices of a chip, on one host."""
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        "", "cuda", target_config=target_config(target), topology=f"1x1x{count}"
    )
    return list(described.devices)


@functools.cache
def _memory(target: str) -> GpuKernelCosts:
    """Return what this process remembers of the kernels that it compiled for a chip."""
    return GpuKernelCosts(GPUS[target].shared_per_block)


# A GPU to compile for, described as XLA wants it.

_CONFIG = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {chip.shared_per_core}
  shared_memory_per_block_optin: {chip.shared_per_block}
  threads_per_core_limit: 2048
  core_count: {chip.cores}
  fpus_per_core: {chip.units_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  l2_cache_size: {chip.l2_bytes}
  clock_rate_ghz: {chip.clock_ghz}
  memory_bandwidth: {chip.bytes_per_second}
  device_memory_size: {chip.memory_bytes}
  cuda_compute_capability {{ major: {chip.capability}{extension} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{chip.device_kind}"
"""


def target_config(target: str) -> str:
    """Describe a chip as a text proto of XLA's ``GpuTargetConfigProto``.

    Args:
      target: name of the chip, such as ``"h100"``.

    Raises:
      KeyError: there is no such chip.
    """
    chip = GPUS[target]
    extension = " feature_extension: ACCELERATED_FEATURES" if chip.accelerated else ""
    return _CONFIG.format(chip=chip, extension=extension)


# The kernels of a GPU program, and their costs.

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
      name: the kernel's name for people.
      entry: for a Triton kernel, the name of the function in PTX, without XLA's suffix; else "".
      digest: for a Mosaic GPU kernel, the hash that identifies it; else "".
    """

    name: str
    entry: str = ""
    digest: str = ""


def gpu_kernel_calls(hlo: str) -> tuple[GpuCustomCall, ...]:
    """Return the Pallas custom calls of an optimized HLO module, in its order."""
    functions = _functions(hlo)
    return tuple(_call(line, functions) for line in hlo.splitlines() if _CALL.search(line))


def _functions(hlo: str) -> Mapping[str, str]:
    """Return the innermost function of the user's code, by number of a stack frame."""
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
    """Return the first meaningful name: a kernel that is a ``partial`` or a lambda has none."""
    mute = ("anonymous", "_lambda_")
    identifiers = (name for name in names if name.isidentifier() and name not in mute)
    return next(identifiers, names[0])


def host_code(folder: Path) -> Mapping[str, str]:
    """Read the LLVM of the host's side of Mosaic GPU kernels, by the stems of their files."""
    files = [path for path in folder.glob("*.ll") if re.search(r"^[^.]*_\d+$", path.stem)]
    files.sort(key=lambda path: int(path.stem.rpartition("_")[2]))
    return {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in files}


def thunk_sequence(folder: Path) -> str:
    """Read XLA's list of what the program launches; empty if it was not written."""
    files = sorted(folder.glob("*thunk_sequence.txt"))
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


class GpuKernelCosts:
    """Remembers what kernels cost, because Mosaic GPU compiles a kernel once in a process."""

    def __init__(self, shared_capacity: int) -> None:
        """Begin without any kernel.

        Args:
          shared_capacity: bytes of shared memory that a block can have.
        """
        self._shared_capacity = shared_capacity
        self._mosaic: dict[str, Cost] = {}
        self._stems: dict[str, str] = {}

    def stems(self, calls: Sequence[GpuCustomCall] | None = None) -> set[str]:
        """Return the stems of the files of Mosaic GPU kernels: of a program, or all of them."""
        digests = self._stems if calls is None else {call.digest for call in calls}
        return {stem for digest, stem in self._stems.items() if digest in digests}

    def costs(
        self,
        calls: Sequence[GpuCustomCall],
        *,
        log: str,
        printed: str,
        files: Mapping[str, str],
        thunks: str,
    ) -> tuple[Cost, ...]:
        """Return what each kernel of a program costs, in the order of its first call.

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
                # ptxas may have reported nothing, and it is a kernel of the program all the same.
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
        """Remember the kernels that were compiled now, in the order of the program."""
        digests = dict.fromkeys(call.digest for call in calls if call.digest)
        new = [digest for digest in digests if digest not in self._mosaic]
        if len(new) != len(costs_of_log):
            return
        # The static size of ptxas is one byte, which stands for what the launch requests.
        dynamic = launched if len(launched) == len(costs_of_log) else (None,) * len(costs_of_log)
        for digest, cost, size in zip(new, costs_of_log, dynamic, strict=True):
            self._mosaic[digest] = dataclasses.replace(cost, shared_bytes=size)
        if len(stems) == len(new):
            self._stems.update(zip(new, stems, strict=True))


def _triton(costs_of_log: Sequence[Cost], thunks: str) -> dict[str, Cost]:
    """Return what kernels compiled by XLA cost, by their names in PTX, in the program's order."""
    costs = {cost.kernel: cost for cost in costs_of_log}
    return {
        name: dataclasses.replace(cost, shared_bytes=size + (cost.shared_bytes or 0))
        for name, size in ptxas.thunks(thunks).items()
        if (cost := costs.get(name)) is not None
    }


def _is(name: str, entry: str) -> bool:
    """Return whether XLA's name of a function is a kernel's, up to a number behind it."""
    return re.fullmatch(rf"{re.escape(entry)}(_+\d+)*", name) is not None
