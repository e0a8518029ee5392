"""What of a kernel has run: ``Simulation.coverage``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.experimental.pallas import triton as plt

from pallas_sim import simulate
from pallas_sim.coverage import Kind, Point, Reached, merged

ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
ANY = pl.BlockSpec(memory_space=pl.ANY)


def ones(*shape: int) -> Any:
    """An array of ones."""
    return np.ones(shape, np.float32)


def on_rows(body: Callable[..., None], x: Any, *scalars: Any, **options: Any) -> Any:
    """Run a body on blocks of 8 rows; it gets the scalars, an input and an output."""
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(scalars),
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[ROWS],
        out_specs=ROWS,
    )
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(body, grid_spec=spec, out_shape=shape, **options)(*scalars, x)


def reached(kernel: Callable[..., Any], *args: Any, kind: Kind, **options: Any) -> list[Reached]:
    """What one run of a kernel reached, of one kind."""
    coverage = simulate(kernel, *args, **options).coverage
    return [one for one in coverage if one.point.kind == kind]


def only(kernel: Callable[..., Any], *args: Any, kind: Kind, **options: Any) -> Reached:
    """The only point of a kind that a run came to."""
    (one,) = reached(kernel, *args, kind=kind, **options)
    return one


def at(function: Callable[..., Any], text: str) -> str:
    """``file:line`` of the first line of a function with a text."""
    lines, first = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines) if text in line)
    return f"{inspect.getsourcefile(function)}:{first + number}"


# Branches.


def from_fourth(x_ref: Any, o_ref: Any) -> None:
    """Does something else from the fifth block on."""
    o_ref[...] = x_ref[...]

    @pl.when(pl.program_id(0) >= 4)
    def _() -> None:
        o_ref[...] = x_ref[...] * 2


def test_a_branch_that_the_grid_rules_out_says_which_axis_and_what_it_needs() -> None:
    one = only(functools.partial(on_rows, from_fourth), ones(16, 128), kind="branch")
    assert one.point == Point("branch", at(from_fourth, "pl.when"), "from_fourth")
    assert one.counts == {"false": 2}
    assert one.condition == "pl.program_id(0) >= 4"
    assert one.unreachable == {"true": "the grid has 2 steps along axis 0"}
    assert one.depends == (("program_id", 0),)
    assert one.needs == {"true": (("program_id", 0), ">=", 4)}


def test_two_shapes_together_reach_both_sides() -> None:
    run = functools.partial(on_rows, from_fourth)
    runs = [simulate(run, ones(8 * tiles, 128)).coverage for tiles in (1, 6)]
    (one,) = [one for one in merged(runs) if one.point.kind == "branch"]
    assert one.counts == {"false": 5, "true": 2}
    assert (one.missing, one.unreachable, one.needs) == ((), {}, {})


def test_a_scalar_decides() -> None:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = lax.cond(n_ref[0] > 3, lambda: x_ref[...], lambda: x_ref[...] * 2)

    one = only(
        functools.partial(on_rows, body), ones(8, 128), np.array([2], np.int32), kind="branch"
    )
    assert (one.missing, one.unreachable) == (("true",), {})
    assert one.needs == {"true": (("scalar", 0), ">", 3)}


def test_a_selection_by_one_boolean_is_a_branch() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * jnp.where(pl.program_id(0) >= 4, 3.0, 2.0)

    one = only(functools.partial(on_rows, body), ones(16, 128), kind="branch")
    assert (one.counts, one.condition) == ({"false": 2}, "pl.program_id(0) >= 4")
    assert one.needs == {"true": (("program_id", 0), ">=", 4)}
    whole = only(functools.partial(on_rows, body), ones(48, 128), kind="branch")
    assert whole.counts == {"false": 4, "true": 2}


def test_selections_of_jax_are_no_branches() -> None:
    """An index that may be negative, and a remainder that has the sign of the divisor."""

    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * (n_ref[n_ref[0] % 3] // 2)

    scalars = np.array([2, 4, 6], np.int32)
    assert not reached(functools.partial(on_rows, body), ones(8, 128), scalars, kind="branch")


def test_each_branch_of_a_switch() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        branches = [lambda n=n: x_ref[...] * n for n in range(3)]
        o_ref[...] = lax.switch(pl.program_id(0), branches)

    one = only(functools.partial(on_rows, body), ones(16, 128), kind="branch")
    assert one.counts == {"0": 1, "1": 1}
    assert one.needs == {"2": (("program_id", 0), "==", 2)}
    assert list(one.unreachable) == ["2"]


def test_calls_scopes_and_loops_are_entered() -> None:
    @jax.jit
    def helper(a: Any) -> Any:
        return lax.cond(a > 1, lambda: 1.0, lambda: 2.0)

    def body(x_ref: Any, o_ref: Any) -> None:
        def scope(memory: Any) -> None:
            @pl.loop(0, 3)
            def _(i: Any) -> None:
                memory[...] = x_ref[...] + helper(i)

            o_ref[...] = memory[...]

        pl.run_scoped(scope, pltpu.VMEM((8, 128), jnp.float32))

    one = only(functools.partial(on_rows, body), ones(8, 128), kind="branch")
    assert one.counts == {"false": 2, "true": 1}


def test_a_derivative_has_no_points() -> None:
    """JAX keeps no lines of it: all of it would be the line that calls the kernel."""

    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.loop(0, x_ref[0, 0].astype(jnp.int32))
        def _(i: Any) -> None:
            o_ref[...] = x_ref[...] * i

    @jax.custom_vjp
    def kernel(x: Any) -> Any:
        return on_rows(body, x)

    kernel.defvjp(lambda x: (on_rows(body, x), x), lambda x, do: (on_rows(body, x + do),))
    program = jax.grad(lambda x: kernel(x).sum())
    one = only(program, ones(8, 128), kind="loop")
    assert one.point.line == at(body, "@pl.loop")


def test_only_the_kernel_counts_and_not_what_jax_makes() -> None:
    def program(x: Any) -> Any:
        x = lax.cond(x[0, 0] > 2, lambda: x, lambda: x * 2)
        x = lax.fori_loop(0, 3, lambda i, y: y + i, x)
        return on_rows(lambda x_ref, o_ref: o_ref.__setitem__(..., x_ref[...] // 2), x)

    kinds = {one.point.kind for one in simulate(program, ones(8, 128)).coverage}
    assert kinds == {"block", "revisit"}


@pytest.mark.parametrize("steps", [2, 3])
def test_of_a_pipeline_of_jax_body_and_buffers_count(steps: int) -> None:
    """Two buffers of each block take turns; the branches and loops around them are JAX's."""

    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            o_ref[...] = x_ref[...]

    def kernel(x_ref: Any, o_ref: Any) -> None:
        steps = x_ref.shape[0] // 8
        pltpu.emit_pipeline(body, grid=(steps,), in_specs=[ROWS], out_specs=[ROWS])(x_ref, o_ref)

    x = ones(8 * steps, 128)
    run = pl.pallas_call(kernel, in_specs=[ANY], out_specs=ANY, out_shape=x)
    one, *rings = simulate(run, x).coverage
    assert (one.point.kind, one.counts) == ("branch", {"false": steps - 1, "true": 1})
    assert [ring.point.line for ring in rings] == [at(kernel, "emit_pipeline")] * 2
    for ring in rings:
        assert (ring.point.kind, ring.slots, ring.used) == ("ring", 2, steps)
        assert ring.missing == (() if steps > 2 else ("again",))


