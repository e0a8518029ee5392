"""GPUs, by Pallas' Triton route."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from uncompilable.common import GPUS, Case, Shape, add_itself, matmul, sort

CASES = (
    Case(
        "triton_smem",
        functools.partial(matmul, jnp.float32),
        (Shape((64, 512), jnp.bfloat16), Shape((512, 128), jnp.bfloat16)),
        "gpu",
        ("a100",),  # 163 KiB a block; the later ones have 227
        ("192.0 KiB of SMEM", "a block may use 163.0 KiB", "kernel dot"),
    ),
    Case(
        "triton_sort",
        sort,
        (Shape((128, 128), jnp.float32),),
        "gpu",
        GPUS,
        ("Triton lowering: sort", "= jnp.sort(x_ref[...])"),
    ),
    Case(
        "triton_size",
        add_itself,
        (Shape((100, 100), jnp.float32),),
        "gpu",
        GPUS,
        ("power of 2", "shape (100, 100)", "= x_ref[...] + x_ref[...]"),
    ),
    Case(
        "triton_complex",
        add_itself,
        (Shape((128, 128), jnp.complex64),),
        "gpu",
        GPUS,
        ("unsupported dtypes", "complex<f32>[128,128]", "= x_ref[...] + x_ref[...]"),
    ),
    Case(
        "triton_float8_add",
        add_itself,
        (Shape((128, 128), jnp.float8_e4m3fn),),
        "gpu",
        GPUS,
        ("x_ref f8_e4m3fn[128,128]", "kernel add"),
    ),
)
