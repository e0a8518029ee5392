"""Races of the GPU interpreter as data."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

from pytest_pallas.backends.gpu_interpreter import gpu_interpret
from pytest_pallas.backends.protocol import Call
from pytest_pallas.compat.watching_gpu import owner_of, thread_key
from pytest_pallas.errors import RaceError
from pytest_pallas.findings import Finding, Owner, short_line

X = np.ones((8, 128), np.float32)


def found(backend, function, x, **rest) -> Finding:
    """The one finding of a run that ends with a race; its text is that of the error."""
    error = backend.run(Call(function=function, args=(x,), **rest)).error
    assert isinstance(error, RaceError)
    [finding] = error.findings
    assert str(error) == str(finding)
    assert all(
        short_line(access.line).startswith("test_races_gpu.py:") for access in finding.accesses
    )
    return finding


def test_threads_of_a_gpu():
    def early(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x, smem, barrier)
        smem[...] = smem[...] + 1
        plgpu.barrier_wait(barrier)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o)
        plgpu.wait_smem_to_gmem(0)

    def call(x):
        return plgpu.kernel(
            early,
            out_type=jax.ShapeDtypeStruct((128,), jnp.float32),
            scratch_types=[plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()],
        )(x)

    read, write = found(gpu_interpret(), call, np.ones(128, np.float32)).accesses
    assert (read.kind, write.kind) == ("read", "write")
    for access in (read, write):
        assert access.owner == Owner(device=0, thread="block 0, warpgroup 0")
        assert (access.ref, access.index, access.home) == ("a ref in SMEM", ((0, 128),), 0)


def test_a_warp_of_a_gpu():
    warp = SimpleNamespace(device_id=1, cluster_id=0, block_id=2, warpgroup_id=0, warp_id=3)
    assert str(owner_of(thread_key(warp))) == "device 1, block 2, warpgroup 0, warp 3"
