"""What is left of real messages of JAX 0.12.0.1, libtpu 0.0.51, XLA and ptxas 13."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_sim.chips import TARGETS
from pytest_pallas.compile.refusals import full_text, short
from pytest_pallas.grid.kernel_calls import KernelCall, kernel_calls

Shape = jax.ShapeDtypeStruct
X = Shape((8, 128), jnp.float32)


# --- Texts of compilers ---------------------------------------------------------------------------

MATMUL = (
    '%101 = "tpu.matmul"(%96, %98, %100) <{dimension_numbers = #tpu.dot_dimension_numbers<[1], '
    "[0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs = false, transpose_rhs = false}> : "
    "(vector<128x128xf8E4M3FN>, vector<128x128xf8E4M3FN>, vector<128x128xf32>) -> "
    "vector<128x128xf32>"
)
MATMUL_AT = (
    'at location: loc("dot_general:"("dot_general/dot_general"(callsite("_dot"("/k/dot.py":49:40 '
    'to :105) at "_dot"("/k/dot.py":50:40 to :105)))))'
)

TEXTS = {
    "dtype that a chip lacks": (
        "JaxRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name "
        "`_dot` HLO name `_lambda_.1`: E2001: CompileTimeMosaicUnsupportedRhsType: Unsupported "
        "matmul RHS type on target: vector<128x128xf8E4M3FN>\n"
        "See https://openxla.org/xla/errors/error_2001 for more details.\n\n"
        f"{MATMUL_AT}\n\nThe MLIR operation involved:\n  {MATMUL}\n\n"
        f"failed to legalize operation 'tpu.matmul': {MATMUL}\n\n"
        f"{MATMUL_AT}\n\nThe MLIR operation involved:\n  {MATMUL}\n\n"
        "Please report a bug at: https://github.com/jax-ml/jax/issues/new/choose\n",
        "Unsupported matmul RHS type on target: f8E4M3FN[128,128]\n"
        "in tpu.matmul(f8E4M3FN[128,128], f8E4M3FN[128,128], f32[128,128]) -> f32[128,128]\n"
        "in kernel _dot, /k/dot.py:49",
    ),
    "only an operation": (
        "INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name `kernel` HLO name "
        "`f.1`: failed to legalize operation 'arith.addf': %39 = \"arith.addf\"(%11, %11) "
        "<{fastmath = #arith.fastmath<none>}> : (vector<8x128x4xf8E5M2>, "
        "vector<8x128x4xf8E5M2>) -> vector<8x128x4xf8E5M2>\n\n"
        'at location: loc("add:"("add/add"(callsite(callsite("<lambda>"("/k/add.py":54:30 to :33) '
        'at "k"("/k/add.py":18:21 to :35)) at "k"("/k/add.py":18:21 to :35)))))\n\n'
        'The MLIR operation involved:\n  %39 = "arith.addf"(%11, %11) <{fastmath = '
        "#arith.fastmath<none>}> : (vector<8x128x4xf8E5M2>, vector<8x128x4xf8E5M2>) -> "
        "vector<8x128x4xf8E5M2>\n\n"
        "Please report a bug at: https://github.com/jax-ml/jax/issues/new/choose\n",
        "failed to legalize operation 'arith.addf'\n"
        "in arith.addf(f8E5M2[8,128,4], f8E5M2[8,128,4]) -> f8E5M2[8,128,4]\n"
        "in kernel kernel, /k/add.py:54",
    ),
    "operand that is a place in memory": (
        "INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name `_store` HLO name "
        "`f.1`: E2003: CompileTimeMosaicUnprovenMemoryAccessAlignment: cannot statically prove "
        "that index in dimension 0 is a multiple of 8\n"
        "See https://openxla.org/xla/errors/error_2003 for more details.\n\n"
        'at location: loc("swap:"("swap/swap"(callsite("_store"("/k/s.py":73:4 to :9) at '
        '"_store"("/k/s.py":73:4 to :9)))))\n\nThe MLIR operation involved:\n'
        '  "tpu.vector_store"(%1, %arg2, %3, %0) <{add = false, operandSegmentSizes = array<i32: '
        "1, 1, 2, 0>, strides = array<i32>}> : (vector<8x128xbf16>, memref<64x128xbf16, "
        "#tpu.tiled<(8,128)(2,1),[1,1]>, #tpu.memory_space<vmem, tc>>, index, index) -> ()\n",
        "cannot statically prove that index in dimension 0 is a multiple of 8\n"
        "in tpu.vector_store(bf16[8,128], bf16[64,128] in VMEM)\n"
        "in kernel _store, /k/s.py:73",
    ),
    "location that is not known": (
        "INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name `kernel` HLO name "
        "`f.1`: Sublane gather not supported by this TPU generation\n\nat location: "
        "loc(unknown)\n\nThe MLIR operation involved:\n"
        '  %716 = "tpu.dynamic_gather"(%709, %715) <{dimensions = array<i32: 0>}> : '
        "(vector<8x128xi32>, vector<8x128xi32>) -> vector<8x128xi32>\n",
        "Sublane gather not supported by this TPU generation\n"
        "in tpu.dynamic_gather(i32[8,128], i32[8,128]) -> i32[8,128]\n"
        "in kernel kernel",
    ),
    "verifier, with notes": (
        'MLIRError: Verification failed:\nerror: "iota:"("iota/iota"(callsite("<lambda>"("/k/i.py"'
        ':83:30 to :47) at "k"("/k/i.py":18:21 to :35)))): \'tpu.iota\' op result #0 must be '
        "vector of integer or index values, but got 'vector<1x128xf32>'\n"
        ' note: "iota:"("iota/iota"(callsite("<lambda>"("/k/i.py":83:30 to :47) at '
        '"k"("/k/i.py":18:21 to :35)))): see current operation: %3 = "tpu.iota"() <{dimensions = '
        "array<i32: 1>}> : () -> vector<1x128xf32>",
        "Verification failed: 'tpu.iota' op result #0 must be vector of integer or index values, "
        "but got 'f32[1,128]'\n"
        "in tpu.iota() -> f32[1,128]\n"
        "at /k/i.py:83",
    ),
    "verifier, by JAX": (
        "VerificationError: Pallas encountered an internal verification error. Please file a bug "
        "at https://github.com/jax-ml/jax/issues/new/choose. Error details: "
        "'vector.extract_strided_slice' op expected strides to be confined to [1, 2)\n see current "
        'operation: %3 = "vector.extract_strided_slice"(%2) <{offsets = [0, 0], sizes = [8, 384], '
        "strides = [1, 3]}> : (vector<8x384xf32>) -> vector<8x128xf32>",
        "'vector.extract_strided_slice' op expected strides to be confined to [1, 2)\n"
        "in vector.extract_strided_slice(f32[8,384]) -> f32[8,128]",
    ),
    "bytes": (
        "INTERNAL: cannot decode " + "TUzvUgFNTElSMjQuMC4wZ2l0" * 60 + " of type.googleapis.com/x",
        "cannot decode ... of type.googleapis.com/x",
    ),
    "scalar type": (
        "INTERNAL: Mosaic failed to compile TPU kernel with MLIR module name `k` HLO name `f.1`: "
        "Not implemented: Only vector<i16> and vector<i32> are supported, but got 'i8'. Please "
        "cast your input.\n\nPlease report a bug at: https://github.com/jax-ml/jax/issues/new\n",
        "Not implemented: Only i16 and i32 are supported, but got 'i8'. Please cast your input.\n"
        "in kernel k",
    ),
    "window": (
        "INVALID_ARGUMENT: Mosaic failed to compile TPU kernel with MLIR module name `_copy` HLO "
        "name `_lambda_.1`: Failed to set window params for input 0: Couldn't prove that tiling "
        "(8) divides index returned by transform_indices on dimension 0",
        "Failed to set window params for input 0: Couldn't prove that tiling (8) divides index "
        "returned by transform_indices on dimension 0\n"
        "in kernel _copy",
    ),
    "base64": (
        "UNIMPLEMENTED: While rewriting computation to not contain X{64|128} element types, XLA "
        "encountered an HLO for which this rewriting is not implemented: %pallas_call.0 = "
        "f64[8,128]{1,0} custom-call(%args_0_.1), custom_call_target="
        '"tpu_custom_call", operand_layout_constraints={f64[8,128]{1,0}}, frontend_attributes='
        '{kernel_metadata={}}, metadata={op_name="jit(f)/pallas_call" stack_frame_id=5}, '
        'backend_config={"custom_call_config": {"body": "'
        + "TUzvUgFNTElSMjQuMC4wZ2l0" * 60
        + '"}}',
        "While rewriting computation to not contain X{64|128} element types, XLA encountered an "
        "HLO for which this rewriting is not implemented: f64[8,128] custom-call",
    ),
    "one allocation": (
        "RESOURCE_EXHAUSTED: Allocation (size=268435456) would exceed memory (size=134217728) :: "
        "#allocation3 [shape = 'u8[268435456]{0}', space=vmem, size = 0x10000000, scoped, tag = "
        "'input window allocation for operator input 0. The window shape is f32[8192,8192], while "
        "the full shape is f32[8192,8192]. The u8 shape/size shown above represents the raw byte "
        "size of this window in VMEM. This allocation is single buffered.'] :: f.1",
        "256.0 MiB of VMEM, the chip has 128.0 MiB\n"
        "window f32[8192,8192] of input 0, single buffered",
    ),
    "scratch": (
        "RESOURCE_EXHAUSTED: Allocation (size=8388608) would exceed memory (size=1048576) :: "
        "#allocation3 [shape = 'f32[2048,1024]{1,0:T(8,128)}', space=smem, size = 0x800000, "
        "scoped, tag = 'scratch operand'] :: f.1",
        "8.0 MiB of SMEM, the chip has 1.0 MiB\nscratch operand f32[2048,1024]",
    ),
    "all allocations": (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "vmem. Used 20.01M of 16.00M vmem. Exceeded vmem capacity by 4.01M.\n\n"
        "Program vmem requirement 20.01M:\n    scoped           20.01M\n\n"
        "  Largest program allocations in vmem:\n\n"
        "  1. Size: 17.01M\n"
        "     XLA label: register allocator spill slots in HLO :: _lambda_.1\n"
        "     Allocation type: scoped\n     ==========================\n\n"
        "  2. Size: 1.00M\n"
        '     Operator: op_name="jit(f)/pallas_call"\n     Shape: u8[1048576]{0}\n'
        "     Unpadded size: 1.00M\n"
        "     Tag: output window allocation for operator output 0. The window shape is "
        "f32[2048,64], while the full shape is f32[8192,64]. The u8 shape/size shown above "
        "represents the raw byte size of this window in VMEM. This allocation has 2 buffering "
        "levels.\n"
        "     XLA label: f.1 = custom-call(x_ref.1)\n"
        "     Allocation type: scoped\n     ==========================\n",
        "20.0 MiB of VMEM, a kernel may use 16.0 MiB; the largest:\n"
        "  17.0 MiB: register allocator spill slots in HLO\n"
        "  1.0 MiB: window f32[2048,64] of output 0, 2 buffers",
    ),
    "kernel's limit": (
        "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space "
        "vmem while allocating on stack for %_lambda_.1 = f32[1024,1024]{1,0:T(8,128)} "
        'custom-call(%x_ref.1), custom_call_target="tpu_custom_call". Scoped allocation with size '
        "8.00M and limit 512.00K exceeded scoped vmem limit by 7.50M. It should not be possible "
        "to run out of scoped vmem - \n"
        "See https://openxla.org/xla/errors/error_1001 for more details.",
        "8.0 MiB of VMEM for windows, scratch and temporaries, the kernel's limit is 512.0 KiB "
        "(vmem_limit_bytes)",
    ),
    "SparseCore": (
        "INTERNAL: Failed to run MLO pass pipeline._sc2.6:53:1: error: 'memref.alloca' op E3000: "
        "CompileTimeSparseCoreAllocationFailure: current allocation offset upper bound (16777215 "
        "words) exceeds the legitimate user allocatable offset upper bound (1048575 words) in "
        "memory space spmem when allocating 16777216 words\n"
        "See https://openxla.org/xla/errors/error_3000 for more details.\n"
        '_sc2.6:53:1: note: see current operation: %44 = "memref.alloca"() : () -> '
        "memref<8192x128xf32, #sc_tpu.memory_space<tile_spmem>>\n"
        "main.2:1:1: error: NOTE: Failed in pass AllocationAssignment\n",
        "64.0 MiB of SPMEM in one allocation of all subcores together, kernels may use 4.0 MiB",
    ),
    "shared memory, Triton": (
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 196608, "
        "available: 166912, context: []",
        "192.0 KiB of SMEM (shared memory), a block may use 163.0 KiB",
    ),
    "shared memory, Mosaic GPU": (
        "ValueError: Mosaic GPU kernel exceeds available shared memory: smem_bytes=262152 > "
        "max_smem_bytes=232448",
        "256.0 KiB of SMEM (shared memory), a block may use 227.0 KiB",
    ),
    "ptxas": (
        "INTERNAL: Mosaic GPU pass pipeline failed: 'gpu.binary' op ptxas exited with non-zero "
        "error code 65280, output: ptxas /tmp/tempfile-vm-ed4, line 148; error   : Instruction "
        "'wgmma.fence' not supported on .target 'sm_100a'\n"
        + "".join(
            f"ptxas /tmp/tempfile-vm-ed4, line {line}; error   : Instruction 'wgmma.mma_async with "
            "floating point types' not supported on .target 'sm_100a'\n"
            for line in (159, 166, 173, 180)
        )
        + "ptxas fatal   : Ptx assembly aborted due to errors\n\n",
        "ptxas: Instruction 'wgmma.fence' not supported on .target 'sm_100a'\n"
        "ptxas: Instruction 'wgmma.mma_async with floating point types' not supported on .target "
        "'sm_100a'",
    ),
    "ptxas that aborts": (
        'ptxas fatal   : (C7600) Internal error: Assertion failed at "/x/y.cpp", line 123\n'
        "Stack dump:\n0.\tProgram arguments: ptxas\n0  ptxas 0x00007f12\n1  libc.so 0x00007f13\n",
        '(C7600) Internal error: Assertion failed at "/x/y.cpp", line 123',
    ),
    "abort, with a log": (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "I1121 06:23:59.208596    5753 pjrt_api.cc:119] GetPjrtApi was found for cuda at /x/y.so\n"
        "E1121 06:23:59.210935    5753 error_handler.cc:38] LLVM ERROR: Cannot select: intrinsic "
        "%llvm.nvvm.elect.sync\n"
        "*** SIGABRT received at time=1795242239 on cpu 1 ***\n"
        "PC: @     0x7ef2a1a7c9fc  (unknown)  pthread_kill\n"
        "    @     0x7ef2a1a28520  (unknown)  (unknown)\n"
        "Fatal Python error: Aborted\n\n"
        "Current thread 0x00007ef2a1c3a740 (most recent call first):\n"
        '  File "/x/jax/_src/compiler.py", line 386 in backend_compile\n',
        "LLVM has no instruction of this chip for intrinsic %llvm.nvvm.elect.sync",
    ),
    "exit, with a stack trace": (
        "E1121 07:05:39.952779   21703 error_handler.cc:38] LLVM ERROR: Cannot select: intrinsic "
        "%llvm.nvvm.cp.async.bulk.wait.group\n"
        "F1121 07:05:39.952807   21703 error_handler.cc:44] *** Begin stack trace ***\n"
        "\t\n\tPyObject_Vectorcall\n\t\n\t_PyEval_EvalFrameDefault\n\t_start\n"
        "*** End stack trace ***\n",
        "LLVM has no instruction of this chip for intrinsic %llvm.nvvm.cp.async.bulk.wait.group",
    ),
    "the same, over and over": (
        "".join(
            "Floating-point arithmetic operators only work with floating-point types!\n"
            f"  %{n} = fadd i8 %{n - 90}, %{n - 90}\n"
            for n in range(267, 300)
        )
        + "LLVM Fatal Error while compiling Triton kernel: Conversion from/to f8e4m3nv is only "
        "supported on compute capability >= 89\n",
        "Floating-point arithmetic operators only work with floating-point types!\n"
        "%267 = fadd i8 %177, %177\n"
        "LLVM Fatal Error while compiling Triton kernel: Conversion from/to f8e4m3nv is only "
        "supported on compute capability >= 89",
    ),
    "operation within a sentence": (
        'cannot cast OpResult(%34 = "tt.load"(%33) <{isVolatile = false, x = array<i32: 1>}> : '
        "(tensor<128x128x!tt.ptr<f32>>) -> tensor<128x128xf32>) to tensor<128x128xcomplex<f32>>",
        "cannot cast OpResult(tt.load) to complex<f32>[128,128]\n"
        "in tt.load(!tt.ptr<f32>[128,128]) -> f32[128,128]",
    ),
    "block": (
        "ValueError: The Pallas TPU lowering currently requires that the last two dimensions of "
        "your block shape are divisible by 8 and 128 respectively, or be equal to the respective "
        "dimensions of the overall array. Block spec for args[0] in pallas_call kernel at "
        "/home/me/kernels/add.py:17 has block shape (Blocked(block_size=8), "
        "Element(block_size=48, padding=(0, 0))), array shape (64, 480), and index_map { lambda ; "
        "a:i32[] b:i32[]. let c:i32[] = pjit[jaxpr={ lambda ; d:i32[]. let  in (d,) }] a in (c, b) "
        "}, in memory space <MemorySpace.DEFAULT: 'default'>.\n"
        "See details at https://docs.jax.dev/en/latest/pallas/grid_blockspec.html#blockspec",
        "Block spec for args[0] in pallas_call kernel at add.py:17 has block shape (8, "
        "Element(48)), array shape (64, 480).\n"
        "The Pallas TPU lowering currently requires that the last two dimensions of your block "
        "shape are divisible by 8 and 128 respectively, or be equal to the respective dimensions "
        "of the overall array.\n"
        "in kernel kernel, /home/me/kernels/add.py:17",
    ),
    "lowering exception": (
        "LoweringException: Only single (1) and double (2) buffering are supported. Got 3.",
        "Only single (1) and double (2) buffering are supported. Got 3.",
    ),
    "unimplemented": (
        "NotImplementedError: Unimplemented primitive in Pallas TPU lowering for tc: sort. Please "
        "file an issue at https://github.com/jax-ml/jax/issues/new/choose.",
        "Unimplemented primitive in Pallas TPU lowering for tc: sort.",
    ),
    "an unknown form": ("Something new: 3 > 2", "Something new: 3 > 2"),
    "nothing": ("", "the compiler gave no message"),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_texts(text: str, expected: str) -> None:
    assert short(text) == expected


@pytest.mark.parametrize("text", [text for text, _ in TEXTS.values()], ids=TEXTS)
def test_at_most_five_lines_without_what_helps_nobody(text: str) -> None:
    message = short(text)
    assert message.count("\n") < 5
    for noise in ("https://", "loc(", "callsite", "RESOURCE_EXHAUSTED", "INTERNAL", " @ ", "<{"):
        assert noise not in message


def test_a_shortened_text_stays_as_it_is() -> None:
    for text, expected in TEXTS.values():
        if "\n" not in expected and "of VMEM" not in text and text:
            assert short(expected) == expected


# --- Kernels that JAX does not lower --------------------------------------------------------------


def lower(
    function: Callable[..., Any], *args: Any, chip: str = "v6e"
) -> tuple[Exception, list[KernelCall]]:
    """What lowering a call raises, and the call's kernels."""
    target = TARGETS[chip]
    device = AbstractDevice(device_kind=target.device_kind, num_cores=1, platform=target.platform)
    platform = {"tpu": "tpu", "gpu": "cuda"}[target.platform]
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(function).trace(*args)
        with pytest.raises(Exception) as caught:
            traced.lower(lowering_platforms=(platform,))
    return caught.value, kernel_calls(traced.jaxpr)


