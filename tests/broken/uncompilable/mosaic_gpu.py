"""GPUs, by Mosaic GPU."""

from __future__ import annotations

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from uncompilable.common import GPUS, Case, Shape


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


def tma(x):
    def copy_all(x_ref, o_ref, smem, barrier):
        plgpu.copy_gmem_to_smem(x_ref, smem, barrier)
        plgpu.barrier_wait(barrier)
        o_ref[...] = smem[...]

    scratch = [plgpu.SMEM((128, 128), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(copy_all, out_type=x, scratch_types=scratch)(x)


def wgmma():
    def hopper(o_ref, x_smem, y_smem):
        for smem in (x_smem, y_smem):
            smem[...] = jnp.ones((64, 64), jnp.float16)
        plgpu.commit_smem()

        def multiply(acc):
            plgpu.wgmma(acc, x_smem, y_smem)
            return acc[...]

        o_ref[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    smem = plgpu.SMEM((64, 64), jnp.float16, transforms=tiles)
    product = Shape((64, 64), jnp.float32)
    return plgpu.kernel(hopper, out_type=product, scratch_types=[smem, smem])()


#: The chips with a TMA.
TMA = GPUS[1:]

CASES = (
    Case(
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
    Case(
        "gpu_sort",
        gpu_sort,
        (Shape((128, 128), jnp.float32),),
        "gpu",
        GPUS,
        ("Mosaic GPU lowering: sort", "= jnp.sort(x_ref[...])"),
    ),
    Case(
        "tma_of_12_bytes",
        tma_of_12_bytes,
        (Shape((128, 128), jnp.float32),),
        "gpu",
        TMA,
        ("divisible by 128, but got 96", "smem f32[128,3] in SMEM", "def copy_columns("),
        silent=("a100",),
    ),
    Case(
        "tma_of_512_rows",
        tma_of_512_rows,
        (Shape((512, 64), jnp.float32),),
        "gpu",
        TMA,
        ("<=256 elements along each dimension, got (512, 64)", "def copy_rows("),
        silent=("a100",),
    ),
    Case(
        "tma",
        tma,
        (Shape((128, 128), jnp.float32),),
        "gpu",
        ("a100",),
        ("only supported Hopper and newer GPUs", "plgpu.copy_gmem_to_smem(x_ref, smem, barrier)"),
    ),
    Case("wgmma", wgmma, (), "gpu", ("a100", "b200"), ("kernel hopper",), aborts=("a100",)),
)
