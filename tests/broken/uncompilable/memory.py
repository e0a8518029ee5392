"""More memory than a TPU has."""

from __future__ import annotations

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from uncompilable.common import TPUS, Case, Shape, X, double


def vmem_window(x):
    def copy_a_tile(x_ref, o_ref):  # more would keep the compiler busy before it refuses
        o_ref[:8, :128] = x_ref[:8, :128]

    return pl.pallas_call(copy_a_tile, out_shape=x)(x)


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


CASES = (
    Case(
        "vmem_window",
        vmem_window,
        (Shape((8192, 8192), jnp.float32),),
        "tpu",
        TPUS,
        ("256.0 MiB of VMEM, the chip has ", "window f32[8192,8192] of input 0 (x_ref)"),
    ),
    Case(
        "vmem_scratch",
        vmem_scratch,
        (X,),
        "tpu",
        TPUS,
        ("256.0 MiB of VMEM, the chip has ", "scratch operand f32[8192,8192] (large_ref)"),
    ),
    Case(
        "vmem_limit",
        vmem_limit,
        (Shape((1024, 1024), jnp.float32),),
        "tpu",
        TPUS,
        ("MiB of VMEM", "limit is 1.0 MiB", "x_ref f32[1024,1024] 4.0 MiB"),
    ),
    Case(
        "smem_window",
        smem_window,
        (Shape((1024, 1024), jnp.float32),),
        "tpu",
        TPUS,
        ("4.0 MiB of SMEM, the chip has 1.0 MiB", "input 0 (x_ref)"),
    ),
)
