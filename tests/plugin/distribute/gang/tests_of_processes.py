"""Tests for several processes, copied into an inner project as ``test_processes.py``."""

import os
import signal
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

HERE = int(os.environ["PYTEST_PALLAS_PROCESS"])


def total():
    """The sum of all device numbers, over all processes."""
    count = jax.device_count()
    mesh = jax.make_mesh((count,), ("x",))
    summed = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    )
    numbers = np.arange(count, dtype=np.float32)
    array = jax.make_array_from_callback(
        numbers.shape, NamedSharding(mesh, P("x")), lambda index: numbers[index]
    )
    return float(np.asarray(summed(array).addressable_shards[0].data)[0])


def test_right():
    assert jax.process_index() == HERE
    assert total() == sum(range(jax.device_count()))


def test_wrong_in_one():
    print(f"said by {HERE}")  # noqa: T201
    assert total() + (HERE == 1) == sum(range(jax.device_count()))


def test_raises_before_the_collective():
    if HERE == 1:
        raise ValueError("not ready")
    total()


def test_right_after_a_restart():
    test_right()


def test_killed():
    total()
    if HERE == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    total()


def test_right_at_the_end():
    test_right()


def test_wrong_at_the_end():
    test_wrong_in_one()


def test_not_run():
    raise AssertionError


def test_skipped():
    pytest.skip("everywhere")


def test_skipped_in_one():
    if HERE == 1:
        pytest.skip("here only")


@pytest.mark.xfail(reason="known", strict=True)
def test_expected():
    raise AssertionError


@given(number=st.integers(0, 20))
def test_drawn(number):
    assert total() + (HERE == 1 and number >= 7) == sum(range(jax.device_count()))


def double(x, *, mesh):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def shard(x):
        made = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
        return jax.lax.psum(made, "x")

    return jax.shard_map(shard, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)(x)


def reference(x, *, mesh):
    return 2 * x.reshape(mesh.size, -1, *x.shape[1:]).sum(0)


def test_kernel(pallas_check, pallas_mesh):
    mesh = pallas_mesh(x=jax.device_count())
    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    pallas_check(partial(double, mesh=mesh), x, reference=partial(reference, mesh=mesh))


def test_kernel_that_is_wrong_in_one(pallas_check, pallas_mesh):
    mesh = pallas_mesh(x=jax.device_count())

    def wrong(x):
        return double(x, mesh=mesh) + (HERE == 1)

    x = np.ones((8, 128), np.float32)
    pallas_check(wrong, x, reference=partial(reference, mesh=mesh))


@given(rows=st.integers(1, 4))
def test_drawn_kernel(pallas_check, pallas_mesh, rows):
    mesh = pallas_mesh(x=jax.device_count())

    def wrong(x):
        return double(x, mesh=mesh) + (HERE == 1 and rows > 1)

    x = np.ones((mesh.size * rows, 128), np.float32)
    pallas_check(wrong, x, reference=partial(reference, mesh=mesh))
