"""Small kernels that the unit tests share."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def add_one(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def add_one_by_rows(x, *, block=8, interpret=False):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    spec = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block),),
        in_specs=[spec],
        out_specs=spec,
        interpret=interpret,
    )(x)


def copy_by_dma(x):
    def body(x_ref, o_ref, sem):
        copy = pltpu.make_async_copy(x_ref, o_ref, sem)
        copy.start()
        copy.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(x)


def wait_for_nobody(x):
    def body(x_ref, o_ref, sem):
        pl.semaphore_wait(sem, 1)
        o_ref[...] = x_ref[...]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )(x)


def ask_again_and_again(x):
    """Asks for ever for something that does not change."""

    def body(x_ref, o_ref):
        def ask(_):
            o_ref[...] = x_ref[...]
            return x_ref[0, 0] - x_ref[0, 0]

        jax.lax.while_loop(lambda difference: difference == 0, ask, jnp.zeros((), x.dtype))

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def read_out_of_bounds(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(pl.program_id(0) + x.shape[0], 8)]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype), grid=(1,))(x)


def read_before_wait(x):
    def body(x_hbm, o_ref, buffer, sem):
        copy = pltpu.make_async_copy(x_hbm, buffer, sem)
        copy.start()
        o_ref[...] = buffer[...]
        copy.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


def no_kernel(x):
    return jnp.add(x, 1)


BUILT_TOO_EARLY = pl.pallas_call(
    lambda x_ref, o_ref: o_ref.__setitem__(..., x_ref[...]),
    out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
)
