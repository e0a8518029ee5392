"""Programs compiled for GPUs that are not there, by the worker's function in a process of its own.

The numbers are those of code generators that change, so they are compared with limits.
"""

import dataclasses
import os
import subprocess
import sys

import jax.numpy as jnp
import pytest
from pallas_test_support import gpu_programs

from pytest_pallas.compile import cuda
from pytest_pallas.compile.service import CompileReport, CompileRequest
from pytest_pallas.decoding import decode, json_of, parse
from reference_kernels.mosaic_gpu.tma_copy_add import tma_copy_add

needs_compilers = pytest.mark.skipif(cuda.missing() is not None, reason=str(cuda.missing()))

F16 = jnp.float16
F32 = jnp.float32
BF16 = jnp.bfloat16

WORKER = """
import pathlib, sys
from pytest_pallas.compile import cuda
for path in sys.argv[1:]:
    reply = cuda.compile_payload(pathlib.Path(path).read_bytes())
    pathlib.Path(path + ".reply").write_bytes(reply)
"""


@dataclasses.dataclass
class Run:
    """What became of a process that compiled some programs."""

    replies: dict[str, CompileReport]
    output: str
    status: int
    folder: object


def compiled(folder, target, programs, *, everything=False):
    """Compile programs for a target, one after the other, in one process."""
    scratch = folder / "scratch"
    scratch.mkdir()
    for name, module in programs.items():
        (folder / f"{name}-dump").mkdir()
        dump = str(folder / f"{name}-dump") if everything else ""
        request = CompileRequest(target=target, module=module, dump=dump)
        (folder / name).write_bytes(json_of(request))
    environment = cuda.environment(scratch, target=target, everything=everything)
    # As the supervisor does it: a file that is appended to.
    with (folder / "output").open("ab") as output:
        done = subprocess.run(
            [sys.executable, "-c", WORKER, *programs],
            cwd=folder,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            timeout=60,
        )
    replies = {
        name: decode(CompileReport, parse((folder / f"{name}.reply").read_bytes()))
        for name in programs
        if (folder / f"{name}.reply").exists()
    }
    text = (folder / "output").read_text(errors="replace")
    return Run(replies, text, done.returncode, folder)


def several(a, b, c):
    """Three kernels of which one is called twice."""
    small = gpu_programs.through_shared_memory("small", 8)
    large = gpu_programs.through_shared_memory("large", 64)
    middle = gpu_programs.through_shared_memory("middle", 16)
    return large(c).sum() + small(small(a)).sum() * middle(b).sum()


@pytest.fixture(scope="module")
def h100(tmp_path_factory):
    def attention(q, k, v, r):
        from jax.experimental.pallas.ops.gpu.attention import mha

        return mha(q, k, v, None).sum() + mha(r, r, r, None).sum()

    short, long = ((1, 64, 1, 64), F16), ((1, 128, 1, 64), F16)
    matrix = ((256, 256), F16)
    programs = {
        "several": (several, ((8, 128), F32), ((16, 128), F32), ((64, 128), F32)),
        "once more": (gpu_programs.through_shared_memory("middle", 16), ((16, 128), F32)),
        "partial": (tma_copy_add, ((64, 128), F32)),
        "wgmma": (gpu_programs.hopper_matmul, matrix, matrix),
        "attention": (attention, short, short, short, long),
        "nothing": (gpu_programs.triton_ones,),
        "no kernel": (lambda x: x + 1, ((128, 128), F32)),
        "too much": (gpu_programs.triton_matmul, ((512, 512), BF16)),
    }
    modules = {
        name: gpu_programs.exported(function, *shapes, target="h100")
        for name, (function, *shapes) in programs.items()
    }
    return compiled(tmp_path_factory.mktemp("h100"), "h100", modules)


@needs_compilers
def test_mosaic_kernels_are_told_apart_and_come_in_the_order_of_the_program(h100):
    reply = h100.replies["several"]
    assert reply.status == "compiled", reply.text
    assert reply.kernel_calls == 4
    shared = {cost.kernel: cost.shared_bytes for cost in reply.kernels}
    # The matrix in shared memory, and a barrier of 8 bytes.
    assert shared == {"small": 8 * 512 + 8, "middle": 16 * 512 + 8, "large": 64 * 512 + 8}
    registers = {cost.kernel: cost.registers for cost in reply.kernels}
    assert 0 < registers["small"] < registers["middle"] < registers["large"] <= 255
    assert all(cost.shared_capacity == 232448 for cost in reply.kernels)
    assert all(cost.spill_store_bytes == 0 for cost in reply.kernels)


