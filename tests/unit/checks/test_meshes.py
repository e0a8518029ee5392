"""``dma`` on other numbers of devices than those of a spec."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

import pytest_pallas
from pytest_pallas import DmaError, KernelSpec
from pytest_pallas import strategies as pst
from pytest_pallas.backends.devices import make_mesh
from pytest_pallas.grid.kernel_calls import kernel_calls, on_two_devices

ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA


def shift(
    x: Any, *, mesh: Any, hears: tuple[int, ...] = (1, -1), devices: int = 0, ahead: int = 1
) -> Any:
    """Every shard moved along axis x of a mesh, after a barrier of some neighbours.

    Args:
      x: ``(devices * m, n)``.
      mesh: of the devices.
      hears: whom each device signals: so many ahead.
      devices: how many the kernel is for; 0 for any number.
      ahead: how far each shard is moved.
    """

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        me, count = lax.axis_index("x"), devices or lax.axis_size("x")

        def at(steps: int) -> dict[str, Any]:
            return {"x": lax.rem(me + steps + count, count)}

        ready = pltpu.get_barrier_semaphore()
        for steps in hears:
            pl.semaphore_signal(ready, 1, device_id=at(steps))
        pl.semaphore_wait(ready, len(hears))
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=at(ahead)).wait()

    def shard(x: Any) -> Any:
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[ANY],
            out_specs=ANY,
            scratch_shapes=[DMA, DMA],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)

    rows = P(mesh.axis_names)
    return jax.shard_map(shard, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)(x)


def shifted(x: Any, *, mesh: Any) -> Any:
    parts = x.reshape(*mesh.shape.values(), -1, x.shape[-1])
    return jnp.roll(parts, 1, axis=0).reshape(x.shape)


def check(*meshes: Any, kernel: Any = shift, **words: Any) -> None:
    if len(jax.devices()) < 8:
        pytest.skip("8 devices are needed")
    spec = KernelSpec(
        name="shift",
        kernel=functools.partial(kernel, **words),
        reference=shifted,
        inputs=lambda mesh: pst.arrays("m n", dims={"m": 8 * mesh.size, "n": 128}, dtype="float32"),
        meshes=meshes,
        file=__file__,
    )
    pytest_pallas.check(spec, backend="tpu-sim", checks="dma")


@pytest.mark.parametrize(
    ("meshes", "hears", "wrong"),
    [
        ([{"x": 2}], (1,), {"x": 3}),
        ([{"x": 1}, {"x": 2}], (1,), {"x": 3}),
        ([{"x": 2, "y": 2}], (1,), {"x": 3, "y": 2}),
        ([{"x": 3}], (1, 2), {"x": 4}),
        ([{"x": 2}], (1, -1), None),
        ([{"x": 2}, {"x": 4}], (-1,), None),
    ],
    ids=["one neighbour", "and one device", "two axes", "two of three", "both", "the right one"],
)
def test_a_barrier_of_one_neighbour(meshes, hears, wrong):
    if wrong is None:
        check(*meshes, hears=hears)
        return
    with pytest.raises(DmaError) as raised:
        check(*meshes, hears=hears)
    assert f"with mesh={wrong}, where the answers are right, too" in str(raised.value)
    assert {finding.kind for finding in raised.value.findings} == {"entry"}


def test_a_kernel_for_four_devices_is_not_accused_of_others():
    """On six devices two of its devices would never get anything; on two it names a third."""
    check({"x": 4}, devices=4)


def test_a_kernel_that_rejects_other_numbers_of_devices():
    def only_two(x, *, mesh):
        if mesh.size != 2:
            raise ValueError("two devices only")
        return shift(x, mesh=mesh, hears=(1,))

    check({"x": 2}, kernel=only_two)


@pytest.mark.parametrize(("count", "noted"), [(1, False), (2, True), (3, False)])
def test_a_call_on_two_devices_is_noted(count, noted):
    if len(jax.devices()) < count:
        pytest.skip(f"{count} devices are needed")
    mesh = make_mesh({"x": count}, "cpu")
    x = jnp.ones((8 * count, 128))
    kernels = kernel_calls(jax.make_jaxpr(lambda x: shift(x, mesh=mesh))(x))
    assert (on_two_devices(kernels) is not None) == noted