def place(function: Callable[..., Any], mark: str) -> str:
    """``file:line: text`` of the line of a function that contains ``mark``."""
    lines, first = inspect.getsourcelines(function)
    index = next(i for i, line in enumerate(lines) if mark in line and "place(" not in line)
    return f"{__file__}:{first + index}: {lines[index].strip()}"


def unary(body: Callable[..., None], **options: Any) -> Callable[[Any], Any]:
    return lambda x: pl.pallas_call(body, out_shape=x, **options)(x)


def double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def test_the_operand_of_a_block_spec_has_its_name() -> None:
    def add(start_ref: Any, x_ref: Any, bias_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + bias_ref[0:1, 0:1] + start_ref[0]

    def call(start: Any, x: Any, bias: Any) -> Any:
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(4,),
            in_specs=[
                pl.BlockSpec((32, 128), lambda i, start: (i, 0)),
                pl.BlockSpec((16, 100), lambda i, start: (0, 0)),
            ],
            out_specs=pl.BlockSpec((32, 128), lambda i, start: (i, 0)),
        )
        return pl.pallas_call(add, out_shape=x, grid_spec=grid)(start, x, bias)

    matrix = Shape((128, 128), jnp.float32)
    error, kernels = lower(call, Shape((4,), jnp.int32), matrix, Shape((64, 400), jnp.float32))
    first, *_, last = short(error, kernels=kernels).splitlines()
    assert first.startswith("Block spec for args[2] (bias_ref) in pallas_call add at ")
    assert "block shape (16, 100), array shape (64, 400)" in first
    assert last == f"in kernel add, {place(call, 'pl.pallas_call(')}"


