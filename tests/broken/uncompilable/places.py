"""Places in a TPU's memory where that cannot be done."""

from __future__ import annotations

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from uncompilable.common import TPUS, Case, Shape, X, double, with_start


def lane_offset(start, x):
    def load(start_ref, x_ref, o_ref):
        o_ref[...] = x_ref[:, pl.ds(start_ref[0], 128)]  # pl.multiple_of(start, 128)

    return with_start(load)(start, x)


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


CASES = (
    Case(
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
    Case(
        "read_in_hbm",
        read_in_hbm,
        (X,),
        "tpu",
        TPUS,
        ("only allowed on VMEM and SMEM", "x_ref f32[8,128] in HBM", "= x_ref[...] * 2"),
    ),
    Case(
        "vector_in_smem",
        vector_in_smem,
        (X,),
        "tpu",
        TPUS,
        ("Can only load scalars from SMEM", "x_ref f32[8,128] in SMEM", "= x_ref[...] * 2"),
    ),
    Case(
        "scalar_to_vmem",
        scalar_to_vmem,
        (X,),
        "tpu",
        TPUS,
        ("Cannot store scalars to VMEM", "o_ref[0, 0] = x_ref[0, 0]"),
    ),
    Case(
        "odd_dma",
        odd_dma,
        (X,),
        "tpu",
        TPUS,
        ("not a multiple of the memory space word size", "pltpu.async_copy(window"),
    ),
    Case(
        "remote_dma_without_mesh",
        remote_dma_without_mesh,
        (X,),
        "tpu",
        TPUS,
        ("got 1 ids for a 0D mesh", "kernel send", "dma.start()"),
    ),
    Case(
        "barrier_without_collective_id",
        barrier_without_collective_id,
        (X,),
        "tpu",
        TPUS,
        ("collective_id has to be specified", "kernel meet"),
    ),
)
