"""How devices enter a kernel: the barrier that XLA puts there, and the barrier semaphore."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from pallas_sim import simulate
from pallas_sim.cores import equations, traffic_of
from pallas_sim.errors import SimulationError

plsc = pytest.importorskip("jax.experimental.pallas.tpu_sc")

ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
SKIPS = {"skip_device_barrier": True}
ALLOWED = {"allow_collective_id_without_custom_barrier": True}
TENSOR_CORES = functools.partial(pltpu.TensorCoreMesh, axis_name="core", num_cores=2)
SCALAR_SUBCORES = functools.partial(plsc.ScalarSubcoreMesh, axis_name="core", num_cores=1)
VECTOR_SUBCORES = functools.partial(
    plsc.VectorSubcoreMesh,
    core_axis_name="core",
    subcore_axis_name="subcore",
    num_cores=1,
    num_subcores=1,
)


def meets(*tags: Any, remote: bool = True) -> Any:
    """A body that uses the barrier semaphore of each tag, and reaches no other device else."""

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        del x_ref, o_ref, sent, received
        for tag in tags:
            barrier = pltpu.get_barrier_semaphore(tag)
            if remote:
                count = lax.axis_size("x")
                left = lax.rem(lax.axis_index("x") + count - 1, count)
                pl.semaphore_signal(barrier, 1, device_id={"x": left})
            else:
                pl.semaphore_signal(barrier, 1)
            pl.semaphore_wait(barrier, 1)

    return body


def shifts(*tags: Any, ahead: int = 1) -> Any:
    """A body that meets its right neighbour on a barrier semaphore, and copies to a device."""
    meet = meets(*tags)

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        meet(x_ref, o_ref, sent, received)
        there = {"x": lax.rem(lax.axis_index("x") + ahead, lax.axis_size("x"))}
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=there).wait()

    return body


def call(body: Any, mesh: Any = None, **params: Any) -> Any:
    """A kernel with two semaphores."""
    compiler = pltpu.CompilerParams(**params)

    def function(x: Any) -> Any:
        if mesh is not None:
            return pl.kernel(
                body,
                out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
                mesh=mesh(),
                scratch_types=[DMA, DMA],
                compiler_params=compiler,
            )(x)
        return pl.pallas_call(
            body,
            out_shape=x,
            in_specs=[ANY],
            out_specs=ANY,
            scratch_shapes=[DMA, DMA],
            compiler_params=compiler,
        )(x)

    return function


def on_devices(function: Any, count: int = 4) -> Any:
    mesh = AbstractMesh((count,), ("x",), axis_types=(AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)


def kinds(function: Any, count: int = 4, **options: Any) -> set[str]:
    x = np.arange(count * 8 * 128, dtype=np.float32).reshape(count * 8, 128)
    return {
        finding.kind for finding in simulate(on_devices(function, count), x, **options).findings
    }


BODIES = {
    "nothing": meets(),
    "barrier": meets(None, remote=False),
    "tag": meets("a", remote=False),
    "tag and none": meets("a", None, remote=False),
    "tags": meets("a", "b", remote=False),
    "number as tag": meets(0, remote=False),
}
PARAMS = [{}, {"collective_id": 0}, {"collective_id": 0, **ALLOWED}, {"collective_id": "a"}]


@pytest.mark.parametrize("mode", ["no", "yes", "override"])
@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("body", BODIES)
def test_refused_is_what_jax_refuses(body, params, mode):
    """Where the lowering of the installed JAX raises, the simulator does, and nowhere else."""
    function = call(BODIES[body], **params)
    x = jnp.ones((8, 128))
    before = jax.config.jax_pallas_auto_assign_collective_ids
    jax.config.update("jax_pallas_auto_assign_collective_ids", mode)
    try:
        try:
            jax.jit(function).trace(x).lower(lowering_platforms=("tpu",))
        except ValueError:
            with pytest.raises(SimulationError, match=r"^JAX refuses"):
                simulate(function, x)
        else:
            simulate(function, x)
    finally:
        jax.config.update("jax_pallas_auto_assign_collective_ids", before)


@pytest.mark.parametrize(
    ("body", "params", "expected"),
    [
        (shifts(), {}, set()),
        (shifts(), SKIPS, {"entry"}),
        (shifts(), {"collective_id": 0, **ALLOWED}, {"entry"}),
        (shifts(), {"collective_id": 0, **ALLOWED, **SKIPS}, {"entry"}),
        (shifts(None), {"collective_id": 0}, set()),
        (shifts("a"), {}, set()),
        (shifts("a"), SKIPS, set()),
        (shifts(None, ahead=2), {"collective_id": 0}, {"entry"}),
        (shifts("a", ahead=2), {}, {"entry"}),
    ],
    ids=[
        "neither id nor barrier",
        "skipped",
        "id without barrier",
        "id without barrier, skipped",
        "barrier",
        "tag",
        "tag, skipped",
        "barrier with another device",
        "tag and another device",
    ],
)
def test_the_barrier_at_the_entry(body, params, expected):
    """XLA puts one before kernels that reach other devices and have no barrier semaphore."""
    for seed in (0, 1):
        assert kinds(call(body, **params), seed=seed) == expected


def ring(tag: Any = None, **params: Any) -> Any:
    """A kernel that meets both neighbours, and copies to the right one."""

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        me, count = lax.axis_index("x"), lax.axis_size("x")
        barrier = pltpu.get_barrier_semaphore(tag)
        for ahead in (1, count - 1):
            pl.semaphore_signal(barrier, 1, device_id={"x": lax.rem(me + ahead, count)})
        pl.semaphore_wait(barrier, 2)
        there = {"x": lax.rem(me + 1, count)}
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=there).wait()

    return call(body, **params)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (ring(collective_id=0), ring(collective_id=0), {"entry"}),
        (ring(collective_id=0), ring(collective_id=1), set()),
        (ring("a"), ring("a"), {"entry"}),
        (ring("a"), ring("b"), set()),
        (ring("a", **SKIPS), ring("a"), set()),
        (ring(0), ring(collective_id=0), set()),
    ],
    ids=["one id", "two ids", "one tag", "two tags", "one tag, skipped once", "tag and id"],
)
def test_which_calls_share_a_barrier_semaphore(first, second, expected):
    """Where two calls share one, a device may take a neighbour's signals of both in the first.

    Then it copies to the other neighbour, which may not have entered.
    """
    seen = set()
    for seed in range(2):
        seen |= kinds(lambda x: second(first(x)), 6, seed=seed)
    assert seen == expected


def test_devices_in_different_kernels_meet_at_one_barrier():
    """The barrier of XLA is one for all kernels of a program: it does not know which they are."""

    def either(x: Any) -> Any:
        inner = call(lambda x_ref, o_ref, sent, received: copied(x_ref, o_ref, sent, received))
        other = call(lambda x_ref, o_ref, sent, received: copied(x_ref, o_ref, received, sent))
        return lax.cond(lax.axis_index("x") == 0, inner, other, x)

    def copied(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        here = {"x": lax.axis_index("x")}
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=here).wait()

    assert kinds(either) == set()


@pytest.mark.parametrize(
    ("mesh", "body", "params", "expected"),
    [
        (SCALAR_SUBCORES, shifts(), {}, set()),
        (SCALAR_SUBCORES, shifts(), SKIPS, {"entry"}),
        (SCALAR_SUBCORES, shifts(None, ahead=2), {"collective_id": 0}, {"entry"}),
        (VECTOR_SUBCORES, shifts(), SKIPS, {"entry"}),
        (VECTOR_SUBCORES, shifts(None, ahead=2), {"collective_id": 0}, set()),
        (VECTOR_SUBCORES, shifts(), {"collective_id": 0, **ALLOWED}, set()),
    ],
)
def test_kernels_of_sparse_cores(mesh, body, params, expected):
    """Those of vector subcores wait for each other also with a barrier semaphore."""
    assert kinds(call(body, mesh, **params)) == expected


@pytest.mark.parametrize(
    ("mesh", "body", "params", "quoted"),
    [
        (SCALAR_SUBCORES, meets(None, remote=False), {}, "non-communicating custom call"),
        (VECTOR_SUBCORES, meets(None), SKIPS, "failed to allocate a barrier semaphore"),
    ],
    ids=["no other device", "skipped"],
)
def test_what_the_compiler_refuses_for_sparse_cores(mesh, body, params, quoted):
    with pytest.raises(SimulationError, match=re.escape(quoted)):
        kinds(call(body, mesh, collective_id=0, **params))


def test_who_names_a_core_names_no_device():
    """JAX's lowering says so too, in ``has_communication`` of the custom call."""

    def body(x_ref: Any, o_ref: Any, sent: Any, ready: Any) -> None:
        del x_ref, o_ref, sent
        pl.semaphore_signal(ready, 1, device_id={"core": 1 - lax.axis_index("core")})
        pl.semaphore_wait(ready, 1)

    def function(x: Any) -> Any:
        return pl.kernel(body, out_type=x, mesh=TENSOR_CORES(), scratch_types=[DMA, REGULAR])(x)

    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        jaxpr = jax.make_jaxpr(on_devices(function))(jnp.ones((32, 128)))
    (kernel,) = [eqn for eqn in equations(jaxpr) if eqn.primitive.name == "mpmd_map"]
    from pallas_sim.cores import core_meshes

    meshes = core_meshes(kernel.params["meshes"])
    traffic = traffic_of(kernel.params["jaxprs"], kernel.params["compiler_params"], meshes)
    assert not traffic.remote
    assert not traffic.barrier