def test_an_output_has_its_name_too() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[:, :48]

    spec = pl.BlockSpec((8, 48), lambda i: (0, i))
    wide = Shape((8, 480), jnp.float32)
    error, kernels = lower(unary(body, grid=(10,), out_specs=spec), wide)
    assert "Block spec for outputs (o_ref) in" in short(error, kernels=kernels)


def test_unimplemented_primitive_is_found_in_the_jaxpr() -> None:
    """``jnp.sort`` is jitted: no frame of the user's is in the error."""

    def body(x_ref: Any, o_ref: Any) -> None:
        def step(i: Any, rows: Any) -> Any:
            return jnp.sort(rows) + i

        o_ref[...] = lax.fori_loop(0, 4, step, x_ref[...])

    error, kernels = lower(unary(body), X)
    expected = (
        "Unimplemented primitive in Pallas TPU lowering for tc: sort.\n"
        f"in kernel body, {place(body, 'return jnp.sort')}"
    )
    assert short(error, kernels=kernels) == expected
    assert short(full_text(error), kernels=kernels) == expected


def test_the_kernel_can_be_read_from_the_jaxpr() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.cumsum(x_ref[...], axis=1)

    jaxpr = jax.make_jaxpr(unary(body))(jnp.zeros((8, 128)))
    text = "Unimplemented primitive in Pallas TPU lowering for tc: cumsum."
    assert short(text, jaxpr=jaxpr).endswith(place(body, "jnp.cumsum"))


