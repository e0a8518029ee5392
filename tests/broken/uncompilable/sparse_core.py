"""The SparseCore."""

from __future__ import annotations

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from uncompilable.common import Case, Shape


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


NO_SPARSE_CORE = ("v4", "v5e")

CASES = (
    Case(
        "sparse_core_memory",
        sparse_core_memory,
        (Shape((1024,), jnp.float32),),
        "tpu",
        ("v5p", "v6e", "tpu7x"),
        ("64.0 MiB of SPMEM", "may use ", "tile_ref f32[1048576]"),
        silent=NO_SPARSE_CORE,
    ),
    Case(
        "sparse_core_dot",
        sparse_core_dot,
        (Shape((1024,), jnp.float32),),
        "tpu",
        ("v5p", "v6e", "tpu7x"),
        ("sc_vector_subcore: dot_general", "jnp.dot(v[pl.ds(0, 256)]"),
        silent=NO_SPARSE_CORE,
    ),
)
