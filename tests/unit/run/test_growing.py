"""Examples of a spec grow until what the simulator has not run has run: ``draw.growth``."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

import pytest_pallas
from pytest_pallas import KernelSpec, MismatchError, RaceError
from pytest_pallas import strategies as pst

ROWS, PROGRAMS = 8, 8


def unrolled(x, o, buffers, semaphores, *, slots, early):
    """A ring whose rounds Python unrolls."""
    steps = x.shape[0] // ROWS

    def copy(step):
        rows, slot = pl.ds(step * ROWS, ROWS), step % slots
        return pltpu.make_async_copy(x.at[rows], buffers.at[slot], semaphores.at[slot])

    for step in range(min(slots, steps)):
        copy(step).start()
    for step in range(steps):
        copy(step).wait()
        if early and step + slots < steps:
            copy(step + slots).start()
        o[pl.ds(step * ROWS, ROWS)] = buffers[step % slots] * 2
        if not early and step + slots < steps:
            copy(step + slots).start()


def looped(x, o, buffers, semaphores, *, slots, early):
    """A ring in a loop of the program."""
    steps = x.shape[0] // ROWS

    def copy(step):
        rows, slot = pl.ds(step * ROWS, ROWS), lax.rem(step, slots)
        return pltpu.make_async_copy(x.at[rows], buffers.at[slot], semaphores.at[slot])

    def refill(step):
        pl.when(step + slots < steps)(lambda: copy(step + slots).start())

    @pl.loop(0, min(slots, steps))
    def _(step):
        copy(step).start()

    @pl.loop(0, steps)
    def _(step):
        copy(step).wait()
        if early:
            refill(step)
        o[pl.ds(step * ROWS, ROWS)] = buffers[lax.rem(step, slots)] * 2
        if not early:
            refill(step)


def ring(body, slots, early, x):
    scratch = [pltpu.VMEM((slots, ROWS, x.shape[1]), x.dtype), pltpu.SemaphoreType.DMA((slots,))]
    return pl.pallas_call(
        functools.partial(body, slots=slots, early=early),
        out_shape=x,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=scratch,
    )(x)


def late(x):
    """A step that is wrong from the seventh block on."""

    def late_body(x, o):
        o[...] = x[...] * 2
        pl.when(pl.program_id(0) >= 6)(lambda: o.__setitem__(..., x[...] * 3))

    block = pl.BlockSpec((ROWS, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        late_body, out_shape=x, grid=(x.shape[0] // ROWS,), in_specs=[block], out_specs=block
    )(x)


def persistent(x):
    """Programs that take tiles in turns, and do not clear their sum for the second one."""

    def body(x, o, total):
        program = pl.program_id(0)
        tiles = x.shape[0] // ROWS
        total[...] = jnp.zeros_like(total)

        def add(turn, carry):
            rows = pl.ds((program + turn * PROGRAMS) * ROWS, ROWS)
            total[...] += x[rows] * 2
            o[rows] = total[...]
            return carry

        lax.fori_loop(0, (tiles - program + PROGRAMS - 1) // PROGRAMS, add, 0)

    scratch = [pltpu.VMEM((ROWS, x.shape[1]), x.dtype)]
    return pl.pallas_call(body, out_shape=x, grid=(PROGRAMS,), scratch_shapes=scratch)(x)


def gpu_ring(early, x, slots=4, rows=64):
    """A ring of shared memory, which TMA fills."""

    def body(x, o, shared, barriers):
        steps = x.shape[0] // rows

        def copy(step):
            slot = step % slots
            source = x.at[pl.ds(step * rows, rows)]
            plgpu.copy_gmem_to_smem(source, shared.at[slot], barriers.at[slot])

        for step in range(min(slots, steps)):
            copy(step)
        for step in range(steps):
            plgpu.barrier_wait(barriers.at[step % slots])
            if early and step + slots < steps:
                copy(step + slots)
            o[pl.ds(step * rows, rows)] = shared[step % slots] * 2
            if not early and step + slots < steps:
                plgpu.commit_smem()
                copy(step + slots)

    scratch = [
        plgpu.SMEM((slots, rows, x.shape[1]), x.dtype),
        plgpu.Barrier(num_barriers=slots),
    ]
    return plgpu.kernel(
        body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype), scratch_types=scratch
    )(x)


def verify(kernel, *, tile=ROWS, columns=128, inputs=None, **fields):
    if inputs is None:
        inputs = pst.arrays("m n", multiple_of={"m": tile}, dims={"n": columns}, dtype="float32")
    spec = KernelSpec(
        name="double", kernel=kernel, reference=lambda x: 2 * x, inputs=inputs, **fields
    )
    pytest_pallas.check(spec, checks="forward")


@pytest.mark.parametrize("slots", [3, 5, 8])
@pytest.mark.parametrize("body", [unrolled, looped])
def test_a_slot_that_is_refilled_too_early(body, slots):
    with pytest.raises(RaceError, match=rf"drawn     m={(slots + 1) * ROWS} n=128 "):
        verify(functools.partial(ring, body, slots, True))


@pytest.mark.parametrize("body", [unrolled, looped])
def test_a_ring_that_is_right(body):
    verify(functools.partial(ring, body, 4, False))


@pytest.mark.parametrize(("kernel", "rows"), [(late, 56), (persistent, 72)])
def test_what_many_blocks_only_show(kernel, rows):
    with pytest.raises(MismatchError, match=f"drawn     m={rows} n=128 "):
        verify(kernel)


def test_a_ring_of_a_gpu():
    with pytest.raises(RaceError, match="drawn     m=320 n=64 "):
        verify({"gpu": functools.partial(gpu_ring, True)}, tile=64, columns=64)
    verify({"gpu": functools.partial(gpu_ring, False)}, tile=64, columns=64)


@pytest.mark.parametrize(
    "m", [[8, 64], st.sampled_from([8, 64]), st.integers(1, 8).map(ROWS.__mul__)]
)
def test_sizes_of_the_user(m):
    with pytest.raises(MismatchError, match=r"m=(56|64) dtype"):
        verify(late, inputs=pst.arrays("m 128", dims={"m": m}, dtype="float32"))


@pytest.mark.parametrize("m", [[8, 16, 40], st.integers(1, 6).map(ROWS.__mul__)])
def test_the_domain_is_the_users(m):
    verify(late, inputs=pst.arrays("m 128", dims={"m": m}, dtype="float32"))


def test_nothing_grows_for_what_need_not_run():
    verify(late, unreached={"late_body true": "no caller has more than six blocks"})


def test_nothing_grows_where_the_number_of_examples_is_given():
    spec = KernelSpec(
        name="double",
        kernel=late,
        reference=lambda x: 2 * x,
        inputs=pst.arrays("m 128", multiple_of=ROWS, dtype="float32"),
    )
    pytest_pallas.check(spec, checks="forward", max_examples=4)


def refusing(x):
    if x.shape[0] > 4 * ROWS:
        raise ValueError("four blocks at most")
    return late(x)


def test_a_kernel_may_refuse_sizes_that_its_strategy_does_not_declare():
    verify(refusing)


def test_sizes_up_to_max_dim_are_declared():
    inputs = pst.arrays("m 128", multiple_of=ROWS, max_dim=64, dtype="float32")
    with pytest.raises(pytest_pallas.KernelError, match="four blocks at most"):
        verify(refusing, inputs=inputs)
