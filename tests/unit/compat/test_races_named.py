"""Races of the GPU interpreter in words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.backends.interpreters import gpu_interpret
from pytest_pallas.backends.protocol import Call
from pytest_pallas.compat import gpu_race_named
from pytest_pallas.errors import RaceError


def _early(x, o, smem, barrier):
    plgpu.copy_gmem_to_smem(x, smem, barrier)
    smem[...] = smem[...] + 1
    plgpu.barrier_wait(barrier)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem, o)
    plgpu.wait_smem_to_gmem(0)


def test_who_reads_and_writes_what_where():
    def call(x):
        return plgpu.kernel(
            _early,
            out_type=jax.ShapeDtypeStruct((128,), jnp.float32),
            scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
        )(x)

    error = gpu_interpret().run(Call(function=call, args=(np.ones(128, np.float32),))).error
    assert isinstance(error, RaceError)
    here = r"test_races_named\.py:\d+:\d+ \(_early\)"
    accesses = r"race: read of {0}, \S*{1}\n  and write of {0}, \S*{1}".format(
        r"a ref in SMEM\[0:128\] of device 0, block 0, warpgroup 0", here
    )
    with pytest.raises(RaceError, match=f"^{accesses}$"):
        raise error


def test_a_warp_and_other_words():
    key = "HostAllocationKey(memory_space_id=99, device_id=1, block_id=0, buffer_id=102)"
    thread = "Warp(device_id=1, cluster_id=0, block_id=2, warpgroup_id=0, warp_id=3)"
    told = gpu_race_named(f"write of {key}[()] from {thread}, k.py:1 (body)")
    assert told == ("write of a ref of device 1, block 2, warpgroup 0, warp 3, k.py:1 (body)")
    assert gpu_race_named("write of x_ref of device 0") == "write of x_ref of device 0"
