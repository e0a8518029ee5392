"""The GPU compilers: Mosaic GPU, XLA's Triton and ptxas, in a worker, for GPUs that are not there.

The calls are those of ``jax.experimental.topologies``; names, files and environment variables were
seen in jax 0.11.2 and 0.12.0. Importing this module imports no jax; ``compile`` does, in the
worker. A worker compiles for one chip: the first one sticks.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from importlib import metadata, util
from pathlib import Path
from typing import Any

from pallas_sim.chips import learn
from pytest_pallas.compilers.messages import CompileReply, CompileRequest

#: What a worker calls.
ENTRY = "pytest_pallas.compilers.cuda:compile"

#: Where a worker makes the folders that compilers write to.
_SCRATCH = "PYTEST_PALLAS_SCRATCH"

#: Set where compilers shall write all they can.
_EVERYTHING = "PYTEST_PALLAS_DUMP_PASSES"

#: Names of the custom calls that a Pallas kernel becomes.
CUSTOM_CALLS = ("mosaic_gpu_v2", "__gpu$xla.gpu.triton")

#: Endings of files that are worth keeping.
_TELLING = (
    ".ll",
    ".mlir",
    ".ptx",
    ".ptxas",
    ".sass",
    ".sass_ctrl",
    "before_optimizations.txt",
    "thunk_sequence.txt",
)

#: Begins the line before each of Mosaic GPU's passes.
_PASS = "// -----// "

#: What XLA writes of a Triton kernel; Triton's own passes take seconds to write.
_EMITTERS = "--xla_dump_emitter_re=^(llvm|ptx)"

_INSTALL = "pip install 'pytest-pallas[gpu-compile]'"
_PLUGIN = "jax-cuda13-plugin"
_PJRT = "jax-cuda13-pjrt"


def missing() -> str | None:
    """What is missing to compile for GPUs, and what to do; None if nothing is."""
    wanted = _installed("jaxlib") or ""
    for name in (_PLUGIN, _PJRT):
        found = _installed(name)
        if found is None:
            return f"{name} is not installed; {_INSTALL}"
        if _release(found) != _release(wanted):  # jaxlib would not use it
            return (
                f"{name} is {found} but jaxlib is {wanted}, and they must be the same; "
                f"pip install '{name}=={wanted}'"
            )
    if _runtime() is None:
        return f"libmosaic_gpu_runtime.so is not in the folder of {_PLUGIN}; {_INSTALL}"
    if _cuda_root() is None:
        return f"ptxas is neither in the nvidia packages nor on the PATH; {_INSTALL}"
    if util.find_spec("flatbuffers") is None:
        return "flatbuffers is not installed; pip install flatbuffers"
    return None


def version() -> str:
    """The compilers' names and versions."""
    root = _cuda_root()
    ptxas = "unknown" if root is None else _ptxas_version(root / "bin" / "ptxas")
    return f"{_PJRT} {_installed(_PJRT)}, ptxas {ptxas}"


def flags() -> str:
    """The user's own flags for XLA on GPUs."""
    words = os.environ.get("XLA_FLAGS", "").split()
    return " ".join(word for word in words if word.startswith("--xla_gpu_"))


