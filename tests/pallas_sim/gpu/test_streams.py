"""Kernels that begin before the one ahead of them has ended."""

from __future__ import annotations

import functools
import linecache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate

X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
SHAPE = jax.ShapeDtypeStruct(X.shape, X.dtype)


def in_rows(body: Any, **options: Any) -> Any:
    """A kernel of two blocks of eight rows, whose body gets the slice of its own."""

    def rows(*refs):
        body(pl.ds(lax.axis_index("i") * 8, 8), *refs)

    return plgpu.kernel(rows, out_type=SHAPE, grid=(2,), grid_names=("i",), **options)


def add_one(*, signals: bool = True, **options: Any) -> Any:
    def body(here, x, o):
        if signals:  # the last write comes later
            plgpu.griddepcontrol_launch_dependents()
        o[here] = x[here] + 1

    return in_rows(body, **options)


def double(wait: str = "first", *, signal: str = "") -> Any:
    def body(here, x, o):
        if signal == "first":
            plgpu.griddepcontrol_launch_dependents()
        if wait == "first":
            plgpu.griddepcontrol_wait()
        value = x[here]
        if wait == "late":
            plgpu.griddepcontrol_wait()
        o[here] = value * 2
        if signal == "last":
            plgpu.griddepcontrol_launch_dependents()

    return in_rows(body)


def _source(line: str) -> str:
    return linecache.getline(__file__, int(line.rpartition(":")[2])).strip()


def found_in(function: Any, *args: Any, seed: int = 0, **options: Any) -> Any:
    return simulate(function, *args, target="h100", seed=seed, **options)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("signals", [False, True])
