"""Kernels that no compiler takes, or that some chips' compilers do not take, and why.

Interpreters run nearly all of them. Each is refused for its own reason only: with what the comment
in it names put right, it compiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

Shape = jax.ShapeDtypeStruct

TPUS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
GPUS = ("a100", "h100", "h200", "b200")


@dataclass(frozen=True)
class Uncompilable:
    """A kernel that compilers refuse.

    Attributes:
      name: what is wrong with it.
      function: calls the kernel.
      args: what to compile it for.
      platform: ``"tpu"`` or ``"gpu"``.
      refused: the chips for which it is refused; for the platform's others it compiles.
      words: what the short message must contain for each of them: the operand, the limit, the
        text of the line.
      aborts: those of ``refused`` for which the compiler ends its process instead of answering.
      silent: chips for which nothing is said: they lack the core that the kernel runs on.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[jax.ShapeDtypeStruct, ...]
    platform: str
    refused: tuple[str, ...]
    words: tuple[str, ...]
    aborts: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


X = Shape((8, 128), jnp.float32)


# --- Blocks ---------------------------------------------------------------------------------------


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def tile_8_48(x):
    spec = pl.BlockSpec((8, 48), lambda i, j: (i, j))  # 48 lanes are no multiple of 128
    return pl.pallas_call(double, out_shape=x, grid=(8, 10), in_specs=[spec], out_specs=spec)(x)


def half_tile_of_output(x):
    def first_lanes(x_ref, o_ref):
        o_ref[...] = x_ref[:, :48]

    return pl.pallas_call(
        first_lanes,
        out_shape=Shape((64, 96), x.dtype),
        grid=(8,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 48), lambda i: (i, 0)),
    )(x)


def block_1d(x):
    spec = pl.BlockSpec((100,), lambda i: (i,))
    return pl.pallas_call(double, out_shape=x, grid=(10,), in_specs=[spec], out_specs=spec)(x)


def element_window_unaligned(x):
    return pl.pallas_call(
        copy,
        out_shape=Shape((32, 128), x.dtype),
        grid=(4,),
        in_specs=[pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (i * 3, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    )(x)


def element_window_between_lanes(x):
    return pl.pallas_call(
        copy,
        out_shape=Shape((8, 512), x.dtype),
        grid=(4,),
        in_specs=[pl.BlockSpec((pl.Element(8), pl.Element(128)), lambda i: (0, i * 100))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, i)),
    )(x)


# --- Memory ---------------------------------------------------------------------------------------


def vmem_window(x):
    return pl.pallas_call(double, out_shape=x)(x)


def vmem_scratch(x):
    def through_scratch(x_ref, o_ref, large_ref):
        large_ref[:8, :128] = x_ref[...]
        o_ref[...] = large_ref[:8, :128]

    scratch = [pltpu.VMEM((8192, 8192), jnp.float32)]
    return pl.pallas_call(through_scratch, out_shape=x, scratch_shapes=scratch)(x)


def vmem_limit(x):
    params = pltpu.CompilerParams(vmem_limit_bytes=2**20)
    return pl.pallas_call(double, out_shape=x, compiler_params=params)(x)


def smem_window(x):
    def first(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref) + x_ref[0, 0]

    spec = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(first, out_shape=X, in_specs=[spec])(x)


# --- Operations that Mosaic does not lower --------------------------------------------------------


def sort(x):
    def sort_rows(x_ref, o_ref):
        o_ref[...] = jnp.sort(x_ref[...])

    return pl.pallas_call(sort_rows, out_shape=x)(x)


def sort_in_loop(x):
    def sort_again(x_ref, o_ref):
        def step(i, rows):
            return jnp.sort(rows) + i

        o_ref[...] = lax.fori_loop(0, 4, step, x_ref[...])

    return pl.pallas_call(sort_again, out_shape=x)(x)


def cumsum(x):
    def running(x_ref, o_ref):
        o_ref[...] = jnp.cumsum(x_ref[...], axis=-1)

    return pl.pallas_call(running, out_shape=x)(x)


def fft(x):
    def spectrum(x_ref, o_ref):
        o_ref[...] = jnp.abs(jnp.fft.fft(x_ref[...]))

    return pl.pallas_call(spectrum, out_shape=x)(x)


def dynamic_slice_of_value(start, x):
    def slice_it(start_ref, x_ref, o_ref):
        o_ref[...] = lax.dynamic_slice(x_ref[...], (0, start_ref[0]), (8, 128))

    return _with_start(slice_it)(start, x)


def reverse(x):
    def reverse_lanes(x_ref, o_ref):
        o_ref[...] = x_ref[...][:, ::-1]

    return pl.pallas_call(reverse_lanes, out_shape=x)(x)


def strided(x):
    def every_third(x_ref, o_ref):
        o_ref[...] = x_ref[...][:, ::3]

    return pl.pallas_call(every_third, out_shape=X)(x)


def float_iota(x):
    def add_positions(x_ref, o_ref):
        o_ref[...] = x_ref[...] + jnp.arange(128, dtype=jnp.float32)  # of integers it would do

    return pl.pallas_call(add_positions, out_shape=x)(x)


def odd_reshape(x):
    def reshape(x_ref, o_ref):
        o_ref[...] = x_ref[...].reshape(6, 20)

    return pl.pallas_call(reshape, out_shape=Shape((6, 20), x.dtype))(x)


def scan_of_rows(x):
    def scan(x_ref, o_ref):
        def step(total, row):
            return total + row, total

        o_ref[...] = lax.scan(step, jnp.zeros((128,), jnp.float32), x_ref[...])[1]

    return pl.pallas_call(scan, out_shape=x)(x)


def product(x):
    def multiply(x_ref, o_ref):
        o_ref[...] = jnp.prod(x_ref[...], axis=0, keepdims=True)

    return pl.pallas_call(multiply, out_shape=Shape((1, 128), x.dtype))(x)


# --- Places in memory -----------------------------------------------------------------------------


def _with_start(kernel):
    """A call of a kernel whose first operand is a scalar in SMEM."""
    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)]
    return pl.pallas_call(kernel, out_shape=X, in_specs=specs)