def test_the_kernel_that_a_text_names_is_meant() -> None:
    def first(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    def call(x: Any) -> Any:
        one = pl.pallas_call(first, out_shape=x)
        two = pl.pallas_call(double, out_shape=x)
        return two(one(x))

    jaxpr = jax.make_jaxpr(call)(jnp.zeros((8, 128)))
    text = (
        "INVALID_ARGUMENT: Mosaic failed to compile TPU kernel with MLIR module name `double` HLO "
        "name `f.2`: Failed to set window params for input 0: Couldn't prove it"
    )
    message = short(text, kernels=kernel_calls(jaxpr))
    assert "input 0 (x_ref): Couldn't" in message
    assert message.splitlines()[-1].startswith("in kernel double, ")
    assert "input 0:" in short(text.replace("`double`", "`other`"), kernels=kernel_calls(jaxpr))


@dataclass(frozen=True)
class Misplaced:
    """A kernel whose refusal says neither operand nor shape."""

    options: dict[str, Any]
    lines: Sequence[str]


@pytest.mark.parametrize(
    "case",
    [
        Misplaced(
            {"in_specs": [pl.BlockSpec(memory_space=pltpu.SMEM)]},
            ("Can only load scalars from SMEM", "operands: x_ref f32[8,128] in SMEM, "),
        ),
        Misplaced(
            {"in_specs": [pl.BlockSpec(memory_space=pltpu.HBM)]},
            ("Loads are only allowed on VMEM", "operands: x_ref f32[8,128] in HBM, o_ref f32["),
        ),
    ],
    ids=["smem", "hbm"],
)
def test_operands_are_listed_where_the_text_names_none(case: Misplaced) -> None:
    error, kernels = lower(unary(double, **case.options), X)
    lines = short(error, kernels=kernels).splitlines()
    assert len(lines) == 3
    for line, start in zip(lines, case.lines, strict=False):
        assert line.startswith(start)
    assert lines[-1] == f"in kernel double, {place(double, 'o_ref[...] =')}"


def test_the_frame_of_the_operation_not_of_the_caller() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        o_ref[...] = x + jnp.arange(128, dtype=jnp.float32)

    error, kernels = lower(unary(body), X)
    lines = short(error, kernels=kernels).splitlines()
    assert lines[1] == "in tpu.iota() -> f32[1,128]"
    assert lines[-1] == f"in kernel body, {place(body, 'jnp.arange')}"


def test_operands_that_need_too_much_memory_have_their_names() -> None:
    def body(x_ref: Any, o_ref: Any, large_ref: Any, small_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    scratch = [pltpu.VMEM((2048, 1024), jnp.int8), pltpu.VMEM((8, 128), jnp.int8)]
    kernels = kernel_calls(jax.make_jaxpr(unary(body, scratch_shapes=scratch))(jnp.zeros((8, 128))))
    text = (
        "RESOURCE_EXHAUSTED: Allocation (size=2097152) would exceed memory (size=1048576) :: "
        "#allocation3 [shape = 's8[2048,1024]{1,0:T(8,128)}', space=vmem, tag = 'scratch operand']"
    )
    assert "\nscratch operand s8[2048,1024] (large_ref)\n" in short(text, kernels=kernels)
    assert "(large_ref)" not in short(text.replace("2048", "1024"), kernels=kernels)
    window, _ = TEXTS["one allocation"]
    assert "of input 0 (x_ref), single buffered\n" in short(window, kernels=kernels)
    assert "of output 0 (o_ref)" in short(window.replace("input 0", "output 0"), kernels=kernels)
    limit, _ = TEXTS["kernel's limit"]
    largest = "largest operands: large_ref i8[2048,1024] 2.0 MiB, x_ref f32[8,128] 4.0 KiB"
    assert largest in short(limit, kernels=kernels)


def test_scratch_of_a_mosaic_gpu_kernel_has_its_name_and_line() -> None:
    def body(x_ref: Any, o_ref: Any, large_smem: Any) -> None:
        large_smem[0] = x_ref[...]
        o_ref[...] = large_smem[0]

    def call(x: Any) -> Any:
        scratch = [plgpu.SMEM((4, 128, 128), jnp.float32)]
        return plgpu.kernel(body, out_type=x, scratch_types=scratch)(x)

    error, kernels = lower(call, Shape((128, 128), jnp.float32), chip="h100")
    assert short(error, kernels=kernels).splitlines() == [
        "256.0 KiB of SMEM (shared memory), a block may use 227.0 KiB",
        "largest operands: large_smem f32[4,128,128] in SMEM 256.0 KiB",
        f"in kernel body, {place(body, 'def body')}",
    ]


def test_frames_inside_of_jax_are_nobodys() -> None:
    text = 'error at loc("sort"("/v/site-packages/jax/_src/numpy/sorting.py":112:4 to :9)) here'
    assert short(text) == "error at here"
    mine = text.replace('"sort"(', '"a"("/v/jaxtools/_src/mine.py":3:1 to :2) at "sort"(')
    assert short(mine) == "error at here\nat /v/jaxtools/_src/mine.py:3"
    shipped = text.replace("_src/numpy/sorting", "experimental/pallas/ops/tpu/matmul")
    assert short(shipped).endswith("/pallas/ops/tpu/matmul.py:112")


def test_the_text_of_the_line_is_there_if_the_file_is(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("def k(x_ref, o_ref):\n    o_ref[...] = nonsense(x_ref)  # " + "x" * 90)
    text = f'bad loc("k"("{file}":2:4 to :9))'
    last = short(text).splitlines()[-1]
    assert last.startswith(f"at {file}:2: o_ref[...] = nonsense(x_ref)  # xxx")
    assert last.endswith("...")
    assert len(last) - len(f"at {file}:2: ") == 100


def test_an_error_without_words_is_placed() -> None:
    with pytest.raises(AssertionError) as caught:
        raise AssertionError
    message = short(caught.value)
    assert message.startswith(f"AssertionError without a message at {__file__}:")


def test_a_line_that_only_names_the_place_is_not_repeated() -> None:
    text = "INTERNAL: Mosaic failed to compile TPU kernel: bad tile\n\nat /home/me/k.py:3"
    assert short(text) == "Mosaic failed to compile TPU kernel: bad tile\nat /home/me/k.py:3"


def test_an_error_without_a_message_names_a_kernel_line_once(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text("def k(x_ref, o_ref):\n    raise AssertionError\n")
    namespace: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    with pytest.raises(AssertionError) as caught:
        jax.make_jaxpr(
            pl.pallas_call(namespace["k"], out_shape=Shape((8, 128), jnp.float32), name="k")
        )(X)
    assert short(caught.value).splitlines() == [
        "AssertionError without a message",
        f"at {file}:2: raise AssertionError",
    ]


def test_other_kinds_of_errors_keep_their_name() -> None:
    assert short(TypeError("add got incompatible shapes")) == (
        "TypeError: add got incompatible shapes"
    )
    assert short(NotImplementedError("Unsupported cast")) == "Unsupported cast"


def test_the_error_that_jax_replaced_has_the_full_text() -> None:
    class MosaicError(Exception):
        pass

    error = MosaicError("INTERNAL: bad")
    error.__cause__ = ValueError('INTERNAL: bad\n\nat location: loc("k"("/k/a.py":3:1 to :2))')
    assert full_text(error).startswith("ValueError: INTERNAL: bad\n\nat location")
    assert short(error) == "bad\nat /k/a.py:3"
    other = KeyError("a")
    other.__cause__ = ValueError("b")
    assert full_text(other) == "KeyError: 'a'"


def test_a_long_path_is_no_encoded_module():
    folder = "/tmp/" + "/".join(f"a_folder_with_a_long_name_{n}" for n in range(5))
    text = (
        f"Block spec for args[0] in pallas_call scale at {folder}/test_scale.py:7 has block shape"
    )
    assert "in pallas_call scale at test_scale.py:7 has" in short(text)
    module = "TUzvUgFNTElSMjQuMC4wZ2l0AAExCQEDBQcBAwkDHQsNDxETFRcZGx0fISMlA7mLGQF" * 3
    assert module not in short(f'"body": "{module}" is not valid')
