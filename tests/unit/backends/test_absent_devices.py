"""A device that is not there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.backends.simulators import tpu_sim


def _signalling(steps: int, *, wraps: bool):
    """Every device signals the one that is ``steps`` further, and waits for its own signal."""

    def body(x_ref, o_ref):
        me, count = jax.lax.axis_index("x"), jax.lax.axis_size("x")
        other = me + steps
        if wraps:
            other = jax.lax.rem(other + count, count)
        ready = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(ready, 1, device_id={"x": other})
        pl.semaphore_wait(ready, 1)
        o_ref[...] = x_ref[...]

    def shard(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)

    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("x",))
    return jax.shard_map(shard, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)


@pytest.mark.parametrize(("steps", "missing"), [(-1, -1), (1, 4)])
def test_a_ring_without_its_modulus(steps, missing):
    x = jnp.ones((32, 128), jnp.float32)
    backend = tpu_sim()
    right = backend.run(
        Call(function=_signalling(steps, wraps=True), args=(x,), settings=RunSettings(devices=4))
    )
    assert right.error is None
    wrong = backend.run(
        Call(function=_signalling(steps, wraps=False), args=(x,), settings=RunSettings(devices=4))
    )
    assert f"there is no device {missing} along the axis 'x', which has 4" in str(wrong.error)
    assert "test_absent_devices.py" in str(wrong.error)