def lane_offset(start, x):
    def load(start_ref, x_ref, o_ref):
        o_ref[...] = x_ref[:, pl.ds(start_ref[0], 128)]  # pl.multiple_of(start, 128)

    return _with_start(load)(start, x)


def read_in_hbm(x):
    spec = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(double, out_shape=x, in_specs=[spec])(x)


def vector_in_smem(x):
    spec = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(double, out_shape=x, in_specs=[spec])(x)


def scalar_to_vmem(x):
    def store(x_ref, o_ref):
        o_ref[0, 0] = x_ref[0, 0]

    return pl.pallas_call(store, out_shape=x)(x)


def odd_dma(x):
    def dma(x_ref, o_ref, sem):
        window = x_ref.at[pl.ds(0, 3), pl.ds(5, 100)]
        pltpu.async_copy(window, o_ref.at[pl.ds(0, 3), pl.ds(0, 100)], sem).wait()

    return pl.pallas_call(
        dma,
        out_shape=x,
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(x)


def remote_dma_without_mesh(x):
    def send(x_ref, o_ref, sent, received):
        dma = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=(0,))
        dma.start()
        dma.wait()

    spec = pl.BlockSpec(memory_space=pltpu.HBM)
    sems = [pltpu.SemaphoreType.DMA] * 2
    return pl.pallas_call(send, out_shape=x, in_specs=[spec], out_specs=spec, scratch_shapes=sems)(
        x
    )


def barrier_without_collective_id(x):
    def meet(x_ref, o_ref):
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1)
        pl.semaphore_wait(barrier, 1)
        o_ref[...] = x_ref[...]

    return pl.pallas_call(meet, out_shape=x)(x)


# --- Dtypes ---------------------------------------------------------------------------------------


def dot(x_ref, y_ref, o_ref):
    o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=o_ref.dtype)


def matmul(dtype, x, y):
    return pl.pallas_call(dot, out_shape=Shape((x.shape[0], y.shape[1]), dtype))(x, y)


