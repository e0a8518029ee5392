"""Every order of what threads, engines and programs of a GPU do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as plt
from pallas_test_support import grid_orders
from pallas_test_support.gpu_orders import disagreement

from pallas_sim import Exploration, explore, order_matters, simulate
from pallas_sim.errors import DeadlockError
from pallas_sim.machine import Machine

X = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
ZERO = np.zeros(1, np.int32)
FREE = np.zeros((), np.int32)


@pytest.mark.parametrize("seed", range(300))
def test_all_orders_of_small_programs(seed):
    assert disagreement(seed) == ""


@pytest.mark.parametrize("seed", range(300))
def test_all_orders_of_small_grids(seed):
    assert grid_orders.disagreement(seed) == ""


@pytest.mark.parametrize(
    "looks", ["twice", "in vain", "poll", "count", "collect", "try", "spin", "either", "test"]
)
def test_looks_that_see_the_same(looks):
    """Loops that count are run for each of their looks, and so are looks in a row."""
    for other in ((("add", 0), ("add", 0)), (("claim", 0), ("exchange", 0))):
        assert grid_orders.difference((((looks, 0), ("fetch", 0)), other)) == ""


def explored(function: Callable[..., Any], *arrays: Any, schedules: int = 100) -> Exploration:
    return explore(function, *arrays, target="h100", schedules=schedules)


def matters(function: Callable[..., Any], *arrays: Any) -> bool:
    machine = Machine(target="h100")
    simulate(function, *arrays, machine=machine)
    return order_matters(machine)


# Warpgroups, engines and barriers.


def kernel(body: Any, *scratch: Any, threads: int = 2, shape: Any = (64, 128)) -> Any:
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(shape, jnp.float32),
        scratch_types=list(scratch),
        num_threads=threads,
        thread_name="wg",
    )


def pipeline(*, release: bool = True, slots: int = 2) -> Any:
    """One warpgroup loads blocks for another one, which adds 1."""

    def body(x_gmem, o_gmem, buffer, coming, free):
        warpgroup = jax.lax.axis_index("wg")

        @pl.when(warpgroup == 0)
        def _load():
            @pl.loop(0, 4)
            def _block(step):
                slot = jax.lax.rem(step, slots)
                if release:
                    pl.when(step >= slots)(lambda: plgpu.barrier_wait(free.at[slot]))
                rows = x_gmem.at[pl.ds(step * 16, 16)]
                plgpu.copy_gmem_to_smem(rows, buffer.at[slot], coming.at[slot])

        @pl.when(warpgroup == 1)
        def _add():
            @pl.loop(0, 4)
            def _block(step):
                slot = jax.lax.rem(step, slots)
                plgpu.barrier_wait(coming.at[slot])
                o_gmem[pl.ds(step * 16, 16)] = buffer[slot] + 1
                plgpu.commit_smem()
                plgpu.barrier_arrive(free.at[slot])

    barriers = plgpu.Barrier(num_barriers=slots)
    return kernel(body, plgpu.SMEM((slots, 16, 128), jnp.float32), barriers, barriers)


def test_a_right_pipeline_has_one_order():
    assert not matters(pipeline(), X)
    result = explored(pipeline(), X)
    assert (result.verdict, result.runs, result.reasons) == ("proved", 1, ())


def test_a_pipeline_whose_consumer_releases_nothing():
    result = explored(pipeline(release=False), X)
    assert (result.verdict, result.confirmed) == ("wrong", True)
    with pytest.raises(DeadlockError, match="more arrivals at coming"):
        simulate(pipeline(release=False), X, target="h100", witness=str(result.witness))


def arrives_twice(*, waits: bool) -> Any:
    """Two warpgroups arrive in two phases; the first may do so twice before the second has."""

    def body(o_gmem, met):
        @pl.loop(0, 2)
        def _round(_):
            plgpu.barrier_arrive(met)
            if waits:
                plgpu.barrier_wait(met)

        if not waits:
            plgpu.barrier_wait(met)
            plgpu.barrier_wait(met)

    return kernel(body, plgpu.Barrier(num_arrivals=2), shape=(128,))


@pytest.mark.parametrize("waits", [True, False])
def test_an_arrival_may_be_one_for_another_phase(waits):
    result = explored(arrives_twice(waits=waits))
    assert result.verdict == ("proved" if waits else "wrong")


def asks(*, of_a_copy: bool) -> Any:
    """The result says whether a copy, or the other warpgroup, was faster than a test."""

    def body(x_gmem, o_gmem, buffer, done):
        warpgroup = jax.lax.axis_index("wg")

        @pl.when(warpgroup == 0)
        def _ask():
            if of_a_copy:
                plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(0, 16)], buffer, done)
            there = plgpu.barrier_test(done)
            o_gmem[...] = jnp.full((128,), there.astype(jnp.float32))
            pl.when(~there)(lambda: plgpu.barrier_wait(done))

        @pl.when((warpgroup == 1) & (not of_a_copy))
        def _arrive():
            plgpu.barrier_arrive(done)

    return kernel(body, plgpu.SMEM((16, 128), jnp.float32), plgpu.Barrier(), shape=(128,))


@pytest.mark.parametrize("of_a_copy", [True, False])
def test_a_test_of_a_barrier_depends_on_the_order(of_a_copy):
    assert matters(asks(of_a_copy=of_a_copy), X)
    result = explored(asks(of_a_copy=of_a_copy), X)
    assert (result.verdict, result.differs, result.runs) == ("wrong", True, 2)
    assert [reason.kind for reason in result.reasons] == ["look"]


@pytest.mark.parametrize(("threads", "verdict"), [(3, "proved"), (4, "wrong")])
def test_loops_that_test_a_barrier(threads, verdict):
    """Each waits for the next one; with four of them, the last one waits for nobody."""

    def body(o_gmem, done):
        warpgroup = jax.lax.axis_index("wg")
        pl.when(warpgroup == 2)(lambda: plgpu.barrier_arrive(done.at[1]))

        @pl.when(warpgroup != 2)
        def _wait():
            jax.lax.while_loop(
                lambda there: ~there,
                lambda _: plgpu.barrier_test(done.at[warpgroup]),
                jnp.bool_(False),
            )
            pl.when(warpgroup == 1)(lambda: plgpu.barrier_arrive(done.at[0]))

    call = kernel(body, plgpu.Barrier(num_barriers=4), threads=threads, shape=(128,))
    assert explored(call).verdict == verdict


def test_an_update_that_is_lost():
    """Both warpgroups read before either writes: no order of whole updates shows that."""

    def body(o_gmem, sums, met):
        warpgroup = jax.lax.axis_index("wg")
        pl.when(warpgroup == 0)(lambda: sums.__setitem__(..., jnp.zeros((128,), jnp.float32)))
        plgpu.barrier_arrive(met)
        plgpu.barrier_wait(met)
        sums[...] = sums[...] + 1
        plgpu.barrier_arrive(met)
        plgpu.barrier_wait(met)
        pl.when(warpgroup == 0)(lambda: o_gmem.__setitem__(..., sums[...]))

    call = kernel(
        body, plgpu.SMEM((128,), jnp.float32), plgpu.Barrier(num_arrivals=2), shape=(128,)
    )
    result = explored(call)
    assert (result.verdict, result.differs, result.confirmed) == ("wrong", True, True)
    values = simulate(call, target="h100", witness=result.witness).values
    assert np.unique(np.asarray(values)).tolist() == [1]


# Programs of a grid.


def programs(body: Any, count: int, *outputs: Any) -> Any:
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs]
    return pl.pallas_call(
        body, out_shape=shapes, grid=(count,), input_output_aliases={0: 0}, name="programs"
    )


def adding(value: Callable[[Any], Any], dtype: Any) -> Any:
    def body(_, sum_ref):
        plt.atomic_add(sum_ref, (0,), value(pl.program_id(0)).astype(dtype))

    return programs(body, 4, ((1,), dtype))


def test_programs_that_never_communicate():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + pl.program_id(0)

    block = pl.BlockSpec((16, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
        grid=(4,),
        in_specs=[block],
        out_specs=block,
    )
    assert not matters(call, X)
    result = explored(call, X)
    assert (result.verdict, result.runs, result.reasons) == ("proved", 1, ())


@pytest.mark.parametrize(("dtype", "reasons"), [(jnp.int32, []), (jnp.float32, ["sum"])])
def test_atomic_sums_commute(dtype, reasons):
    call = adding(lambda i: 0.1 + i * i, dtype)
    result = explored(call, np.zeros(1, dtype))
    assert (result.verdict, result.runs) == ("proved", 1)
    assert [reason.kind for reason in result.reasons] == reasons


def test_sums_of_different_elements_round_alike():
    """Each program adds to an element of its own, twice: no order of programs rounds otherwise."""

    def body(_, sum_ref):
        me = pl.program_id(0)
        plt.atomic_add(sum_ref, (me,), 0.1 + me)
        plt.atomic_add(sum_ref, (me,), 0.2)

    result = explored(programs(body, 4, ((4,), jnp.float32)), np.ones(4, np.float32))
    assert (result.verdict, result.runs, result.reasons) == ("proved", 1, ())


def claims(*, notes_who: bool) -> Any:
    """Two programs claim tiles by an atomic counter."""

    def body(_, next_ref, o_ref):
        me = pl.program_id(0)

        def compute(tile):
            o_ref[tile] = me if notes_who else tile * tile
            return plt.atomic_add(next_ref, (0,), 1)

        jax.lax.while_loop(lambda tile: tile < 3, compute, plt.atomic_add(next_ref, (0,), 1))

    return programs(body, 2, ((1,), jnp.int32), ((3,), jnp.int32))


def test_tiles_that_programs_claim():
    result = explored(claims(notes_who=False), ZERO)
    assert result.verdict == "proved"
    assert result.runs == result.classes > 1
    few = explored(claims(notes_who=False), ZERO, schedules=2)
    assert (few.verdict, few.left > 0) == ("open", True)
    assert explored(claims(notes_who=True), ZERO).differs


def polls(body: Callable[[Any, Any], Any]) -> Any:
    """Program 0 notes what a loop gives that looks at a flag; program 1 sets it."""

    def programs_body(_, flag_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _look():
            o_ref[0] = body(flag_ref, lambda: plt.load(flag_ref, volatile=True))

        @pl.when(pl.program_id(0) == 1)
        def _set():
            plt.atomic_xchg(flag_ref, (), 1)

    return programs(programs_body, 2, ((), jnp.int32), ((1,), jnp.int32))


def at_most(times: int) -> Any:
    def body(flag_ref, look):
        return jax.lax.while_loop(
            lambda state: (state[0] < times) & (state[1] == 0),
            lambda state: (state[0] + 1, look()),
            (0, 0),
        )[1]

    return polls(body)


def test_a_loop_that_gives_up():
    result = explored(at_most(3), FREE)
    assert (result.verdict, result.differs, result.confirmed) == ("wrong", True, True)
    again = simulate(at_most(3), FREE, target="h100", witness=str(result.witness))
    first = simulate(at_most(3), FREE, target="h100")
    assert int(again.values[1][0]) != int(first.values[1][0])


def test_two_looks_in_a_row():
    result = explored(polls(lambda _, look: 10 * look() + look()), FREE)
    assert (result.verdict, result.differs) == ("wrong", True)


def test_a_loop_that_waits_has_one_order():
    waits = polls(lambda _, look: jax.lax.while_loop(lambda seen: seen == 0, lambda _: look(), 0))
    assert (explored(waits, FREE).verdict, explored(waits, FREE).runs) == ("proved", 2)


def test_a_loop_that_gives_up_when_nobody_else_can_go_on():
    def body(_, flag_ref, o_ref):
        looks, _ = jax.lax.while_loop(
            lambda state: (state[0] < 1_200) & (state[1] == 0),
            lambda state: (state[0] + 1, plt.load(flag_ref, volatile=True)),
            (0, 0),
        )
        o_ref[pl.program_id(0)] = looks

    call = programs(body, 2, ((), jnp.int32), ((2,), jnp.int32))
    result = explored(call, FREE)
    assert (result.verdict, result.error) == ("proved", None)


def locked(count: int, *, exchanges: bool = False, appends: bool = False) -> Any:
    """Programs change a sum while they hold a lock; an exchange alone takes none."""

    def body(_locks, _sums, lock_ref, sum_ref):
        if exchanges:
            plt.atomic_xchg(lock_ref, (), 1)
        else:
            jax.lax.while_loop(lambda held: held != 0, lambda _: plt.atomic_cas(lock_ref, 0, 1), 1)
        me = pl.program_id(0) + 1
        sum_ref[0] = sum_ref[0] * 3 + me if appends else sum_ref[0] + me
        plt.atomic_xchg(lock_ref, (), 0)

    return pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((), (1,))],
        grid=(count,),
        input_output_aliases={0: 0, 1: 1},
    )


def test_a_lock():
    assert matters(locked(2), FREE, ZERO)
    for count in (2, 3):
        result = explored(locked(count), FREE, ZERO)
        assert result.verdict == "proved"
        assert result.classes >= count
    assert explored(locked(2, appends=True), FREE, ZERO).differs


def test_a_lock_that_two_hold():
    result = explored(locked(2, exchanges=True), FREE, ZERO)
    assert (result.verdict, result.differs, result.confirmed) == ("wrong", True, True)
    again = simulate(locked(2, exchanges=True), FREE, ZERO, target="h100", witness=result.witness)
    first = simulate(locked(2, exchanges=True), FREE, ZERO, target="h100")
    assert int(again.values[1][0]) < int(first.values[1][0]) == 3