@needs_compilers
def test_a_mosaic_kernel_that_was_compiled_before_still_has_its_cost(h100):
    (again,) = h100.replies["once more"].kernels
    assert again in h100.replies["several"].kernels


@needs_compilers
def test_a_kernel_without_a_name_has_that_of_the_function_around_it(h100):
    assert [cost.kernel for cost in h100.replies["partial"].kernels] == ["tma_copy_add"]


@needs_compilers
def test_wgmma_compiles_for_h100(h100):
    (cost,) = h100.replies["wgmma"].kernels
    assert cost.registers == 168  # ptxas gives 65536 / 384 threads, rounded down to eights
    assert 100_000 < cost.shared_bytes <= cost.shared_capacity


@needs_compilers
def test_triton_kernels_of_one_name_are_told_apart(h100):
    reply = h100.replies["attention"]
    assert reply.status == "compiled", reply.text
    assert [cost.kernel for cost in reply.kernels] == ["mha_forward", "mha_forward"]
    assert reply.kernel_calls == 2
    one, other = reply.kernels
    assert one.shared_bytes != other.shared_bytes
    assert min(one.shared_bytes, other.shared_bytes) > 0
    assert min(one.registers, other.registers) > 32


@needs_compilers
def test_a_program_without_arguments(h100):
    reply = h100.replies["nothing"]
    assert reply.status == "compiled", reply.text
    assert [cost.kernel for cost in reply.kernels] == ["ones_kernel"]


@needs_compilers
def test_a_program_without_a_kernel_has_no_kernel_calls(h100):
    reply = h100.replies["no kernel"]
    assert (reply.status, reply.kernel_calls, reply.kernels) == ("compiled", 0, ())


@needs_compilers
def test_too_much_shared_memory_is_refused(h100):
    reply = h100.replies["too much"]
    assert reply.status == "refused"
    assert reply.kernels == ()
    assert "Shared memory size limit exceeded: requested 524288, available: 232448" in reply.text


@needs_compilers
def test_what_is_only_information_does_not_stay_in_the_output(h100):
    assert h100.status == 0, h100.output
    assert "ptxas" not in h100.output
    assert "mosaic_gpu" not in h100.output


@needs_compilers
def test_wgmma_is_refused_on_b200_which_has_tcgen05(tmp_path):
    matrix = ((256, 256), F16)
    modules = {
        "tcgen05": gpu_programs.exported(
            gpu_programs.blackwell_matmul, matrix, matrix, target="b200"
        ),
        "wgmma": gpu_programs.exported(gpu_programs.hopper_matmul, matrix, matrix, target="b200"),
    }
    run = compiled(tmp_path, "b200", modules)
    assert run.replies["tcgen05"].status == "compiled", run.replies["tcgen05"].text
    assert [cost.shared_capacity for cost in run.replies["tcgen05"].kernels] == [232448]
    assert run.replies["wgmma"].status == "refused"
    assert "'wgmma.fence' not supported on .target 'sm_100a'" in run.replies["wgmma"].text


@needs_compilers
def test_wgmma_on_a100_is_refused_or_ends_the_process_and_says_why(tmp_path):
    matrix = ((256, 256), F16)
    modules = {
        "triton": gpu_programs.exported(gpu_programs.triton_ones, target="a100"),
        "wgmma": gpu_programs.exported(gpu_programs.hopper_matmul, matrix, matrix, target="a100"),
    }
    run = compiled(tmp_path, "a100", modules)
    assert run.replies["triton"].status == "compiled"
    assert [cost.shared_capacity for cost in run.replies["triton"].kernels] == [166912]
    if "wgmma" in run.replies:  # jax 0.11
        assert run.replies["wgmma"].status == "refused"
        assert "op is not supported on sm_80" in run.replies["wgmma"].text
        assert "hopper_matmul_mgpu.py" in run.replies["wgmma"].text
    else:
        assert run.status != 0
        assert "LLVM ERROR: Cannot select: intrinsic %llvm.nvvm." in run.output


