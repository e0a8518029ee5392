"""What the variables of a kernel's body stand for."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

from pallas_sim.compat import jaxprs as avals
from pallas_sim.compat.jaxprs import sub_jaxprs
from pallas_sim.transforms import Aliased

F32 = jnp.float32


def scratch(*shapes, mosaic_gpu=False, **options):
    """The abstract values of scratch operands, in the body of a kernel."""

    def body(*refs):
        del refs

    out = jax.ShapeDtypeStruct((128,), F32)
    if mosaic_gpu:
        call = plgpu.kernel(body, out_type=out, scratch_types=shapes, **options)
    else:
        call = pl.pallas_call(body, out_shape=out, scratch_shapes=shapes)
    todo = list(jax.make_jaxpr(call)().eqns)
    while todo:
        eqn = todo.pop()
        for jaxpr in sub_jaxprs(eqn):
            if mosaic_gpu and eqn.primitive.name == "run_scoped":
                return [var.aval for var in jaxpr.invars]
            if eqn.primitive.name == "pallas_call":
                return [var.aval for var in jaxpr.invars[-len(shapes) :]]
            todo += jaxpr.eqns
    raise AssertionError("no scratch")


def test_memory_and_semaphores_of_a_tpu():
    found = scratch(
        pltpu.VMEM((8, 128), F32),
        pltpu.SMEM((4,), F32),
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.SemaphoreType.REGULAR,
        pltpu.SemaphoreType.BARRIER,
    )
    assert all(map(avals.is_reference, found))
    assert [avals.space_of(each) for each in found[:2]] == ["vmem", "smem"]
    kinds = [avals.semaphore_kind(each.dtype) for each in found]
    assert kinds == [None, None, "dma", "regular", "barrier"]
    assert not any(map(avals.barrier_facts, (each.dtype for each in found)))
    assert not any(map(avals.is_union, found))


def test_a_value_is_no_reference():
    aval = jax.core.ShapedArray((8,), F32)
    assert not avals.is_reference(aval)
    assert avals.space_of(aval) in ("", "device")


@pytest.mark.parametrize(
    ("barrier", "expected"),
    [
        (plgpu.Barrier(), avals.BarrierFacts(1)),
        (plgpu.Barrier(num_arrivals=3), avals.BarrierFacts(3)),
        (plgpu.Barrier(orders_tensor_core=True), avals.BarrierFacts(1, None, True)),
    ],
)
def test_barriers(barrier, expected):
    (found,) = scratch(barrier, mosaic_gpu=True)
    assert avals.barrier_facts(found.dtype) == expected


def test_barriers_of_a_cluster():
    shape = plgpu.ClusterBarrier(collective_axes=("x",))
    (found,) = scratch(shape, mosaic_gpu=True, cluster=(2,), cluster_names=("x",))
    assert avals.barrier_facts(found.dtype) == avals.BarrierFacts(1, (("x",),))


def test_unions_and_accumulators():
    union = plgpu.RefUnion(plgpu.SMEM((128,), F32), [plgpu.SMEM((64,), jnp.int8)])
    found = scratch(union, plgpu.ACC((64, 64)), mosaic_gpu=True)
    assert [avals.is_union(each) for each in found] == [True, False]
    assert [avals.is_accumulator(each) for each in found] == [False, True]
    parts = avals.union_parts(found[0])
    assert [(part.shape, part.dtype, part.offset) for part in parts] == [
        ((128,), F32, 0),
        ((64,), jnp.int8, 0),
    ]
    assert all(isinstance(part, Aliased) for part in parts)
    assert not avals.union_parts(found[1])
