"""How much shared memory JAX's lowering asks for."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from pallas_test_support.lowered_shared_memory import counted, counted_and_lowered

from pytest_pallas.backends.protocol import Call

F32 = jnp.float32
KIB = plgpu.SMEM((256,), F32)


def nothing(*refs):
    del refs


def launched(body=nothing, *scratch, target="h100", params=None, **mesh):
    def call():
        options = {} if params is None else {"compiler_params": plgpu.CompilerParams(**params)}
        out = jax.ShapeDtypeStruct((128,), F32)
        return plgpu.kernel(body, out_type=out, scratch_types=list(scratch), **options, **mesh)()

    return counted_and_lowered(Call(function=call), target)


def scopes_in_turn(*refs):
    del refs
    for shape in [(64,), (2, 512)]:
        pl.run_scoped(nothing, plgpu.SMEM(shape, F32), plgpu.Barrier(num_barriers=3))
    pl.run_scoped(nothing, plgpu.Barrier(num_barriers=5), plgpu.Barrier(num_barriers=3))


def scopes_in_each_other(*refs):
    del refs

    def outer(*refs):
        del refs
        pl.run_scoped(nothing, plgpu.SMEM((5,), F32), plgpu.Barrier(num_barriers=3))

    pl.run_scoped(outer, plgpu.SMEM((300,), F32), plgpu.Barrier(num_barriers=3))


def a_sum_in_a_loop(o_ref, x_smem):
    def add(_, total):
        return total + jnp.sum(x_smem[...])

    o_ref[...] = jnp.broadcast_to(lax.fori_loop(0, 3, add, jnp.float32(0)), (128,))


@pytest.mark.parametrize(
    ("expected", "body", "scratch", "options"),
    [
        (0, nothing, [], {}),
        (1024, nothing, [plgpu.SMEM((1,), jnp.int8)], {}),
        (3 * 1024, nothing, [KIB, plgpu.SMEM((257,), F32)], {}),
        (1024, nothing, [plgpu.SMEM((2048,), jnp.int4)], {}),
        (2048 + 7 * 8, nothing, [KIB, KIB, plgpu.Barrier(num_barriers=7)], {}),
        (2048, nothing, [plgpu.RefUnion([KIB, KIB], plgpu.SMEM((300,), F32))], {}),
        # Barriers that are alike are the same where scopes follow each other.
        (4096 + 8 * 8, scopes_in_turn, [], {}),
        (3 * 1024 + 6 * 8, scopes_in_each_other, [], {}),
        (1024 + 2048, a_sum_in_a_loop, [plgpu.SMEM((128,), F32)], {}),
        (
            1024 + 1024,
            a_sum_in_a_loop,
            [plgpu.SMEM((128,), F32)],
            {"params": {"reduction_scratch_bytes": 100}},
        ),
        (
            1024 + 8 + 4,
            nothing,
            [KIB, plgpu.Barrier(), plgpu.TMEM((128, 64), F32)],
            {"target": "b200"},
        ),
        (
            1024 + 2 * 8,
            nothing,
            [KIB, plgpu.ClusterBarrier(collective_axes=("x",), num_barriers=2)],
            {"cluster": (2,), "cluster_names": ("x",)},
        ),
        # An event has two ends of two words, and there are two warpgroups. So many do not fit,
        # which JAX says before it asks for the host, to which a profile is written.
        (
            1024 + 8 + 8 + 2**13 * 16 * 2,
            nothing,
            [KIB, plgpu.Barrier(), plgpu.TMEM((128, 64), F32)],
            {
                "target": "b200",
                "params": {"profile_space": 2**13, "profile_dir": "/tmp"},
                "num_threads": 2,
                "thread_name": "wg",
            },
        ),
        (300 * 1024, nothing, [plgpu.SMEM((300, 256), F32)], {}),
    ],
)
def test_what_a_block_is_launched_with(expected, body, scratch, options):
    assert launched(body, *scratch, **options) == ([expected], [expected])


def test_a_kernel_that_jax_does_not_lower_is_not_counted():
    def body(o_ref, x_smem):
        inner = pl.pallas_call(lambda i, o: None, out_shape=jax.ShapeDtypeStruct((128,), F32))
        o_ref[...] = inner(x_smem[...])

    def call():
        out = jax.ShapeDtypeStruct((128,), F32)
        return plgpu.kernel(body, out_type=out, scratch_types=[plgpu.SMEM((128,), F32)])()

    assert counted(jax.make_jaxpr(call)()) == [None]
