"""Accesses beyond an edge: the run goes on, and says what becomes of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import Limits, Machine, simulate
from pallas_sim.errors import BoundsError, DeadlockError, OptionError

FILL = Limits(out_of_bounds="fill")
ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128) + 1
SIZES = np.array([3, 1, 2], np.int32)


def found(simulation: Any, kind: str = "bounds") -> list[Any]:
    return [finding for finding in simulation.findings if finding.kind == kind]


def kernel(body: Any, *scratch: Any, **facts: Any) -> Any:
    """Return a kernel of one program, whose array is in HBM and whose output is in VMEM."""

    def function(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
            in_specs=[facts.get("spec", pl.BlockSpec())],
            scratch_shapes=scratch,
        )(x)

    return function


def of_sizes(use: Any) -> Any:
    """Return a kernel that reads a size before the first one, and uses it."""

    def body(sizes_ref, o_ref, count_ref):
        i = pl.program_id(0)
        count_ref[0] = 0
        o_ref[...] = jnp.zeros_like(o_ref) + use(sizes_ref, i, count_ref)

    def function(sizes):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(2,),
            in_specs=[],
            out_specs=pl.BlockSpec((1, 8, 128), lambda i, _: (i, 0, 0)),
            scratch_shapes=[pltpu.SMEM((1,), jnp.int32)],
        )
        out = jax.ShapeDtypeStruct((2, 8, 128), jnp.int32)
        return pl.pallas_call(body, grid_spec=spec, out_shape=out)(sizes)

    return function


def add_if(condition: Any, value: Any, count: Any) -> Any:
    """Add to memory under a condition; return what is there."""

    @pl.when(condition)
    def _():
        count[0] += value

    return count[0]


DROPPED = {
    "by a select": lambda ref, i, _: lax.select(i > 0, ref[i - 1], 0),
    "by a where": lambda ref, i, _: jnp.where(i > 0, ref[i - 1] * 2 + 1, 7),
    "by a jitted function": lambda ref, i, _: jax.jit(lambda v: jnp.where(i > 0, v, 7))(ref[i - 1]),
    "by a branch": lambda ref, i, _: (lambda v: lax.cond(i > 0, lambda: v, lambda: 7))(ref[i - 1]),
    "of a function": lambda ref, i, _: jnp.where(i > 0, jax.jit(lambda ref: ref[i - 1])(ref), 7),
    "in a branch": lambda ref, i, _: jnp.where(
        i > 0, lax.cond(i < 9, lambda: ref[i - 1], lambda: 0), 7
    ),
    "before a branch": lambda ref, i, count: add_if(i > 0, ref[i - 1], count),
    "by a product": lambda ref, i, _: ref[i - 1] * jnp.minimum(i, 1),
}
KEPT = {
    "as it is": lambda ref, i, _: ref[i - 1],
    "of a function": lambda ref, i, _: jax.jit(lambda ref: ref[i - 1])(ref) * 2,
    "in a branch": lambda ref, i, _: lax.cond(i < 9, lambda: ref[i - 1], lambda: 0),
    "in this branch": lambda ref, i, count: add_if(i == 0, ref[i - 1], count),
    "by a comparison": lambda ref, i, _: (ref[i - 1] > 0).astype(jnp.int32),
    "in memory": lambda ref, i, count: count.__setitem__(0, ref[i - 1]) or jnp.int32(0),
    "in a loop": lambda ref, i, _: lax.fori_loop(0, 2, lambda _, v: v + ref[i - 1], jnp.int32(0)),
    "as an index": lambda ref, i, _: lax.select(i > 0, ref[jnp.clip(ref[i - 1], 0, 2)], 0),
}


@pytest.mark.parametrize("use", DROPPED)
def test_a_value_that_is_dropped(use):
    function = of_sizes(DROPPED[use])
    simulation = simulate(function, SIZES, limits=FILL)
    (finding,) = found(simulation)
    assert finding.dropped
    assert "index -1 of axis 0, which has 3 elements (read and dropped" in str(finding)
    assert finding.program == (0,)
    with pytest.raises(BoundsError, match="read and dropped"):
        simulate(function, SIZES)


@pytest.mark.parametrize("use", KEPT)
def test_a_value_that_reaches_something(use):
    (finding, *_) = found(simulate(of_sizes(KEPT[use]), SIZES, limits=FILL))
    assert not finding.dropped
    assert "dropped" not in str(finding)


MEETINGS = {
    "as a sum": (lambda a, b: a + b, [False, False]),
    "as a comparison": (lambda a, b: (a == b).astype(jnp.float32), [False, False]),
    "as the second one": (lambda a, b: jnp.where(a == a + 1, a, b), [False, False]),
    "as the first one": (lambda a, b: jnp.where(a * 0 == 1, b, a), [False, True]),
    "not at all": (lambda a, b: jnp.where(a * 0 == 1, a + b, 0), [True, True]),
}


@pytest.mark.parametrize("how", MEETINGS)
def test_loads_that_meet_do_not_hide_each_other(how):
    """NaN plus NaN is NaN, whatever one of them is."""
    use, expected = MEETINGS[how]

    def body(x_ref, o_ref, done):
        start = 16 + pl.semaphore_read(done)  # JAX knows constants that are beyond
        first = x_ref[pl.ds(start, 8)]
        second = x_ref[pl.ds(start + 8, 8)]
        o_ref[...] = use(first, second)

    findings = found(simulate(kernel(body, REGULAR), X, limits=FILL))
    assert {f.index[0]: f.dropped for f in findings} == dict(zip((16, 24), expected, strict=True))


def test_a_line_whose_value_is_dropped_in_one_program_only():
    def use(ref, i, _):
        return lax.select(i == 0, 0, ref[3 * i - 1])  # at -1, and at 2

    def late(ref, i, _):
        return lax.select(i == 0, 0, ref[4 * i - 1])  # at -1, and at 3

    assert [f.dropped for f in found(simulate(of_sizes(use), SIZES, limits=FILL))] == [True]
    (finding,) = found(simulate(of_sizes(late), SIZES, limits=FILL))
    assert (finding.dropped, finding.program) == (False, (1,))


def test_a_load_gives_what_is_there_and_what_uninitialized_memory_holds():
    def body(x_ref, o_ref):
        start = x_ref[0, 0].astype(jnp.int32) + 11
        o_ref[...] = x_ref[pl.ds(start, 8)]

    machine = Machine(limits=FILL, fill=lambda dtype, purpose: np.float32(-5))
    values = simulate(kernel(body), X, machine=machine).values
    np.testing.assert_array_equal(values[:4], X[12:])
    assert (values[4:] == -5).all()
    assert np.isnan(simulate(kernel(body), X, limits=FILL).values[4:]).all()


@pytest.mark.parametrize("adds", [False, True])
def test_a_store_leaves_out_what_is_not_there(adds):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(0, 8)]
        part = o_ref.at[pl.ds(x_ref[0, 0].astype(jnp.int32) - 4, 8)]  # from -3 on
        part[...] = x_ref[pl.ds(8, 8)] + (part[...] if adds else 0)

    simulation = simulate(kernel(body), X, limits=FILL)
    assert {f.message.partition(" ")[0] for f in found(simulation)} >= {"store"}
    expected = X[:8].copy()
    expected[:5] = X[11:16] + (expected[:5] if adds else 0)
    np.testing.assert_array_equal(simulation.values, expected)


def test_rows_that_a_mask_drops():
    def body(x_ref, o_ref):
        start = x_ref[0, 0].astype(jnp.int32) - 4  # -3
        rows = lax.broadcasted_iota(jnp.int32, (8, 128), 0) + start
        value = x_ref[pl.ds(start, 8)]
        o_ref[...] = jnp.where(rows >= 0, value, 0)

    simulation = simulate(kernel(body), X, limits=FILL)
    assert [finding.dropped for finding in found(simulation)] == [True]
    np.testing.assert_array_equal(simulation.values[3:], X[:5])


def test_views_of_views():
    def body(x_ref, o_ref):
        start = x_ref[0, 0].astype(jnp.int32) + 5  # 6
        view = x_ref.at[pl.ds(8, 8)].at[pl.ds(start, 4)]
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[pl.ds(0, 4)] = view[...]
        o_ref.at[pl.ds(4, 4)].at[pl.ds(start - 4, 4)][...] = x_ref[pl.ds(0, 4)]

    simulation = simulate(kernel(body), X, limits=FILL)
    assert len(found(simulation)) == 2
    np.testing.assert_array_equal(simulation.values[:2], X[14:16])
    assert np.isnan(simulation.values[2:4]).all()
    np.testing.assert_array_equal(simulation.values[6:], X[:2])
    assert not simulation.values[4:6].any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_race_behind_a_dropped_read(seed):
    def body(x_ref, o_ref, buffer, done):
        start = 12 + pl.semaphore_read(done)  # JAX knows constants that are beyond
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(start, 8)], buffer, done)
        copy.start()
        o_ref[...] = buffer[...]  # before the wait
        copy.wait()

    function = kernel(body, pltpu.VMEM((8, 128), jnp.float32), DMA, spec=ANY)
    simulation = simulate(function, X, limits=FILL, seed=seed)
    assert {"bounds", "race"} <= {finding.kind for finding in simulation.findings}
    with pytest.raises(BoundsError, match=r"copy from x_ref .*indices 12 to 19") as caught:
        simulate(function, X, seed=seed)
    assert {finding.kind for finding in caught.value.findings} == {"bounds", "race"}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_copy_of_what_is_there(seed):
    def body(x_ref, o_ref, done):
        o_ref[...] = jnp.zeros_like(o_ref)
        zero = pl.semaphore_read(done)
        for source, target in (
            (x_ref.at[pl.ds(zero + 12, 8)], o_ref),
            (x_ref.at[pl.ds(0, 4)], o_ref.at[pl.ds(zero + 6, 4)]),
        ):
            copy = pltpu.make_async_copy(source, target, done)
            copy.start()
            copy.wait()

    simulation = simulate(kernel(body, DMA, spec=ANY), X, limits=FILL, seed=seed)
    assert [finding.kind for finding in simulation.findings] == ["bounds"] * 2
    np.testing.assert_array_equal(simulation.values[:4], X[12:])
    assert np.isnan(simulation.values[4:6]).all()
    np.testing.assert_array_equal(simulation.values[6:], X[:2])


def test_a_semaphore_that_is_not_there():
    def body(x_ref, o_ref, ready, done):
        pl.semaphore_signal(ready.at[2], 1)
        pl.semaphore_wait(ready.at[2], 1)
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], o_ref, done.at[3])
        copy.start()
        copy.wait()
        o_ref[...] = jnp.ones_like(o_ref) * (pl.semaphore_read(ready.at[3]) * 0 + 1)

    simulation = simulate(kernel(body, REGULAR((2,)), DMA((2,)), spec=ANY), X, limits=FILL)
    messages = [finding.message for finding in found(simulation)]
    assert len(messages) == 5
    assert messages[0].startswith("use of ready [2] beyond its edge: index 2")


def test_blocks_that_begin_beyond_the_edge():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def function(x):
        return pl.pallas_call(
            body,
            out_shape=x,
            grid=(2,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (2 * i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        )(x)

    simulation = simulate(function, X, limits=FILL)
    assert "begins at [16, 0]" in found(simulation)[0].message
    np.testing.assert_array_equal(simulation.values[:8], X[:8])
    assert np.isnan(simulation.values[8:]).all()


def test_a_deadlock_that_follows_from_a_read_beyond_the_edge():
    def body(sizes_ref, o_ref, ready):
        pl.semaphore_signal(ready, sizes_ref[2])
        pl.semaphore_wait(ready, jnp.maximum(sizes_ref[o_ref.shape[0]], 3))
        o_ref[...] = jnp.zeros_like(o_ref)

    def function(sizes):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.int32),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
            scratch_shapes=[REGULAR],
        )(sizes)

    for limits in (FILL, Limits()):
        with pytest.raises(BoundsError, match="index 8 of axis 0") as caught:
            simulate(function, SIZES, limits=limits)
        assert {finding.kind for finding in caught.value.findings} == {"bounds", "deadlock"}
        assert isinstance(caught.value.__cause__, DeadlockError)


def test_what_limits_take():
    with pytest.raises(OptionError, match='"raise" or "fill", not \'clamp\''):
        Limits(out_of_bounds="clamp")


# On a GPU.


@pytest.mark.parametrize("masked", [False, True])
def test_a_program_of_a_gpu_goes_on(masked):
    from jax.experimental.pallas import triton as plt

    def body(x_ref, o_ref):
        i = pl.program_id(0)
        indices = 8 * i + jnp.arange(8)
        mask = {"mask": indices < 12} if masked else {}  # of 11
        o_ref[pl.ds(8 * i, 8)] = plt.load(x_ref.at[indices], **mask)

    def function(x):
        out = jax.ShapeDtypeStruct((16,), x.dtype)
        return pl.pallas_call(body, out_shape=out, grid=(2,))(x)

    x = np.arange(11, dtype=np.float32)
    simulation = simulate(function, x, target="h100", limits=FILL)
    assert len(found(simulation)) == 1
    np.testing.assert_array_equal(simulation.values[:11], x)
    assert np.isnan(simulation.values[11:]).all()
    with pytest.raises(BoundsError, match="load from x_ref"):
        simulate(function, x, target="h100")


def test_a_store_of_a_program_of_a_gpu():
    def body(x_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[pl.ds(x_ref[0].astype(jnp.int32) + 4, 8)] = x_ref[...] + 1

    def function(x):
        return pl.pallas_call(body, out_shape=x)(x)

    simulation = simulate(function, np.arange(8, dtype=np.float32), target="h100", limits=FILL)
    assert [f.message.partition(" ")[0] for f in found(simulation)] == ["store"]
    np.testing.assert_array_equal(simulation.values, [0, 0, 0, 0, 1, 2, 3, 4])


def test_a_warpgroup_goes_on():
    def body(x_ref, o_ref, smem):
        smem[...] = jnp.zeros((16, 128), jnp.float32)
        smem[pl.ds((x_ref[0, 0] > 5).astype(jnp.int32) + 12, 8)] = x_ref[pl.ds(0, 8)]
        o_ref[...] = smem[...]

    out, scratch = jax.ShapeDtypeStruct(X.shape, X.dtype), [plgpu.SMEM(X.shape, X.dtype)]
    run = plgpu.kernel(body, out_type=out, scratch_types=scratch)
    simulation = simulate(run, X, target="h100", limits=FILL)
    assert [f.message.partition(" ")[0] for f in found(simulation)] == ["store"]
    np.testing.assert_array_equal(simulation.values[12:], X[:4])
    assert not simulation.values[:12].any()