def environment(
    scratch: Path, *, target: str, everything: bool = False, costs: bool = True
) -> Mapping[str, str]:
    """The environment variables of a worker.

    Args:
      scratch: an existing folder, in which the worker makes its own.
      target: name of the chip; tells the workers of two chips apart.
      everything: whether compilers shall write all they can.
      costs: not used: compilers always write what the costs are read from.
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
        # How many bytes of shared memory a kernel is launched with is written there only.
        "MOSAIC_GPU_DUMP_HOST_LLVM": "1",
        # XLA logs what ptxas says, as information.
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "subprocess_compilation=2",
        "PYTEST_PALLAS_TARGET": target,
        _SCRATCH: str(scratch),
        _EVERYTHING: "1" if everything else "",
    }


def compile(payload: bytes) -> bytes:
    """Compile one ``CompileRequest``; the answer is a ``CompileReply``. Runs in the worker."""
    request = CompileRequest.decode(payload)
    learn(request.target, request.chip)
    known = _known(request.target)
    folder = _dumps()
    _clear(folder, known.stems())
    devices = _devices(request.target, request.devices)
    from pytest_pallas.compilers import gpu_kernels
    from pytest_pallas.compilers.messages import divert, overhear_log
    from pytest_pallas.compilers.programs import compile_program

    executable, message = None, ""
    with divert(1) as printed, overhear_log() as logged:
        try:
            executable = compile_program(request.module, devices)
        except Exception as error:  # whatever the compiler raises is its answer
            message = f"{type(error).__name__}: {error}"
    if executable is None:
        # Before jax 0.12, "Pass pipeline failed" is all that the error says.
        remarks = [line for line in logged.remarks().splitlines() if line not in message]
        reply = CompileReply(compiled=False, message="\n".join((message, *remarks)))
        text, others = "", known.stems()
    else:
        text = executable.as_text() or ""
        calls = gpu_kernels.calls(text)
        costs = known.costs(
            calls,
            log=logged.text,
            printed=printed.text,
            files=gpu_kernels.host_code(folder),
            thunks=gpu_kernels.thunk_sequence(folder),
        )
        reply = CompileReply(compiled=True, kernels=costs, kernel_calls=len(calls))
        others = known.stems() - known.stems(calls)
    if request.dump:
        _keep(folder, Path(request.dump), others)
        if text:
            Path(request.dump, "optimized.hlo").write_text(text, encoding="utf-8")
    return reply.encode()


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> str:
    """The part of a version that jaxlib and its plugin must have in common."""
    return re.split(r"[^0-9.]", version)[0].rstrip(".")


def _runtime() -> Path | None:
    """Mosaic GPU's runtime, which JAX looks for beside its CUDA plugin."""
    spec = util.find_spec(_PLUGIN.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(folder, "libmosaic_gpu_runtime.so")).is_file():
            return file
    return None


def _cuda_root() -> Path | None:
    """The folder with ``bin/ptxas``: NVIDIA's packages for CUDA 13, for CUDA 12, or the system's.

    The packages come first, so that what is compiled does not depend on the machine.
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
    """The folder that the compilers write to. XLA reads its flags once, when it is loaded."""
    scratch = os.environ.get(_SCRATCH) or None
    folder = Path(tempfile.mkdtemp(dir=scratch))
    words = [os.environ.get("XLA_FLAGS", ""), f"--xla_dump_to={folder}"]
    # Of the user's environment: files would go elsewhere, and the last one aborts.
    for name in ("MOSAIC_GPU_DUMP_TO", "MOSAIC_GPU_DUMP_MLIR_PASSES", "MOSAIC_GPU_DUMP_LLVM"):
        os.environ.pop(name, None)
    if os.environ.get(_EVERYTHING):
        words += ["--xla_dump_hlo_as_text", "--xla_gpu_dump_llvmir", _EMITTERS]
        os.environ["MOSAIC_GPU_DUMP_TO"] = str(folder)
    os.environ["XLA_FLAGS"] = " ".join(words).strip()
    return folder


def _clear(folder: Path, stems: AbstractSet[str]) -> None:
    """Remove what was written, but for the files of kernels that will not be compiled again."""
    for path in folder.iterdir():
        if _stem(path) not in stems:
            path.unlink()


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _keep(folder: Path, dump: Path, others: AbstractSet[str]) -> None:
    """Copy what belongs to the program, but for the files of other programs' kernels."""
    for path in folder.glob("*.mlir-passes.log"):
        # All passes are long: only the module that goes into the first is kept.
        passes = path.read_text(encoding="utf-8", errors="replace").split(_PASS)
        module = passes[min(1, len(passes) - 1)].partition("\n")[2]
        path.with_name(f"{_stem(path)}.mlir").write_text(module, encoding="utf-8")
        path.unlink()
    for path in sorted(folder.iterdir()):
        if _stem(path) not in others and path.name.endswith(_TELLING):
            shutil.copyfile(path, dump / path.name)


@functools.cache
def _devices(target: str, count: int) -> list[Any]:
    """``count`` devices of a chip, on one host."""
    from jax.experimental import topologies

    from pytest_pallas.compilers.gpu_chips import target_config

    described = topologies.get_topology_desc(
        "", "cuda", target_config=target_config(target), topology=f"1x1x{count}"
    )
    return list(described.devices)


@functools.cache
def _known(target: str) -> Any:
    """What this process has found out about kernels."""
    from pallas_sim.chips import GPUS
    from pytest_pallas.compilers.gpu_kernels import GpuKernelCosts

    return GpuKernelCosts(GPUS[target].shared_per_block)