def test_of_a_pipeline_of_shared_memory_the_buffers_count() -> None:
    """JAX's copies there have no line: it is that of the pipeline."""

    def body(_: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    def kernel(x_ref: Any, o_ref: Any) -> None:
        rows = plgpu.BlockSpec((64, 128), lambda i: (i, 0))
        run = plgpu.emit_pipeline(
            body, grid=(5,), in_specs=[rows], out_specs=[rows], max_concurrent_steps=4
        )
        run(x_ref, o_ref)

    x = ones(320, 128)
    rings = reached(plgpu.kernel(kernel, out_type=x), x, kind="ring", target="h100")
    assert {ring.point.line for ring in rings} == {at(kernel, "run(x_ref")}
    assert [(ring.slots, ring.used, ring.missing) for ring in rings] == [(4, 5, ())] * 2


def test_a_kernel_without_lines() -> None:
    space: dict[str, Any] = {"pl": pl}
    code = """
def body(x_ref, o_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        o_ref[...] = x_ref[...]
    @pl.when(pl.program_id(0) == 1)
    def _():
        o_ref[...] = x_ref[...]
"""
    exec(code, space)
    first, second = reached(functools.partial(on_rows, space["body"]), ones(8, 128), kind="branch")
    assert (first.counts, second.counts) == ({"true": 1}, {"false": 1})
    assert first.point.line.endswith("(in body, line 3)")
    assert first.condition == ""


def test_a_predicate_of_a_copy_is_a_branch() -> None:
    def kernel(x_ref: Any, o_ref: Any, smem: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, smem, barrier)
        plgpu.barrier_wait(barrier)
        i = lax.axis_index("i")
        plgpu.copy_smem_to_gmem(smem, o_ref, predicate=i == 0)
        plgpu.wait_smem_to_gmem(0)

    shape = jax.ShapeDtypeStruct((64, 128), np.float32)
    scratch = [plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()]
    run = plgpu.kernel(kernel, out_type=shape, grid=(2,), grid_names=("i",), scratch_types=scratch)
    one = only(run, ones(64, 128), kind="branch", target="h100")
    assert (one.counts, one.condition) == ({"false": 1, "true": 1}, "i == 0")


# Loops.


def looping(rounds: Callable[[Any], Any]) -> Callable[..., Any]:
    """A kernel whose loop has as many rounds as the scalar and the program say."""

    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + lax.fori_loop(0, rounds(n_ref), lambda i, y: y + i, 0)

    return functools.partial(on_rows, body)


def test_a_loop_with_bounds_that_a_scalar_gives() -> None:
    kernel = looping(lambda n_ref: n_ref[0])
    one = only(kernel, ones(8, 128), np.array([1], np.int32), kind="loop")
    assert (one.counts, one.missing) == ({"one": 1}, ("several", "none"))
    assert one.needs["several"] == (("scalar", 0), ">=", 2)
    runs = [simulate(kernel, ones(8, 128), np.array([n], np.int32)).coverage for n in (0, 1, 2, 3)]
    (one,) = [one for one in merged(runs) if one.point.kind == "loop"]
    assert (one.counts, one.missing) == ({"none": 1, "one": 1, "several": 2}, ())


def test_a_loop_whose_rounds_the_trace_has_is_to_have_several() -> None:
    kernel = looping(lambda n_ref: 1)
    one = only(kernel, ones(8, 128), np.array([1], np.int32), kind="loop")
    assert one.unreachable == {"several": "the loop has 1 round here"}
    kernel = looping(lambda n_ref: 2)
    one = only(kernel, ones(8, 128), np.array([1], np.int32), kind="loop")
    assert (one.counts, one.missing, one.unreachable) == ({"several": 1}, (), {})


def test_a_loop_that_the_grid_makes_long() -> None:
    kernel = looping(lambda n_ref: pl.program_id(0) + 1)
    one = only(kernel, ones(8, 128), np.array([1], np.int32), kind="loop")
    assert one.unreachable == {"several": "the grid has 1 step along axis 0"}
    assert one.needs == {"several": (("program_id", 0), ">=", 1)}


# Rings.

SLOTS = 4


def ring(x_ref: Any, o_ref: Any, buf: Any, sem: Any) -> None:
    """Double 8 rows at a time, through a ring of four buffers, unrolled."""
    steps = x_ref.shape[0] // 8

    def copy(i: int) -> Any:
        slot = i % SLOTS
        return pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], buf.at[slot], sem.at[slot])

    for i in range(min(SLOTS, steps)):
        copy(i).start()
    for i in range(steps):
        copy(i).wait()
        o_ref[pl.ds(i * 8, 8)] = buf[i % SLOTS] * 2
        if i + SLOTS < steps:
            copy(i + SLOTS).start()


