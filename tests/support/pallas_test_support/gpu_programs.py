"""GPU programs for the tests of the compilers, exported as a session exports them."""

import warnings

import jax
import jax.numpy as jnp
from jax import export
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_sim.chips import TARGETS
from pytest_pallas.compile.cuda import CUSTOM_CALLS


def exported(function, *shapes, target):
    """The bytes of a function lowered for a GPU; ``shapes`` are pairs of a shape and a dtype."""
    device = AbstractDevice(device_kind=TARGETS[target].device_kind, num_cores=1, platform="gpu")
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in CUSTOM_CALLS]
    avals = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    with (
        jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # of Pallas' Triton backend
        lower = export.export(jax.jit(function), platforms=("cuda",), disabled_checks=checks)
        return lower(*avals).serialize()


def through_shared_memory(name, rows):
    """A Mosaic GPU kernel that doubles a ``(rows, 128)`` float32 matrix."""

    def body(x_ref, o_ref, smem, barrier):
        plgpu.copy_gmem_to_smem(x_ref, smem, barrier)
        plgpu.barrier_wait(barrier)
        smem[...] = smem[...] * 2
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o_ref)
        plgpu.wait_smem_to_gmem(0)

    body.__name__ = body.__qualname__ = name

    def call(x):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_types=[plgpu.SMEM((rows, 128), jnp.float32), plgpu.Barrier()],
        )(x)

    return call


def triton_matmul(x):
    """``x @ x`` in one block; float32 of bfloat16."""

    def matmul_kernel(x_ref, o_ref):
        o_ref[...] = jax.lax.dot(x_ref[...], x_ref[...], preferred_element_type=jnp.float32)

    return pl.pallas_call(matmul_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)


def triton_ones():
    """Ones of shape (128,), from nothing."""

    def ones_kernel(o_ref):
        o_ref[...] = jnp.ones(o_ref.shape, o_ref.dtype)

    return pl.pallas_call(ones_kernel, out_shape=jax.ShapeDtypeStruct((128,), jnp.float32))()


def hopper_matmul(a, b):
    """JAX's own matmul with ``wgmma``."""
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper

    config = hopper.TuningConfig(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=2)
    return hopper.matmul(a, b, None, config)


def blackwell_matmul(a, b):
    """JAX's own matmul with ``tcgen05``."""
    from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu as blackwell

    config = blackwell.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=2, collective=False
    )
    return blackwell.matmul_kernel(a, b, config)