def add_itself(x):
    def add(x_ref, o_ref):
        o_ref[...] = x_ref[...] + x_ref[...]

    return pl.pallas_call(add, out_shape=x)(x)


def first_lane(x):
    def squeeze(x_ref, o_ref):
        o_ref[...] = x_ref[:, 0]

    return pl.pallas_call(squeeze, out_shape=Shape((8,), x.dtype))(x)


def cast_between_float8(x):
    def cast(x_ref, o_ref):
        o_ref[...] = x_ref[...].astype(jnp.float8_e5m2)

    return pl.pallas_call(cast, out_shape=Shape(x.shape, jnp.float8_e5m2))(x)


def _square(dtype):
    return (Shape((128, 128), dtype),) * 2


# --- SparseCore -----------------------------------------------------------------------------------


def _on_subcores(body, size, x):
    from jax.experimental.pallas import tpu_sc as plsc

    mesh = plsc.VectorSubcoreMesh(
        core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=16
    )
    return pl.kernel(body, out_type=x, mesh=mesh, scratch_types=[pltpu.VMEM((size,), jnp.float32)])(
        x
    )


def sparse_core_memory(x):
    def through_tile_memory(x_ref, o_ref, tile_ref):
        pltpu.sync_copy(x_ref, tile_ref.at[pl.ds(0, 1024)])
        pltpu.sync_copy(tile_ref.at[pl.ds(0, 1024)], o_ref)

    return _on_subcores(through_tile_memory, 2**20, x)


def sparse_core_dot(x):
    def multiply(x_ref, o_ref, v):
        pltpu.sync_copy(x_ref, v)
        v[pl.ds(0, 16)] = jnp.dot(v[pl.ds(0, 256)].reshape(16, 16), v[pl.ds(0, 16)])
        pltpu.sync_copy(v, o_ref)

    return _on_subcores(multiply, 1024, x)


# --- Mosaic GPU -----------------------------------------------------------------------------------


