"""``sanitizers.memory``: kernels that read what nobody has written, or where nothing is."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt

from pallas_sim.errors import BoundsError, KernelError
from pytest_pallas import MismatchError
from pytest_pallas.backends.simulators import gpu_sim, tpu_sim
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.memory import memory
from pytest_pallas.draw.arguments import Arguments

X = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32)


def ask(kernel, backend, *args):
    arguments = Arguments(args or (X,))
    return memory(CheckContext(kernel=kernel, reference=None, arguments=arguments, backend=backend))


@pytest.fixture
def backend():
    return tpu_sim()


def in_blocks(body, x, *, grid=None, out_map=lambda i: (i, 0), dtype=None, scratch=()):
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, dtype or x.dtype),
        grid=grid or (x.shape[0] // 8,),
        in_specs=[spec],
        out_specs=pl.BlockSpec((8, 128), out_map),
        scratch_shapes=scratch,
    )(x)


def test_a_kernel_that_writes_before_it_reads(backend):
    def kernel(x):
        def body(x_ref, o_ref, scratch):
            scratch[...] = x_ref[...]
            o_ref[...] = 2 * scratch[...]

        return in_blocks(body, x, scratch=[pltpu.VMEM((8, 128), x.dtype)])

    finding = ask(kernel, backend)
    assert finding.failed is None
    assert len(finding.comparisons) == 3


def test_scratch_that_hides_from_the_answer(backend):
    """NaN is never greater, so that the first run gives the right numbers."""

    def kernel(x):
        def body(x_ref, o_ref, scratch):
            low = scratch[...]
            o_ref[...] = jnp.where(low > x_ref[...], low, x_ref[...])

        return in_blocks(body, x, scratch=[pltpu.VMEM((8, 128), x.dtype)])

    with pytest.raises(MismatchError) as raised:
        ask(kernel, backend)
    text = str(raised.value)
    assert re.search(r"body \(.*test_memory\.py:\d+\) reads scratch memory", text)
    assert (
        "  read      load from scratch [8, 128] before it is written in program (0) of body" in text
    )


def test_memory_of_the_body(backend):
    def kernel(x):
        def body(x_ref, o_ref):
            def inner(ref):
                o_ref[...] = jnp.maximum(x_ref[...], jnp.where(ref[...] > 0, ref[...], 0))

            pl.run_scoped(inner, pltpu.VMEM((8, 128), x.dtype))

        return in_blocks(body, x)

    with pytest.raises(MismatchError, match="reads scratch memory before it writes it"):
        ask(kernel, backend)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.bool, jnp.float32, jnp.int32, jnp.uint8])
def test_blocks_that_nobody_writes_are_named(backend, dtype):
    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[...] = (x_ref[...] > 0).astype(dtype)

        return in_blocks(body, x, grid=(3,), dtype=dtype)

    x = np.concatenate([X, X, X])[:40]
    with pytest.raises(MismatchError) as raised:
        ask(kernel, backend, x)
    text = str(raised.value)
    assert "output 0 (o_ref) of body: 2048 of 5120 elements were never written" in text
    assert "in 2 of 5 blocks: block (3, 0), block (4, 0) (" in text


def test_a_part_of_a_block(backend):
    """Integers, of which none looks wrong."""

    def kernel(x):
        def body(x_ref, o_ref):
            @pl.when(pl.program_id(0) == 0)
            def _():
                o_ref[...] = x_ref[...]

            o_ref[0:6, 3:] = x_ref[0:6, 3:]

        return in_blocks(body, x)

    with pytest.raises(MismatchError) as raised:
        ask(kernel, backend, X.astype(np.int32))
    box = "elements of [0:8, 0:128]"
    count = 8 * 128 - 6 * 125
    assert f"{count} of 2048 elements were never written" in str(raised.value)
    assert f"in 1 of 2 blocks: in block (1, 0) {count} {box}" in str(raised.value)


def test_what_was_written_is_right_although_it_is_nan(backend):
    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[...] = jnp.log(x_ref[...])

        return in_blocks(body, x)

    finding = ask(kernel, backend)
    assert np.isnan(finding.outcome.values).any()
    assert finding.failed is None


def test_what_is_not_returned_need_not_be_written(backend):
    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[0:4] = x_ref[0:4]

        return in_blocks(body, x)[:4]

    assert ask(kernel, backend).failed is None


def test_an_output_that_is_read_first(backend):
    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...] + jnp.where(o_ref[...] > 0, 1, 0)

        return in_blocks(body, x)

    with pytest.raises(MismatchError, match="reads an output before it writes it"):
        ask(kernel, backend)


def test_a_block_that_is_visited_again(backend):
    """The sum over the outer dimension, of which each step leaves the block it adds to."""

    def kernel(x):
        def body(x_ref, o_ref):
            @pl.when(pl.program_id(0) == 0)
            def _():
                o_ref[...] = jnp.zeros_like(o_ref)

            o_ref[...] = jnp.where(o_ref[...] > 5, 5, x_ref[...])

        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(2, 2),
            in_specs=[pl.BlockSpec((8, 128), lambda i, j: (j, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, j: (j, 0)),
        )(x)

    with pytest.raises(MismatchError, match="reads an output before it writes it") as raised:
        ask(kernel, backend)
    text = str(raised.value)
    assert "load from o_ref [8, 128] of a block that the grid visits again" in text
    assert "in program (1, 0) of body" in text
    assert [finding.kind for finding in raised.value.findings] == ["uninitialized"]


@pytest.mark.parametrize("how", ["added", "copied"])
def test_memory_that_is_read_otherwise(backend, how):
    """By a copy, which somebody else loads then, and by an update that adds to it."""

    def kernel(x):
        def copied(x_ref, o_ref, scratch, other, semaphore):
            pltpu.async_copy(scratch, other, semaphore).wait()
            o_ref[...] = jnp.where(other[...] > 100, 1, x_ref[...])

        def added(x_ref, o_ref):
            def scope(scratch):
                jax.ref.addupdate(scratch, slice(0, 4), x_ref[:4])
                o_ref[...] = x_ref[...]
                o_ref[:4] = jnp.where(scratch[:4] > 100, 1, x_ref[:4])

            pl.run_scoped(scope, vmem)

        vmem = pltpu.VMEM((8, 128), x.dtype)
        if how == "added":
            return in_blocks(added, x)
        return in_blocks(copied, x, scratch=[vmem, vmem, pltpu.SemaphoreType.DMA])

    with pytest.raises(MismatchError, match="reads scratch memory") as raised:
        ask(kernel, backend)
    line = {"added": "load", "copied": "copy"}[how]
    assert f"{line} from scratch [8, 128] before it is written in program (0)" in str(raised.value)


def test_a_block_of_before_is_not_this_block(backend):
    """The window of the block still holds the last one, which is finite."""

    def kernel(x):
        def body(x_ref, o_ref):
            @pl.when(pl.program_id(0) == 0)
            def _():
                o_ref[...] = x_ref[...]

        return in_blocks(body, x)

    with pytest.raises(MismatchError, match=r"block \(1, 0\)"):
        ask(kernel, backend)


def plgpu_kernel(body, x):
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[plgpu.SMEM((8, 128), x.dtype)],
    )(x)


def test_uninitialized_shared_memory_of_mosaic_gpu_is_found():
    def half(x):
        def body(x_ref, o_ref, smem):
            smem[...] = x_ref[0:8]
            o_ref[0:8] = smem[...]

        return plgpu_kernel(body, x)

    def unread(x):
        def body(x_ref, o_ref, smem):
            o_ref[0:8] = smem[...]
            o_ref[8:16] = x_ref[8:16]

        return plgpu_kernel(body, x)

    def beyond(x):
        def body(x_ref, o_ref, smem):
            smem[...] = x_ref[pl.ds((x_ref[0, 0] > 5).astype(jnp.int32) + 9, 8)]
            o_ref[...] = x_ref[...]

        return plgpu_kernel(body, x)

    with pytest.raises(MismatchError, match=r"1024 of 2048 elements .* \[8:16, 0:128\]"):
        ask(half, gpu_sim())
    with pytest.raises(MismatchError, match="reads scratch memory before it writes it"):
        ask(unread, gpu_sim())
    place = r"load from x_ref \[16, 128\] beyond its edge: indices 9 to 16 .*test_memory\.py:\d+"
    with pytest.raises(BoundsError, match=place):
        ask(beyond, gpu_sim())


def loads(x):
    def body(x_ref, o_ref):
        def add(i, total):
            return total + x_ref[pl.ds(4 * i, 4), :]

        total = jax.lax.fori_loop(0, 4, add, jnp.zeros((4, 128), x.dtype))
        o_ref[...] = x_ref[...] + 0 * total.sum()

    return in_blocks(body, x)


def stores(x):
    def body(x_ref, o_ref, scratch):
        scratch[pl.program_id(0) + 7] = x_ref[0]
        o_ref[...] = x_ref[...]

    return in_blocks(body, x, scratch=[pltpu.VMEM((8, 128), x.dtype)])


def copies(x):
    def body(x_ref, o_ref, semaphore):
        start = 8 * pl.program_id(0)
        pltpu.async_copy(x_ref.at[pl.ds(start + 1, 8)], o_ref.at[pl.ds(start, 8)], semaphore).wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(2,),
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(x)


def synchronous(x):
    """The copy is composed by JAX, and no frame of it is the user's."""

    def body(x_ref, o_ref, buffer):
        @pl.loop(0, 3)
        def _(i):
            pltpu.sync_copy(x_ref.at[pl.ds(8 * i, 8)], buffer)

        o_ref[...] = buffer[...]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((8, 128), x.dtype)],
    )(x)


