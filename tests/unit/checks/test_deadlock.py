"""``sanitizers.deadlock``."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim.errors import DeadlockError
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.simulators import gpu_sim, tpu_sim
from pytest_pallas.checks.schedule import deadlock

from . import rings


@pytest.mark.parametrize(
    ("kernel", "devices", "on", "needed", "had"),
    [
        (rings.waiting, 1, "ready", 2, 1),
        (rings.ring, 4, "the barrier semaphore of device 3", 2, 1),
    ],
    ids=["one device", "four devices"],
)
def test_each_blocked_device_reports_its_wait(context, kernel, devices, on, needed, had):
    x = rings.SHARDS if devices > 1 else rings.BLOCKS
    with pytest.raises(DeadlockError) as raised:
        deadlock(context(rings.other(kernel, waits=2), x, devices=devices))
    waits = raised.value.findings[0].waits
    assert [wait.owner.device for wait in waits] == list(range(devices))
    assert (waits[-1].on, waits[-1].needed, waits[-1].had) == (on, needed, had)


def test_devices_that_are_through_are_said(context):
    """One device waits for a DMA that the last one does not send."""

    def kernel(x):
        def body(x_ref, o_ref, sent, received):
            me = jax.lax.axis_index("x")
            copy = pltpu.make_async_remote_copy(
                x_ref, o_ref, sent, received, device_id={"x": 1 - me}
            )

            @pl.when(me == 0)
            def _send():
                copy.start()
                copy.wait_send()

            @pl.when(me == 0)
            def _receive():
                copy.wait_recv()

        def shard(x):
            return pl.pallas_call(
                body,
                out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
                in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
                out_specs=pl.BlockSpec(memory_space=pl.ANY),
                scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
            )(x)

        mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("x",))
        spec = jax.sharding.PartitionSpec("x")
        return jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)

    with pytest.raises(DeadlockError) as raised:
        deadlock(context(kernel, rings.SHARDS[:2], devices=2))
    said = "device 0 is blocked on semaphore `received`: needs 4096 bytes, has 0"
    assert said in str(raised.value)
    assert "device 1 is at the end of the program" in str(raised.value)


def test_the_next_kernel_runs():
    backend = tpu_sim()
    hangs = Call(function=rings.other(rings.waiting, waits=2), args=(rings.BLOCKS,))
    assert isinstance(backend.run(hangs).error, DeadlockError)
    outcome = backend.run(Call(function=rings.waiting, args=(rings.BLOCKS,)))
    np.testing.assert_array_equal(outcome.unwrap(), rings.BLOCKS)


def test_a_right_kernel_comes_to_its_end(context):
    deadlock(context(rings.ring, rings.SHARDS, devices=4))


def gpu_kernel(x, *, arrives):
    """Two warpgroups: one copies to shared memory, both wait for it."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def body(x_ref, o_ref, buffer, copied):
        @pl.when(jax.lax.axis_index("warpgroup") == 0)
        def _copy():
            if arrives:
                plgpu.copy_gmem_to_smem(x_ref, buffer, copied)

        plgpu.barrier_wait(copied)

        @pl.when(jax.lax.axis_index("warpgroup") == 0)
        def _store():
            o_ref[...] = buffer[...]

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[plgpu.SMEM(x.shape, x.dtype), plgpu.Barrier()],
        num_threads=2,
        thread_name="warpgroup",
    )(x)


def test_threads_of_a_gpu_are_named(context):
    x = np.ones((128, 128), np.float32)
    asked = context(rings.other(gpu_kernel, arrives=False), x, backend=gpu_sim())
    with pytest.raises(DeadlockError) as raised:
        deadlock(asked)
    for group in range(2):
        assert re.search(
            rf"warpgroup {group} is blocked at copied \(phase 0\): needs 1 arrivals, has 0, "
            r"at \S+test_deadlock\.py:\d+",
            str(raised.value),
        )
    deadlock(context(rings.other(gpu_kernel, arrives=True), x, backend=gpu_sim()))