@needs_compilers
def test_everything_is_kept_for_each_program_on_h200(tmp_path):
    double = gpu_programs.through_shared_memory("double", 8)
    matrix = ((8, 128), F32)
    modules = {
        "mosaic": gpu_programs.exported(double, matrix, target="h200"),
        "triton": gpu_programs.exported(
            gpu_programs.triton_matmul, ((64, 64), BF16), target="h200"
        ),
        "mosaic again": gpu_programs.exported(lambda x: double(x) + 1, matrix, target="h200"),
    }
    run = compiled(tmp_path, "h200", modules, everything=True)
    assert run.status == 0, run.output
    assert run.replies["mosaic"].kernels == run.replies["mosaic again"].kernels
    assert [cost.shared_bytes for cost in run.replies["mosaic"].kernels] == [8 * 512 + 8]

    def kept(program, pattern):
        return [path.read_text() for path in (tmp_path / f"{program}-dump").glob(pattern)]

    for program in ("mosaic", "mosaic again"):
        assert any(".entry double_mosaic_gpu_kernel" in text for text in kept(program, "*.ptx"))
        assert any(text.startswith("#loc") for text in kept(program, "double_*.mlir"))
        assert "mosaic_gpu_v2" in kept(program, "optimized.hlo")[0]
    assert any(".entry matmul_kernel" in text for text in kept("triton", "*.ptx"))
    assert any("define ptx_kernel void @matmul_kernel" in text for text in kept("triton", "*.ll"))
    assert not kept("triton", "double_*")


def test_too_much_shared_memory_of_a_mosaic_kernel_is_refused_before_that():
    with pytest.raises(ValueError, match="smem_bytes=262152 > max_smem_bytes=232448"):
        gpu_programs.exported(
            gpu_programs.through_shared_memory("huge", 512), ((512, 128), F32), target="h100"
        )


def test_each_missing_part_is_named_with_what_to_install(monkeypatch):
    versions = {"jaxlib": "0.12.0", "jax-cuda13-plugin": "0.12.0", "jax-cuda13-pjrt": "0.12.0"}
    monkeypatch.setattr(cuda, "installed_version", versions.get)
    versions["jax-cuda13-pjrt"] = "0.11.2"
    assert cuda.missing() == (
        "jax-cuda13-pjrt is 0.11.2 but jaxlib is 0.12.0, and they must be the same; "
        "pip install 'jax-cuda13-pjrt==0.12.0'"
    )
    versions["jax-cuda13-pjrt"] = "0.12.0.1"
    assert "0.12.0.1 but jaxlib is 0.12.0" in cuda.missing()
    del versions["jax-cuda13-pjrt"]
    assert cuda.missing() == (
        "jax-cuda13-pjrt is not installed; pip install 'pytest-pallas[gpu-compile]'"
    )
    versions["jax-cuda13-pjrt"] = "0.12.0.dev20261121"  # is used by jaxlib
    monkeypatch.setattr(cuda, "_runtime", lambda: None)
    assert "libmosaic_gpu_runtime.so" in cuda.missing()
    monkeypatch.setattr(cuda, "_runtime", lambda: "file")
    monkeypatch.setattr(cuda, "_cuda_root", lambda: None)
    assert "ptxas is neither" in cuda.missing()
    assert "gpu-compile" in cuda.missing()


def test_a_cuda_of_the_system_is_found_where_there_are_no_packages(monkeypatch, tmp_path):
    ptxas = tmp_path / "cuda" / "bin" / "ptxas"
    ptxas.parent.mkdir(parents=True)
    ptxas.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    ptxas.chmod(0o755)
    monkeypatch.setattr(cuda.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(ptxas.parent), prepend=os.pathsep)
    environment = cuda.environment(tmp_path, target="h100")
    assert environment["MOSAIC_GPU_CUDA_ROOT"] == str(tmp_path / "cuda")
    assert environment["PATH"].startswith(str(ptxas.parent))
    assert cuda.version().endswith(", ptxas 13.0.88")


def test_only_flags_for_gpus_are_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_gpu_enable_x=true"
    )
    assert cuda.flags() == "--xla_gpu_enable_x=true"
    flags = cuda.environment(tmp_path, target="h100")["XLA_FLAGS"]
    assert flags == "--xla_gpu_autotune_level=0 --xla_gpu_enable_x=true"


def test_chips_have_workers_of_their_own(tmp_path):
    one, other = (cuda.environment(tmp_path, target=target) for target in ("h100", "h200"))
    assert one != other


def test_importing_it_imports_no_jax():
    code = (
        "import sys; from pytest_pallas.compile import cuda; cuda.missing(); cuda.version(); "
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