def scopes(x):
    def body(x_ref, o_ref):
        start = pl.program_id(0)

        def inner(ref):
            ref[pl.ds(start, 2)] = x_ref[0:2]
            o_ref[...] = x_ref[...] + 0 * ref[...].sum()

        pl.run_scoped(inner, pltpu.VMEM((2, 128), x.dtype))

    return in_blocks(body, x)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (copies, r"copy from x_ref \[16, 128\] beyond its edge: indices 9 to 16 of axis 0"),
        (synchronous, r"copy from x_ref \[16, 128\] beyond its edge: indices 16 to 23 of axis 0"),
        (loads, r"load from x_ref \[8, 128\] beyond its edge: indices 8 to 11 of axis 0"),
        (scopes, r"store to ref \[2, 128\] beyond its edge: indices 1 to 2 of axis 0"),
        (stores, r"store to scratch \[8, 128\] beyond its edge: index 8 of axis 0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_accesses_out_of_bounds(kernel, said):
    with pytest.raises(BoundsError, match=said) as raised:
        ask(kernel, tpu_sim())
    assert "test_memory.py:" in str(raised.value)


@pytest.mark.parametrize("extra", [0, 1])
def test_masked_accesses_beyond_the_end(backend, extra):
    """Of blocks that reach beyond the end, with masks that end where the array does, or later."""

    def kernel(x):
        n = x.shape[0]

        def body(x_ref, o_ref):
            indices = 8 * pl.program_id(0) + jnp.arange(8)
            mask = indices < n + extra
            value = plt.load(x_ref.at[pl.ds(8 * pl.program_id(0), 8)], mask=mask, other=0)
            value += plt.load(x_ref.at[indices], mask=mask, other=0)
            plt.store(o_ref.at[indices], value, mask=mask)

        return pl.pallas_call(body, jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(2,))(x)

    x = X[0, :11]
    if not extra:
        assert ask(kernel, backend, x).failed is None
        return
    with pytest.raises(BoundsError, match=r"test_memory\.py:"):
        ask(kernel, backend, x)


def test_what_does_not_run_is_not_out_of_bounds(backend):
    def kernel(x):
        def body(x_ref, o_ref):
            start = 8 * pl.program_id(0)

            @pl.when(start + 8 <= 8)
            def _():
                o_ref[...] = x_ref[pl.ds(start, 8), :]

            @pl.when(start > 0)
            def _():
                o_ref[...] = -x_ref[...]

        return in_blocks(body, x)

    assert ask(kernel, backend).failed is None


def test_what_a_fill_makes_of_a_kernel(backend):
    """A row that scratch names: with one fill there is none."""

    def kernel(x):
        def body(x_ref, o_ref, i_ref):
            row = jnp.where(i_ref[0] == 0, 99, 0)
            o_ref[...] = x_ref[pl.ds(row, 1), :]

        shape = jax.ShapeDtypeStruct((1, 128), x.dtype)
        scratch = [pltpu.SMEM((1,), jnp.int32)]
        return pl.pallas_call(body, out_shape=shape, scratch_shapes=scratch)(x)

    with pytest.raises((KernelError, MismatchError)) as raised:
        ask(kernel, backend)
    assert "0 (for bools, False)" in str(raised.value)
