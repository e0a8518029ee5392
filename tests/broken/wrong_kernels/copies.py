"""DMAs: a buffer that is read before the copy has arrived."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .accumulation import twice
from .naive import agrees

_ANY = pl.BlockSpec(memory_space=pl.ANY)


def read_before_wait(x: jax.Array) -> jax.Array:
    """The wait is after the read; where copies are done at once, nobody sees it."""

    def body(x_ref: Any, o_ref: Any, buffer: Any, semaphore: Any) -> None:
        load = pltpu.make_async_copy(x_ref, buffer, semaphore)
        load.start()
        o_ref[...] = 2 * buffer[...]
        load.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[_ANY],
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


SPEC_READ_BEFORE_WAIT = KernelSpec(
    name="read_before_wait",
    kernel=read_before_wait,
    reference=twice,
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [8, 16], "n": [4, 128]}),
    exact=True,
    checks=("forward",),
)


def naive_read_before_wait() -> None:
    agrees(read_before_wait, twice)


def _add(x: jax.Array, y: jax.Array, first: int) -> jax.Array:
    """``x + y`` by two copies that signal one semaphore; ``first`` is the one waited for first."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any, x_buffer: Any, y_buffer: Any, shared: Any) -> None:
        buffers = (x_buffer, y_buffer)
        loads = [
            pltpu.make_async_copy(ref, buffer, shared)
            for ref, buffer in zip((x_ref, y_ref), buffers, strict=True)
        ]
        for load in loads:
            load.start()
        loads[first].wait()
        o_ref[...] = buffers[first][...]
        loads[1 - first].wait()
        o_ref[...] += buffers[1 - first][...]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[_ANY, _ANY],
        scratch_shapes=[
            pltpu.VMEM(x.shape, x.dtype),
            pltpu.VMEM(x.shape, x.dtype),
            pltpu.SemaphoreType.DMA,
        ],
    )(x, y)


def shared_semaphore(x: jax.Array, y: jax.Array) -> jax.Array:
    """The wait for ``x`` is answered by whichever copy is done first; ``x`` is read after it."""
    return _add(x, y, 0)


def shared_semaphore_last_first(x: jax.Array, y: jax.Array) -> jax.Array:
    """The same with the wait for ``y`` first, which is the order that the interpreter takes."""
    return _add(x, y, 1)


_PAIRS = pst.arrays("m n, m n", dtype="float32", dims={"m": [8, 16], "n": [4, 128]})

SPEC_SHARED_SEMAPHORE = KernelSpec(
    name="shared_semaphore",
    kernel=shared_semaphore,
    reference=jnp.add,
    inputs=_PAIRS,
    exact=True,
    checks=("forward",),
)

SPEC_SHARED_SEMAPHORE_LAST_FIRST = KernelSpec(
    name="shared_semaphore_last_first",
    kernel=shared_semaphore_last_first,
    reference=jnp.add,
    inputs=_PAIRS,
    exact=True,
    checks=("forward", "races"),
)


def naive_shared_semaphore() -> None:
    agrees(shared_semaphore, jnp.add, count=2)


def naive_shared_semaphore_last_first() -> None:
    agrees(shared_semaphore_last_first, jnp.add, count=2)
