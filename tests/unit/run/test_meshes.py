"""Specs over devices: meshes that are drawn, and more devices than a spec lists."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

import pytest_pallas
from pytest_pallas import DmaError, KernelSpec, SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.backends.devices import make_mesh
from pytest_pallas.grid.kernel_calls import kernel_calls, on_two_devices

ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA = pltpu.SemaphoreType.DMA


def shift(
    x: Any,
    *,
    mesh: Any,
    hears: tuple[int, ...] = (1, -1),
    devices: int = 0,
    by_mask: bool = False,
) -> Any:
    """Every shard moved along axis x of a mesh, after a barrier of some neighbours.

    Args:
      x: ``(devices * m, n)``.
      mesh: of the devices.
      hears: whom each device signals: so many ahead.
      devices: how many the kernel is for; 0 for any number.
      by_mask: whether it counts around the ring by a mask, which is for powers of two.
    """

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        me, count = lax.axis_index("x"), devices or lax.axis_size("x")

        def at(steps: int) -> dict[str, Any]:
            if by_mask:
                return {"x": (me + steps + count) & (count - 1)}
            return {"x": lax.rem(me + steps + count, count)}

        ready = pltpu.get_barrier_semaphore()
        for steps in hears:
            pl.semaphore_signal(ready, 1, device_id=at(steps))
        pl.semaphore_wait(ready, len(hears))
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=at(1)).wait()

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


def spec_of(meshes: Any, *, kernel: Any = shift, rows: int = 8, **words: Any) -> KernelSpec:
    return KernelSpec(
        name="shift",
        kernel=functools.partial(kernel, **words),
        reference=shifted,
        inputs=lambda mesh: pst.arrays(
            "m n", dims={"m": rows * mesh.size, "n": [128, 256]}, dtype="float32"
        ),
        meshes=meshes,
        file=__file__,
    )


def check(meshes: Any, checks: str = "forward", **words: Any) -> None:
    if len(jax.devices()) < 8:
        pytest.skip("8 devices are needed")
    spec = meshes if isinstance(meshes, KernelSpec) else spec_of(meshes, **words)
    pytest_pallas.check(spec, backend="tpu-sim", checks=checks)


def noting(sizes: list[dict[str, int]]) -> Any:
    """``shift``, which notes the meshes that it is called on."""

    def kernel(x: Any, *, mesh: Any, **words: Any) -> Any:
        sizes.append(dict(mesh.shape))
        return shift(x, mesh=mesh, **words)

    return kernel


# Drawn meshes.


@pytest.mark.parametrize("checks", ["forward", "dma"])
@pytest.mark.parametrize(
    ("meshes", "shrunk"), [("x", "x=3"), ("x y", "x=3 y=2"), ({"x": (2, 4, 8)}, "x=4")]
)
def test_a_barrier_of_one_neighbour_shows_on_a_drawn_mesh(meshes, shrunk, checks):
    with pytest.raises(DmaError) as raised:
        check(meshes, checks, hears=(1,))
    assert f"\n  mesh      {shrunk}\n" in f"{raised.value}\n"
    assert {finding.kind for finding in raised.value.findings} == {"entry"}


def test_a_kernel_for_powers_of_two_only():
    with pytest.raises(pytest_pallas.PallasError, match=r"\n  mesh      x=3"):
        check("x", by_mask=True)
    check({"x": (2, 4, 8)}, by_mask=True)


@pytest.mark.parametrize("checks", ["forward", "races", "dma"])
@pytest.mark.parametrize(
    ("meshes", "every"),
    [
        ("x", [{2}, {3}, {4}, {6, 8}]),
        ({"x": range(1, 7)}, [{1}, {2}, {3}, {4}, {5}, {6}]),
        ({"x": 4}, [{4}]),
    ],
)
def test_a_check_draws_every_number_of_devices(meshes, every, checks):
    sizes: list[dict[str, int]] = []
    check(meshes, checks, kernel=noting(sizes))
    counts = {mesh["x"] for mesh in sizes}
    assert counts <= set[int]().union(*every)
    assert all(counts & numbers for numbers in every)


def test_both_axes_are_drawn():
    sizes: list[dict[str, int]] = []
    check("x y", kernel=noting(sizes))
    for axis in ("x", "y"):
        assert {mesh[axis] for mesh in sizes} == {2, 3, 4}
    assert max(math.prod(mesh.values()) for mesh in sizes) == 8


def test_meshes_that_the_inputs_refuse_are_left_out():
    sizes: list[dict[str, int]] = []

    def inputs(mesh: Any) -> Any:
        if mesh.size == 3:
            raise SpecError("not on 3")
        return st.nothing() if mesh.size > 4 else spec.inputs(mesh)  # pyright: ignore

    spec = spec_of("x", kernel=noting(sizes))
    check(dataclasses.replace(spec, inputs=inputs))
    assert {mesh["x"] for mesh in sizes} == {2, 4}
    with pytest.raises(SpecError, match="draw nothing for any mesh of"):
        check(dataclasses.replace(spec, inputs=lambda mesh: st.nothing()))


def test_a_given_mesh_is_not_drawn():
    sizes: list[dict[str, int]] = []
    spec = spec_of("x", kernel=noting(sizes))
    pytest_pallas.check(spec, backend="tpu-sim", checks="forward", mesh={"x": 2})
    assert {mesh["x"] for mesh in sizes} == {2}


def test_a_drawn_call_has_its_mesh():
    sizes: list[dict[str, int]] = []
    spec = spec_of("x", kernel=noting(sizes))

    @hypothesis.settings(max_examples=8, database=None, deadline=None)
    @hypothesis.given(call=pst.kernel_args(spec))
    def run(call: pst.Arguments) -> None:
        assert call.args[0].shape[0] == 8 * call.mesh["x"]
        pytest_pallas.check(spec, call, backend="tpu-sim", checks="forward")
        assert dict(call.mesh) in sizes

    run()
    assert len({mesh["x"] for mesh in sizes}) > 2


@pytest.mark.parametrize(
    ("meshes", "words"),
    [
        ("", "meshes must be names of axes"),
        ({"x": ()}, "meshes must be names of axes"),
        ({"x": (2, 0)}, "or their sizes"),
        (({"x": 2}, 4), "not 4"),
        (4, "not 4"),
        (("x", {"x": (2, 4)}), "the axes x twice"),
    ],
)
def test_wrong_meshes_are_named(meshes, words):
    with pytest.raises(SpecError, match=words):
        spec_of(meshes)


# More devices than a spec lists.


@pytest.mark.parametrize("checks", ["forward", "dma"])
@pytest.mark.parametrize(
    ("meshes", "hears", "wrong"),
    [
        ([{"x": 2}], (1,), "x=3"),
        ([{"x": 1}, {"x": 2}], (1,), "x=3"),
        ([{"x": 2, "y": 2}], (1,), "x=3 y=2"),
        ([{"x": 3}], (1, 2), "x=4"),
        ([{"x": 2}], (1, -1), None),
        ([{"x": 2}, {"x": 4}], (-1,), None),
    ],
    ids=["one neighbour", "and one device", "two axes", "two of three", "both", "the right one"],
)
def test_a_barrier_of_one_neighbour(meshes, hears, wrong, checks):
    if wrong is None:
        check(meshes, checks, hears=hears)
        return
    with pytest.raises(DmaError) as raised:
        check(meshes, checks, hears=hears)
    assert f"\n  mesh      {wrong}" in str(raised.value)
    assert {finding.kind for finding in raised.value.findings} == {"entry"}


def test_a_kernel_for_its_devices_is_not_accused_of_others():
    """On three devices one of its devices would never get anything."""
    check([{"x": 2}], devices=2)
    check([{"x": 4}], devices=4)


def test_a_kernel_that_rejects_other_numbers_of_devices():
    def only_two(x, *, mesh):
        if mesh.size != 2:
            raise ValueError("two devices only")
        return shift(x, mesh=mesh, hears=(1,))

    check([{"x": 2}], kernel=only_two)


@pytest.mark.parametrize(("count", "noted"), [(1, False), (2, True), (3, False)])
def test_a_call_on_two_devices_is_noted(count, noted):
    if len(jax.devices()) < count:
        pytest.skip(f"{count} devices are needed")
    mesh = make_mesh({"x": count}, "cpu")
    x = jnp.ones((8 * count, 128))
    kernels = kernel_calls(jax.make_jaxpr(lambda x: shift(x, mesh=mesh))(x))
    assert (on_two_devices(kernels) is not None) == noted
