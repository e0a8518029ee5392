"""Races of JAX's interpreters as data."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.backends.gpu_interpreter import gpu_interpret
from pytest_pallas.backends.interpreters import tpu_interpret
from pytest_pallas.backends.protocol import Call
from pytest_pallas.compat.watching_gpu import owner_of, thread_key
from pytest_pallas.errors import RaceError
from pytest_pallas.findings import Access, Finding, Owner, short_line

X = np.ones((8, 128), np.float32)


def found(backend, function, x, **rest) -> Finding:
    """The one finding of a run that ends with a race; its text is that of the error."""
    error = backend.run(Call(function=function, args=(x,), **rest)).error
    assert isinstance(error, RaceError)
    [finding] = error.findings
    assert str(error) == str(finding)
    assert all(short_line(access.line).startswith("test_races.py:") for access in finding.accesses)
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


def rows(x):
    """Reads a block of rows before its copy has arrived."""

    def body(x_ref, o_ref, buffer, arrived):
        copy = pltpu.make_async_copy(x_ref, buffer.at[pl.ds(8, 8)], arrived)
        copy.start()
        o_ref[...] = buffer[8:, :]
        copy.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(1,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((16, 128), x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


def test_a_copy_and_a_core_of_a_tpu():
    finding = found(tpu_interpret(), rows, X)
    write, read = finding.accesses
    part = {"ref": "buffer", "owner": Owner(device=0), "home": 0, "index": ((8, 16), (0, 128))}
    assert write == Access(kind="write", **part, line=write.line, program=(0,), copy=True)
    assert read == Access(kind="read", **part, line=read.line, program=(0,))
    assert (finding.kind, finding.kernel, finding.ref) == ("race", "body", "buffer")


def test_a_copy_to_another_device():
    """The sender is who made the access, and the receiver whose memory it is."""

    def body(x_ref, o_ref, buffer, sent, arrived):
        other = 1 - jax.lax.axis_index("x")
        copy = pltpu.make_async_remote_copy(x_ref, buffer, sent, arrived, device_id={"x": other})
        copy.start()
        o_ref[...] = buffer[...]
        copy.wait()

    def shard(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[
                pltpu.VMEM(x.shape, x.dtype),
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA,
            ],
        )(x)

    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:2]), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    call = jax.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    write, read = found(tpu_interpret(), call, np.ones((16, 128), np.float32), devices=2).accesses
    if not write.copy:
        write, read = read, write
    assert (write.copy, read.copy) == (True, False)
    assert write.home == read.home == read.owner.device == 1 - write.owner.device
    said = f"write of buffer on device {write.home} by a copy of device {1 - write.home}, at"
    assert said in str(write)