def gpu_smem(x):
    def through_smem(x_ref, o_ref, large_smem, barrier):
        plgpu.copy_gmem_to_smem(x_ref, large_smem.at[0], barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(large_smem.at[0], o_ref)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((4, 128, 128), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(through_smem, out_type=x, scratch_types=scratch)(x)


def gpu_sort(x):
    def sort_rows(x_ref, o_ref):
        o_ref[...] = jnp.sort(x_ref[...])

    return plgpu.kernel(sort_rows, out_type=x)(x)


def tma_of_12_bytes(x):
    def copy_columns(x_ref, o_ref, smem, barrier):
        plgpu.copy_gmem_to_smem(x_ref.at[:, pl.ds(0, 3)], smem, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(smem, o_ref)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((128, 3), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(copy_columns, out_type=Shape((128, 3), x.dtype), scratch_types=scratch)(x)


def tma_of_512_rows(x):
    def copy_rows(x_ref, o_ref, smem, barrier):
        plgpu.copy_gmem_to_smem(x_ref, smem, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(smem, o_ref)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((512, 64), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(copy_rows, out_type=x, scratch_types=scratch)(x)


def wgmma(x, y):
    def hopper(x_ref, y_ref, o_ref, x_smem, y_smem, barrier):
        plgpu.copy_gmem_to_smem(x_ref, x_smem, barrier)
        plgpu.copy_gmem_to_smem(y_ref, y_smem, barrier)
        plgpu.barrier_wait(barrier)

        def multiply(acc):
            plgpu.wgmma(acc, x_smem, y_smem)
            return acc[...]

        o_ref[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    smem = plgpu.SMEM((64, 64), jnp.float16, transforms=tiles)
    return plgpu.kernel(
        hopper,
        out_type=Shape((64, 64), jnp.float32),
        scratch_types=[smem, smem, plgpu.Barrier(num_arrivals=2)],
    )(x, y)


FLOAT8 = "f8E4M3FN[128,128]"
NO_SPARSE_CORE = ("v4", "v5e")
TILES = "last two dimensions of your block shape are divisible by 8 and 128"

UNCOMPILABLE: list[Uncompilable] = [
    Uncompilable(
        "tile_8_48",
        tile_8_48,
        (Shape((64, 480), jnp.float32),),
        "tpu",
        TPUS,
        ("args[0] (x_ref)", "block shape (8, 48)", TILES, "pl.pallas_call(double, out_shape=x"),
    ),
    Uncompilable(
        "half_tile_of_output",
        half_tile_of_output,
        (Shape((64, 128), jnp.float32),),
        "tpu",
        TPUS,
        ("outputs (o_ref)", "block shape (8, 48)", "array shape (64, 96)", TILES),
    ),
    Uncompilable(
        "block_1d",
        block_1d,
        (Shape((1000,), jnp.float32),),
        "tpu",
        TPUS,
        ("args[0] (x_ref)", "block shape (100,)", "rank 1 block shapes", "multiple of 1024"),
    ),
    Uncompilable(
        "element_window_unaligned",
        element_window_unaligned,
        (Shape((64, 128), jnp.float32),),
        "tpu",
        TPUS,
        ("input 0 (x_ref)", "tiling (8)", "on dimension 0", "return pl.pallas_call("),
    ),
    Uncompilable(
        "element_window_between_lanes",
        element_window_between_lanes,
        (Shape((8, 512), jnp.float32),),
        "tpu",
        TPUS,
        ("input 0 (x_ref)", "tiling (128)", "on dimension 1", "return pl.pallas_call("),
    ),
    Uncompilable(
        "vmem_window",
        vmem_window,
        (Shape((8192, 8192), jnp.float32),),
        "tpu",
        TPUS,
        ("256.0 MiB of VMEM, the chip has ", "window f32[8192,8192] of input 0 (x_ref)"),
    ),
    Uncompilable(
        "vmem_scratch",
        vmem_scratch,
        (X,),
        "tpu",
        TPUS,
        ("256.0 MiB of VMEM, the chip has ", "scratch operand f32[8192,8192] (large_ref)"),
    ),
    Uncompilable(
        "vmem_limit",
        vmem_limit,
        (Shape((1024, 1024), jnp.float32),),
        "tpu",
        TPUS,
        ("MiB of VMEM", "limit is 1.0 MiB", "x_ref f32[1024,1024] 4.0 MiB"),
    ),
    Uncompilable(
        "smem_window",
        smem_window,
        (Shape((1024, 1024), jnp.float32),),
        "tpu",
        TPUS,
        ("4.0 MiB of SMEM, the chip has 1.0 MiB", "input 0 (x_ref)"),
    ),
    Uncompilable("sort", sort, (X,), "tpu", TPUS, (": sort", "= jnp.sort(x_ref[...])")),
    Uncompilable(
        "sort_in_loop", sort_in_loop, (X,), "tpu", TPUS, (": sort", "return jnp.sort(rows) + i")
    ),
    Uncompilable("cumsum", cumsum, (X,), "tpu", TPUS, (": cumsum", "= jnp.cumsum(x_ref[...]")),
    Uncompilable("fft", fft, (X,), "tpu", TPUS, ("Invalid type", "jnp.fft.fft(x_ref[...])")),
    Uncompilable(
        "dynamic_slice_of_value",
        dynamic_slice_of_value,
        (Shape((1,), jnp.int32), Shape((8, 512), jnp.float32)),
        "tpu",
        TPUS,
        (": dynamic_slice", "lax.dynamic_slice(x_ref[...]"),
    ),
    Uncompilable("reverse", reverse, (X,), "tpu", TPUS, (": rev", "x_ref[...][:, ::-1]")),
    Uncompilable(
        "strided",
        strided,
        (Shape((8, 384), jnp.float32),),
        "tpu",
        TPUS,
        ("expected strides to be confined to [1, 2)", "(f32[8,384])", "x_ref[...][:, ::3]"),
    ),
    Uncompilable(
        "float_iota",
        float_iota,
        (X,),
        "tpu",
        TPUS,
        ("tpu.iota", "must be vector of integer", "jnp.arange(128, dtype=jnp.float32)"),
    ),
    Uncompilable(
        "odd_reshape",
        odd_reshape,
        (Shape((8, 15), jnp.float32),),
        "tpu",
        TPUS,
        ("unsupported shape cast", "tpu.reshape(f32[8,15]) -> f32[6,20]", ".reshape(6, 20)"),
    ),
    Uncompilable(
        "scan_of_rows", scan_of_rows, (X,), "tpu", TPUS, ("extensive output", "lax.scan(step")
    ),
    Uncompilable("product", product, (X,), "tpu", TPUS, (": reduce_prod", "jnp.prod(x_ref[...]")),
    Uncompilable(
        "lane_offset",
        lane_offset,
        (Shape((1,), jnp.int32), Shape((8, 512), jnp.float32)),
        "tpu",
        TPUS,
        (
            "cannot statically prove that index in dimension 1 is a multiple of 128",
            "f32[8,512] in VMEM",
            "x_ref[:, pl.ds(start_ref[0], 128)]",
        ),
    ),
    Uncompilable(
        "read_in_hbm",
        read_in_hbm,
        (X,),
        "tpu",
        TPUS,
        ("only allowed on VMEM and SMEM", "x_ref f32[8,128] in HBM", "= x_ref[...] * 2"),
    ),
    Uncompilable(
        "vector_in_smem",
        vector_in_smem,
        (X,),
        "tpu",
        TPUS,
        ("Can only load scalars from SMEM", "x_ref f32[8,128] in SMEM", "= x_ref[...] * 2"),
    ),
    Uncompilable(
        "scalar_to_vmem",
        scalar_to_vmem,
        (X,),
        "tpu",
        TPUS,
        ("Cannot store scalars to VMEM", "o_ref[0, 0] = x_ref[0, 0]"),
    ),
    Uncompilable(
        "odd_dma",
        odd_dma,
        (X,),
        "tpu",
        TPUS,
        ("not a multiple of the memory space word size", "pltpu.async_copy(window"),
    ),
    Uncompilable(
        "remote_dma_without_mesh",
        remote_dma_without_mesh,
        (X,),
        "tpu",
        TPUS,
        ("got 1 ids for a 0D mesh", "kernel send", "dma.start()"),
    ),
    Uncompilable(
        "barrier_without_collective_id",
        barrier_without_collective_id,
        (X,),
        "tpu",
        TPUS,
        ("collective_id has to be specified", "kernel meet"),
    ),
    Uncompilable(
        "float8_matmul",
        functools.partial(matmul, jnp.float32),
        _square(jnp.float8_e4m3fn),
        "tpu",
        ("v4",),
        ("Unsupported matmul RHS type on target", FLOAT8, "tpu.matmul", "jnp.dot(x_ref[...]"),
    ),
    Uncompilable(
        "int8_matmul",
        functools.partial(matmul, jnp.int32),
        _square(jnp.int8),
        "tpu",
        ("v4",),
        ("Unsupported matmul RHS type on target", "i8[128,128]", "jnp.dot(x_ref[...]"),
    ),
    Uncompilable(
        "float8_b11_matmul",
        functools.partial(matmul, jnp.float32),
        _square(jnp.float8_e4m3b11fnuz),
        "tpu",
        ("v4", "tpu7x"),  # it was the float8 of the generations between
        ("f8E4M3B11FNUZ[", "tpu.matmul", "jnp.dot(x_ref[...]"),
    ),
    Uncompilable(
        "float16_matmul",
        functools.partial(matmul, jnp.float32),
        _square(jnp.float16),
        "tpu",
        TPUS,
        ("f16[128,128] in VMEM", "jnp.dot(x_ref[...]"),
    ),
    Uncompilable(
        "int8_add",
        add_itself,
        (Shape((64, 256), jnp.int8),),
        "tpu",
        TPUS,
        ("Only i16 and i32 are supported, but got 'i8'", "= x_ref[...] + x_ref[...]"),
    ),
    Uncompilable(
        "complex",
        add_itself,
        (Shape((8, 128), jnp.complex64),),
        "tpu",
        TPUS,
        ("Invalid type", "x_ref c64[8,128]", "= x_ref[...] + x_ref[...]"),
    ),
    Uncompilable(
        "cast_between_float8",
        cast_between_float8,
        (Shape((32, 128), jnp.float8_e4m3fn),),
        "tpu",
        TPUS,
        ("Unsupported cast: float8_e4m3fn -> float8_e5m2", ".astype(jnp.float8_e5m2)"),
    ),
    Uncompilable(
        "first_lane",
        first_lane,
        (X,),
        "tpu",
        ("v4",),
        ("Sublane gather not supported by this TPU generation", "x_ref[:, 0]"),
    ),
    Uncompilable(
        "sparse_core_memory",
        sparse_core_memory,
        (Shape((1024,), jnp.float32),),
        "tpu",
        ("v5p", "v6e", "tpu7x"),
        ("64.0 MiB of SPMEM", "may use ", "tile_ref f32[1048576]"),
        silent=NO_SPARSE_CORE,
    ),
    Uncompilable(
        "sparse_core_dot",
        sparse_core_dot,
        (Shape((1024,), jnp.float32),),
        "tpu",
        ("v5p", "v6e", "tpu7x"),
        ("sc_vector_subcore: dot_general", "jnp.dot(v[pl.ds(0, 256)]"),
        silent=NO_SPARSE_CORE,
    ),
    Uncompilable(
        "gpu_smem",
        gpu_smem,
        (Shape((128, 128), jnp.float32),),
        "gpu",
        GPUS,
        (
            "256.0 KiB of SMEM",
            "a block may use ",
            "large_smem f32[4,128,128] in SMEM 256.0 KiB",
            "def through_smem(",
        ),
    ),
    Uncompilable(
        "triton_smem",
        functools.partial(matmul, jnp.float32),
        (Shape((64, 512), jnp.bfloat16), Shape((512, 128), jnp.bfloat16)),
        "gpu",
        ("a100",),  # 163 KiB a block; the later ones have 227
        ("192.0 KiB of SMEM", "a block may use 163.0 KiB", "kernel dot"),
    ),
    Uncompilable(
        "gpu_sort",
        gpu_sort,
        (Shape((128, 128), jnp.float32),),
        "gpu",
        GPUS,
        ("Mosaic GPU lowering: sort", "= jnp.sort(x_ref[...])"),
    ),
    Uncompilable(
        "triton_sort",
        sort,
        (Shape((128, 128), jnp.float32),),
        "gpu",
        GPUS,
        ("Triton lowering: sort", "= jnp.sort(x_ref[...])"),
    ),
    Uncompilable(
        "triton_size",
        add_itself,
        (Shape((100, 100), jnp.float32),),
        "gpu",
        GPUS,
        ("power of 2", "shape (100, 100)", "= x_ref[...] + x_ref[...]"),
    ),
    Uncompilable(
        "triton_complex",
        add_itself,
        (Shape((128, 128), jnp.complex64),),
        "gpu",
        GPUS,
        ("unsupported dtypes", "complex<f32>[128,128]", "= x_ref[...] + x_ref[...]"),
    ),
    Uncompilable(
        "triton_float8_add",
        add_itself,
        (Shape((128, 128), jnp.float8_e4m3fn),),
        "gpu",
        GPUS,
        ("x_ref f8_e4m3fn[128,128]", "kernel add"),
    ),
    Uncompilable(
        "tma_of_12_bytes",
        tma_of_12_bytes,
        (Shape((128, 128), jnp.float32),),
        "gpu",
        GPUS,
        ("divisible by 128, but got 96", "smem f32[128,3] in SMEM", "def copy_columns("),
    ),
    Uncompilable(
        "tma_of_512_rows",
        tma_of_512_rows,
        (Shape((512, 64), jnp.float32),),
        "gpu",
        GPUS,
        ("<=256 elements along each dimension, got (512, 64)", "def copy_rows("),
    ),
    Uncompilable(
        "wgmma",
        wgmma,
        (Shape((64, 64), jnp.float16), Shape((64, 64), jnp.float16)),
        "gpu",
        ("a100", "b200"),
        ("kernel hopper",),
        aborts=("a100",),
    ),
]

NAMES = tuple(each.name for each in UNCOMPILABLE)
assert len(set(NAMES)) == len(NAMES)