def through_ring(x: Any, body: Callable[..., None] = ring) -> Any:
    """Run a body with the scratch of ``ring``."""
    scratch = [pltpu.VMEM((SLOTS, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA((SLOTS,))]
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(body, out_shape=shape, in_specs=[ANY], scratch_shapes=scratch)(x)


@pytest.mark.parametrize("tiles", [1, 3, 4, 6])
def test_an_unrolled_ring_is_used_again_with_more_tiles_than_slots(tiles: int) -> None:
    one = only(through_ring, ones(8 * tiles, 128), kind="ring")
    assert one.point == Point("ring", at(ring, ".start()"), "ring", "buf")
    assert (one.slots, one.used) == (SLOTS, tiles)
    assert one.missing == (() if tiles > SLOTS else ("again",))
    again = {"again": tiles - SLOTS} if tiles > SLOTS else {}
    assert one.counts == {"first": min(tiles, SLOTS), **again}


def test_a_ring_in_a_loop() -> None:
    def body(x_ref: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        @pl.loop(0, x_ref.shape[0] // 8)
        def _(i: Any) -> None:
            rows, slot = pl.ds(i * 8, 8), lax.rem(i, SLOTS)
            copy = pltpu.make_async_copy(x_ref.at[rows], buf.at[slot], sem.at[slot])
            copy.start()
            copy.wait()
            o_ref[rows] = buf[slot]

    few, many = (
        only(functools.partial(through_ring, body=body), ones(8 * n, 128), kind="ring")
        for n in (2, 9)
    )
    assert (few.missing, few.used) == (("again",), 2)
    assert (many.missing, many.counts) == ((), {"first": 4, "again": 5})


def test_a_part_of_one_row_is_no_slot() -> None:
    """Such as the rest of an array whose last block is partial."""

    def body(x_ref: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(8, 1)], buf.at[pl.ds(0, 1)], sem)
        copy.start()
        copy.wait()
        o_ref[...] = buf[pl.ds(0, 1)]

    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
    run = pl.pallas_call(body, in_specs=[ANY], out_shape=ones(1, 128), scratch_shapes=scratch)
    assert not reached(run, ones(9, 128), kind="ring")


def test_buffers_that_each_have_something_of_their_own_are_no_ring() -> None:
    def body(x_ref: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        @pl.loop(0, SLOTS)
        def _(i: Any) -> None:
            pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], buf.at[i], sem.at[i]).start()

        @pl.loop(0, SLOTS)
        def _(i: Any) -> None:
            pltpu.make_async_copy(x_ref.at[pl.ds(i * 8, 8)], buf.at[i], sem.at[i]).wait()

        o_ref[...] = buf[...].reshape(o_ref.shape)

    run = functools.partial(through_ring, body=body)
    assert not reached(run, ones(8 * SLOTS, 128), kind="ring")


def test_copies_that_fill_a_slot_together_use_it_once() -> None:
    def body(x_ref: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        @pl.loop(0, x_ref.shape[0] // 8)
        def _(i: Any) -> None:
            slot = lax.rem(i, SLOTS)
            halves = [
                pltpu.make_async_copy(
                    x_ref.at[pl.ds(i * 8 + half, 4)], buf.at[slot, pl.ds(half, 4)], sem.at[slot]
                )
                for half in (0, 4)
            ]
            for half in halves:
                half.start()
            for half in halves:
                half.wait()
            o_ref[pl.ds(i * 8, 8)] = buf[slot]

    one = only(functools.partial(through_ring, body=body), ones(24, 128), kind="ring")
    assert (one.counts, one.used, one.missing) == ({"first": 3}, 3, ("again",))


def delay(x: Any, index: Callable[..., Any], slots: int = SLOTS) -> Any:
    """Add the block of four steps before, which scratch keeps at some index for each step."""

    def body(x_ref: Any, o_ref: Any, line: Any) -> None:
        step = pl.program_id(0)
        o_ref[...] = x_ref[...]
        pl.when(step >= SLOTS)(lambda: o_ref.__setitem__(..., o_ref[...] + line[index(step)]))

        @pl.loop(0, 8)
        def _(row: Any) -> None:
            line[index(step), row] = x_ref[row]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    scratch = [pltpu.VMEM((slots, 8, 128), jnp.float32)]
    grid = (x.shape[0] // 8,)
    run = pl.pallas_call(
        body, shape, grid=grid, in_specs=[ROWS], out_specs=ROWS, scratch_shapes=scratch
    )
    return run(x)


@pytest.mark.parametrize(
    "index", [lambda i: lax.rem(i, SLOTS), lambda i: i % SLOTS, lambda i: i & 3]
)
def test_a_ring_that_stores_fill(index: Callable[..., Any]) -> None:
    """A slot is used once for all of its rows."""
    run = functools.partial(delay, index=index)
    few, many = (only(run, ones(8 * tiles, 128), kind="ring") for tiles in (3, 6))
    assert few.point == Point("ring", at(delay, "line[index(step), row] ="), "body", "line")
    assert (few.counts, few.missing, few.slots, few.used) == ({"first": 3}, ("again",), 4, 3)
    assert (many.counts, many.missing, many.used) == ({"first": 4, "again": 2}, (), 6)


@pytest.mark.parametrize("index", [lambda i: i, lambda i: i // 2, lambda i: lax.rem(i, 3)])
def test_positions_in_an_array_are_no_ring(index: Callable[..., Any]) -> None:
    """Also those of a part, such as the first three of eight."""
    run = functools.partial(delay, index=index, slots=9)
    rings = reached(run, ones(48, 128), kind="ring")
    assert not [one for one in rings if one.missing]


def arrivals(x_ref: Any, o_ref: Any, ready: Any) -> None:
    """Double rows, and arrive at three barriers in turns."""

    @pl.loop(0, x_ref.shape[0])
    def _(i: Any) -> None:
        slot = lax.rem(i, 3)
        plgpu.barrier_arrive(ready.at[slot])
        plgpu.barrier_wait(ready.at[slot])
        o_ref[i] = x_ref[i] * 2


@pytest.mark.parametrize("rows", [2, 5])
def test_barriers_that_take_turns_without_copies(rows: int) -> None:
    barriers = [plgpu.Barrier(num_barriers=3)]
    kernel = plgpu.kernel(arrivals, out_type=ones(rows, 128), scratch_types=barriers)
    one = only(kernel, ones(rows, 128), kind="ring", target="h100")
    assert (one.point.name, one.slots, one.used) == ("ready", 3, rows)
    assert one.missing == (() if rows > 3 else ("again",))


def on_warpgroups(x_ref: Any, o_ref: Any, smem: Any, barrier: Any) -> None:
    """Double 64 rows at a time, through a ring of two buffers of shared memory."""
    steps = x_ref.shape[0] // 64

    def load(i: Any) -> None:
        slot = lax.rem(i, 2)
        plgpu.copy_gmem_to_smem(x_ref.at[pl.ds(i * 64, 64)], smem.at[slot], barrier.at[slot])

    for i in range(min(2, steps)):
        load(i)

    @pl.loop(0, steps)
    def _(i: Any) -> None:
        slot = lax.rem(i, 2)
        plgpu.barrier_wait(barrier.at[slot])
        smem.at[slot][...] = smem.at[slot][...] * 2
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem.at[slot], o_ref.at[pl.ds(i * 64, 64)])
        plgpu.wait_smem_to_gmem(0)

        @pl.when(i + 2 < steps)
        def _() -> None:
            load(i + 2)


@pytest.mark.parametrize("tiles", [1, 4])
def test_a_ring_of_shared_memory(tiles: int) -> None:
    shape = jax.ShapeDtypeStruct((64 * tiles, 128), np.float32)
    scratch = [plgpu.SMEM((2, 64, 128), jnp.float32), plgpu.Barrier(num_barriers=2)]
    run = plgpu.kernel(on_warpgroups, out_type=shape, scratch_types=scratch)
    coverage = simulate(run, ones(64 * tiles, 128), target="h100").coverage
    by_kind = {one.point.kind: one for one in coverage}
    assert (by_kind["ring"].slots, by_kind["ring"].used) == (2, tiles)
    assert by_kind["ring"].missing == (() if tiles > 2 else ("again",))
    assert by_kind["branch"].counts == ({"false": 2, "true": 2} if tiles > 2 else {"false": 1})
    assert by_kind["wait"].counts == {"blocked": tiles}


# Masks, blocks, revisits and waits.


def below_edge(x_ref: Any, o_ref: Any, *, rows: int) -> None:
    """Keep the rows that the array has."""
    row = pl.program_id(0) * 8 + lax.broadcasted_iota(jnp.int32, (8, 128), 0)
    o_ref[...] = jnp.where(row < rows, x_ref[...], jnp.where(x_ref[...] > 5, 1.0, 0.0))


def test_masks_blocks_and_revisits() -> None:
    def run(x: Any) -> Any:
        return on_rows(functools.partial(below_edge, rows=x.shape[0]), x)

    whole, ragged = (reached(run, ones(rows, 128), kind="mask") for rows in (16, 20))
    names = [one.point.name for one in whole]
    assert names == ["row < rows", "x_ref[...] > 5"]
    assert whole[0].counts == {"full": 2}
    assert whole[0].unreachable == {"partial": "the mask is constant in this program"}
    assert ragged[0].counts == {"full": 2, "partial": 1}
    # Whether floats are so large is up to their values.
    assert (whole[1].counts, whole[1].missing, whole[1].unreachable) == ({"empty": 2}, (), {})
    blocks = reached(run, ones(20, 128), kind="block")
    assert [one.counts for one in blocks] == [{"whole": 2, "overhang": 1}] * 2
    assert only(run, ones(20, 128), kind="revisit").counts == {"first": 3}


def test_a_mask_that_the_program_may_make_partial_is_missing() -> None:
    def body(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.where(
            lax.broadcasted_iota(jnp.int32, (8, 128), 1) < n_ref[0], x_ref[...], 0
        )

    one = only(
        functools.partial(on_rows, body), ones(8, 128), np.array([200], np.int32), kind="mask"
    )
    assert (one.counts, one.missing, one.depends) == ({"full": 1}, ("partial",), (("scalar", 0),))


def test_a_block_of_an_output_is_visited_again() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    shape = jax.ShapeDtypeStruct((8, 128), np.float32)
    out = pl.BlockSpec((8, 128), lambda i: (0, 0))
    run = pl.pallas_call(body, grid=(3,), in_specs=[ROWS], out_specs=out, out_shape=shape)
    assert only(run, ones(24, 128), kind="revisit").counts == {"first": 1, "again": 2}


def test_masks_of_triton() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        at = pl.program_id(0) * 8 + jnp.arange(8)
        plt.store(o_ref.at[at], plt.load(x_ref.at[at], mask=at < 20, other=0.0), mask=at < 20)

    shape = jax.ShapeDtypeStruct((20,), np.float32)
    run = pl.pallas_call(body, grid=(3,), out_shape=shape, compiler_params=plt.CompilerParams())
    load, store = reached(run, ones(20), kind="mask", target="h100")
    assert load.counts == store.counts == {"full": 2, "partial": 1}
    assert (load.condition, load.point.name) == ("at < 20", "load: at < 20")


def test_cores_and_schedules_are_counted_together() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.when(lax.axis_index("subcore") == 3)
        def _() -> None:
            pltpu.sync_copy(x_ref, o_ref)

    def run(x: Any) -> Any:
        mesh = plsc.VectorSubcoreMesh(
            core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=16
        )
        params = pltpu.CompilerParams(needs_layout_passes=False)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.kernel(body, out_type=shape, mesh=mesh, compiler_params=params)(x)

    runs = [simulate(run, ones(16, 128), seed=seed).coverage for seed in (0, 3, 3)]
    (one,) = [one for one in runs[0] if one.point.kind == "branch"]
    assert one.counts == {"false": 15, "true": 1}
    assert runs[1] == runs[2]


# What is inside of branches and loops that never ran.


def inside(x_ref: Any, o_ref: Any) -> None:
    """Does something in a branch, in a loop, in a branch that is for the sixth block."""
    o_ref[...] = x_ref[...]

    @pl.when(pl.program_id(0) >= 5)
    def _() -> None:
        @pl.loop(0, pl.program_id(0) - 5)
        def _(i: Any) -> None:
            pl.when(i > 1)(lambda: o_ref.__setitem__(..., x_ref[...] * 2))


@pytest.mark.parametrize("tiles", [2, 6, 9])
def test_what_is_inside_of_what_never_ran_is_there_with_what_is_around(tiles: int) -> None:
    """So the points and their ways are the same, whatever ran."""
    one = simulate(functools.partial(on_rows, inside), ones(8 * tiles, 128)).coverage
    when, loop, late = (
        next(one for one in one if one.point.line == at(inside, text))
        for text in ("pl.when(pl.program_id", "@pl.loop", "pl.when(i")
    )
    ways = {
        one.point.kind: {*one.counts, *one.missing, *one.unreachable} for one in (when, loop, late)
    }
    assert ways == {"branch": {"true", "false"}, "loop": {"none", "one", "several"}}
    assert when.within == ()
    assert loop.within == (() if tiles > 5 else ((when.point, "true"),))
    assert late.within == (() if tiles > 6 else ((loop.point, "several"),))
    assert (loop.counts == {}, late.counts == {}) == (tiles < 6, tiles < 7)
    both = merged(
        [(loop, late), simulate(functools.partial(on_rows, inside), ones(72, 128)).coverage]
    )
    assert all(not one.within for one in both)


def test_a_function_that_runs_elsewhere_is_in_nothing() -> None:
    def helper(x_ref: Any, o_ref: Any) -> None:
        pl.when(x_ref[0, 0] > 2)(lambda: o_ref.__setitem__(..., x_ref[...] * 2))

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]
        pl.when(pl.program_id(0) > 5)(lambda: helper(x_ref, o_ref))
        helper(x_ref, o_ref)

    branches = reached(functools.partial(on_rows, body), ones(16, 128), kind="branch")
    [inner] = [one for one in branches if one.point.line == at(helper, "pl.when")]
    assert (inner.within, inner.counts) == ((), {"false": 2})


def test_branches_that_jax_chooses_by_the_platform_are_not_asked_for() -> None:
    def body(x_ref: Any, o_ref: Any) -> None:
        def other(x: Any) -> Any:
            return lax.cond(x[0, 0] > 2, lambda: x, lambda: x * 2)

        o_ref[...] = lax.platform_dependent(x_ref[...], cuda=other, default=lambda x: x)

    assert not reached(functools.partial(on_rows, body), ones(8, 128), kind="branch")


def test_a_ring_is_one_point_whichever_line_uses_it_first():
    def ring(line, *ways):
        point = Point("ring", line, "kernel", "barriers")
        missing = tuple({"first", "again"} - set(ways))
        return Reached(point=point, counts=dict.fromkeys(ways, 1), missing=missing)

    [both] = merged([[ring("k.py:9", "first")], [ring("k.py:4", "first", "again")]])
    assert both.point.line == "k.py:4"
    assert both.counts == {"first": 2, "again": 1}
    assert not both.missing
