"""What plainly computes the same is equal, and nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.mutated import VMEM, X, kernel, traced

from pytest_pallas.mutate.programs import canonical


def _of(function):
    return canonical(jax.make_jaxpr(function)(jnp.int32(3), jnp.int32(5)))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda x, y: x + y, lambda x, y: y + x),
        (lambda x, y: x + 0, lambda x, y: x),
        (lambda x, y: x * 1 - 0, lambda x, y: x),
        (lambda x, y: jnp.maximum(x, x), lambda x, y: x),
        (lambda x, y: x + jnp.int32(2) * 3, lambda x, y: x + 6),
        (lambda x, y: jax.jit(lambda z: z + y)(x), lambda x, y: x + y),
        (lambda x, y: (x + y, x - y)[0], lambda x, y: x + y),
        (lambda x, y: jax.lax.select(jnp.bool_(True), x, y), lambda x, y: x),
        # Which branch is taken does not matter where both do the same.
        (
            lambda x, y: jax.lax.cond(x < y, jnp.abs, jnp.abs, x),
            lambda x, y: jax.lax.cond(x > y, jnp.abs, jnp.abs, x),
        ),
    ],
    ids=["commute", "zero", "one", "max", "fold", "jit", "unused", "select", "cond"],
)
def test_the_same(left, right):
    assert _of(left) == _of(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda x, y: x - y, lambda x, y: y - x),
        (lambda x, y: x + 1, lambda x, y: x + 2),
        (lambda x, y: x < y, lambda x, y: x <= y),
        (lambda x, y: (x, y), lambda x, y: (y, x)),
        (lambda x, y: x.astype(jnp.float32) + 0.0, lambda x, y: x.astype(jnp.float32)),
    ],
)
def test_not_the_same(left, right):
    assert _of(left) != _of(right)


def test_what_is_printed_or_checked_makes_no_difference():
    def said(factor):
        def body(x_ref, o_ref):
            pl.debug_print("{}", factor * x_ref[0, 0])
            pl.debug_check(factor * x_ref[0, 0] < 9, "too large")
            o_ref[...] = x_ref[...]

        return canonical(traced(kernel(body, X.shape), X))

    assert said(1) == said(2)


def test_the_order_of_effects_counts():
    def forwards(x_ref, o_ref):
        o_ref[0] = x_ref[0]
        o_ref[1] = x_ref[1]

    def backwards(x_ref, o_ref):
        o_ref[1] = x_ref[1]
        o_ref[0] = x_ref[0]

    programs = [traced(kernel(body, (8, 128)), X) for body in (forwards, backwards)]
    assert canonical(programs[0]) == canonical(traced(kernel(forwards, (8, 128)), X))
    assert canonical(programs[0]) != canonical(programs[1])


def test_where_a_wait_says_that_a_copy_went_makes_no_difference():
    """A wait counts bytes; what is started there is another matter."""

    def copying(wait_row, start_row):
        def body(x_ref, o_ref, buffer, sem):
            def copy(row):
                return pltpu.make_async_copy(x_ref.at[pl.ds(row, 4)], buffer.at[0:4], sem)

            first = pl.program_id(0) * 4
            copy(first + start_row).start()

            @pl.when(first < 8)
            def _():
                copy(first + wait_row).wait()

            o_ref[...] = buffer[...]

        call = kernel(
            body,
            (8, 128),
            grid=(2,),
            blocks=[pl.BlockSpec(memory_space=pl.ANY)],
            out_block=pl.BlockSpec((8, 128), lambda i: (0, 0)),
            scratch=[VMEM, pltpu.SemaphoreType.DMA],
        )
        return canonical(traced(call, X))

    assert copying(0, 0) == copying(4, 0)
    assert copying(0, 0) != copying(0, 4)


def test_a_read_that_nobody_looks_at_is_gone():
    def reading(first, second, write=False):
        def body(x_ref, o_ref):
            x_ref[first]
            o_ref[0] = x_ref[1]
            if write:
                x_ref[1] = x_ref[0]
            o_ref[1] = x_ref[second]

        return canonical(traced(kernel(body, (8, 128)), X))

    assert reading(0, 1) == reading(2, 1)
    assert reading(0, 1) != reading(0, 2)
    assert reading(0, 1) != reading(0, 1, write=True)


@pytest.mark.parametrize("first", ["x", "o"])
def test_when_something_is_read_makes_a_difference(first):
    def swapping(late):
        def body(x_ref, o_ref):
            before = {"x": x_ref, "o": o_ref}[first][0]
            o_ref[0] = x_ref[1]
            o_ref[1] = o_ref[0] if late else before

        return canonical(traced(kernel(body, (8, 128)), X))

    assert swapping(late=True) != swapping(late=False)


def test_a_wait_is_for_one_semaphore_of_its_own_device():
    def sending(device, sent, arrived, wait):
        def body(x_ref, o_ref, sems):
            def copy(device, sent, arrived):
                return pltpu.make_async_remote_copy(
                    x_ref, o_ref, sems.at[sent], sems.at[arrived], device_id=device
                )

            copy(0, 0, 1).start()
            getattr(copy(device, sent, arrived), wait)()

        call = kernel(body, (8, 128), scratch=[pltpu.SemaphoreType.DMA((3,))])
        return canonical(traced(call, X))

    assert sending(0, 0, 1, "wait_send") == sending(1, 0, 2, "wait_send")
    assert sending(0, 0, 1, "wait_send") != sending(0, 2, 1, "wait_send")
    assert sending(0, 0, 1, "wait_recv") == sending(1, 2, 1, "wait_recv")
    assert sending(0, 0, 1, "wait_recv") != sending(0, 0, 2, "wait_recv")