def test_what_is_read_after_the_wait_is_there(seed, signals):
    found = found_in(lambda x: double()(add_one(signals=signals)(x)), X, seed=seed)
    assert not found.findings
    np.testing.assert_array_equal(found.values, (X + 1) * 2)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("signals", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_what_is_read_before_the_wait_is_a_race_with_the_kernel_ahead(seed, signals, jit):
    function = lambda x: double("late")(add_one(signals=signals)(x))  # noqa: E731
    found = found_in(function, X, seed=seed, jit=jit)
    (finding,) = found.findings
    assert finding.kind == "race"
    assert "griddepcontrol_wait() before" in finding.message
    reads, writes = finding.accesses
    assert (reads.kind, writes.kind) == ("read", "write")
    assert _source(reads.line) == "value = x[here]"
    assert _source(writes.line) == "o[here] = x[here] + 1"
    assert writes.program == reads.program
    assert reads.index == writes.index


def test_a_kernel_that_never_waits_is_launched_when_the_one_ahead_has_ended():
    assert not found_in(lambda x: double("never")(add_one()(x)), X).findings


@pytest.mark.parametrize("ahead", [jnp.square, lambda x: add_one()(x)[::-1]])
def test_what_no_kernel_of_pallas_wrote_may_be_read(ahead):
    assert not found_in(lambda x: double("late")(ahead(x)), X).findings


def test_arguments_of_the_program_may_be_read():
    def body(here, x, y, o):
        weights = y[here]
        plgpu.griddepcontrol_wait()
        o[here] = x[here] * weights

    assert not found_in(lambda x, y: in_rows(body)(add_one()(x), y), X, X).findings
    assert found_in(lambda x, y: in_rows(body)(x, add_one()(y)), X, X).findings


@pytest.mark.parametrize("elements", ["others", "the same"])
def test_only_elements_that_were_written_count(elements):
    def half(x, o):
        del x
        o[pl.ds(0, 8)] = jnp.zeros((8, 128), jnp.float32)

    def body(x, o):
        part = x[pl.ds(8 if elements == "others" else 0, 8)]
        plgpu.griddepcontrol_wait()
        o[pl.ds(0, 8)] = part
        o[pl.ds(8, 8)] = part

    make = functools.partial(plgpu.kernel, out_type=SHAPE)
    found = found_in(lambda x: make(body)(make(half)(x)), X)
    assert bool(found.findings) == (elements == "the same")


@pytest.mark.parametrize("by", ["tma", "thread"])
@pytest.mark.parametrize("passed_on", [False, True])
def test_other_threads_know_of_a_wait_by_what_orders_them(by, passed_on):
    def body(x, o, buffer, arrived, waited):
        warpgroup = lax.axis_index("warpgroup")

        @pl.when(warpgroup == 0)
        def _waits():
            plgpu.griddepcontrol_wait()
            plgpu.barrier_arrive(waited)

        @pl.when(warpgroup == 1)
        def _reads():
            if passed_on:
                plgpu.barrier_wait(waited)
            if by == "tma":
                plgpu.copy_gmem_to_smem(x, buffer, arrived)
                plgpu.barrier_wait(arrived)
                value = buffer[...]
            else:
                value = x[...]
            if not passed_on:
                plgpu.barrier_wait(waited)
            o[...] = value

    kernel = plgpu.kernel(
        body,
        out_type=SHAPE,
        scratch_types=[plgpu.SMEM(X.shape, X.dtype), plgpu.Barrier(), plgpu.Barrier()],
        num_threads=2,
        thread_name="warpgroup",
    )
    found = found_in(lambda x: kernel(add_one()(x)), X)
    assert [each.kind for each in found.findings] == ([] if passed_on else ["race"])
    if not passed_on:
        assert found.findings[0].accesses[0].by == ("the TMA copy" if by == "tma" else "")


@pytest.mark.parametrize("signal", ["first", "last", ""])
def test_a_kernel_in_between_may_begin_and_end_before_the_first_has_ended(signal):
    """Only one that signals before it waits lets the third begin beside the first."""

    def body(here, x, y, o):
        value = x[here]
        plgpu.griddepcontrol_wait()
        o[here] = value + y[here]

    def three(x):
        first = add_one()(x)
        second = double(signal=signal)(first)
        return in_rows(body)(first, second)

    assert bool(found_in(three, X).findings) == (signal == "first")


def test_memory_that_the_kernel_ahead_reads_must_not_be_written_before_the_wait():
    def overwrite(wait: bool) -> Any:
        def body(here, x, o):
            del o
            if wait:
                plgpu.griddepcontrol_wait()
            x[here] = jnp.zeros((8, 128), jnp.float32)
            if not wait:
                plgpu.griddepcontrol_wait()

        return body

    def in_place(x, *, wait):
        ref = jax.new_ref(x)
        total = add_one()(ref)
        in_rows(overwrite(wait))(ref)
        return total

    assert not found_in(functools.partial(in_place, wait=True), X).findings
    (finding,) = found_in(functools.partial(in_place, wait=False), X).findings
    writes, reads = finding.accesses
    assert (writes.kind, reads.kind) == ("write", "read")


def test_a_kernel_of_pl_alone_may_be_ahead():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    def two(x, wait):
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        ahead = pl.pallas_call(body, out_shape=SHAPE, grid=(2,), in_specs=[block], out_specs=block)
        return double(wait)(ahead(x))

    assert not found_in(functools.partial(two, wait="first"), X).findings
    (finding,) = found_in(functools.partial(two, wait="late"), X).findings
    assert finding.accesses[1].ref == "o_ref"


def test_kernels_whose_blocks_wait_for_each_other():
    """Their clusters run at the same time, in one recording."""

    def body(x, o, semaphore, *, wait):
        here = pl.ds(lax.axis_index("i") * 8, 8)
        if wait == "first":
            plgpu.griddepcontrol_wait()
        value = x[here]
        if wait == "late":
            plgpu.griddepcontrol_wait()
        pl.semaphore_signal(semaphore, 1)
        pl.semaphore_wait(semaphore, 2, decrement=False)
        o[here] = value

    def two(x, *, wait):
        def with_semaphore(x, o):
            semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)
            body(x, o, semaphore, wait=wait)

        kernel = plgpu.kernel(with_semaphore, out_type=SHAPE, grid=(2,), grid_names=("i",))
        return kernel(add_one()(kernel(add_one()(x))))

    assert not found_in(functools.partial(two, wait="first"), X).findings
    found = found_in(functools.partial(two, wait="late"), X).findings
    assert [each.kind for each in found] == ["race"]
