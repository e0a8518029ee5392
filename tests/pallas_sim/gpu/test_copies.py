"""Copies between global and shared memory, and what orders them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.errors import BoundsError
from pallas_sim.rules import mosaic_copies as copies

X = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
SEEDS = [0, 1, 2, 3]
SMEM = plgpu.SMEM((16, 128), jnp.float32)


def kernel(body: Any, *scratch: Any, shape: tuple[int, ...] = (16, 128), **mesh: Any) -> Any:
    """A function of arrays in global memory, whose kernel has ``scratch``."""

    def function(*arrays):
        out_type = jax.ShapeDtypeStruct(shape, jnp.float32)
        return plgpu.kernel(body, out_type=out_type, scratch_types=list(scratch), **mesh)(*arrays)

    return function


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


def through_shared_memory(
    *, wait: bool = True, commit: bool = True, store_wait: Any = "all", reuse: bool = False
) -> Any:
    """The first rows of an array plus 1, with a step left out."""

    def body(x_gmem, o_gmem, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(0, 16)], buffer, arrived)
        if wait:
            plgpu.barrier_wait(arrived)
        buffer[...] = buffer[...] + 1
        if commit:
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        if store_wait is not None:
            plgpu.wait_smem_to_gmem(0, wait_read_only=store_wait == "read")
        if reuse:
            buffer[...] = jnp.zeros((16, 128), jnp.float32)

    return kernel(body, SMEM, plgpu.Barrier())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("store_wait", ["all", "read"])
def test_through_shared_memory(seed, store_wait):
    found = simulate(through_shared_memory(store_wait=store_wait), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X[:16] + 1)
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_read_before_the_wait(seed):
    found = simulate(through_shared_memory(wait=False), X, target="h100", seed=seed)
    race = next(each for each in found.findings if each.kind == "race")
    assert race.ref == "buffer"
    assert [access.by for access in race.accesses] == ["", "the TMA copy"]
    assert all("test_copies.py" in access.line for access in race.accesses)
    assert "unwaited" in kinds(found)
    if seed == 0:  # as late as possible
        assert np.isnan(found.values).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_commit(seed):
    found = simulate(through_shared_memory(commit=False), X, target="h100", seed=seed)
    (race,) = found.findings
    assert race.kind == "race"
    assert "commit_smem" in race.message


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_is_not_waited_for(seed):
    found = simulate(through_shared_memory(store_wait=None), X, target="h100", seed=seed)
    assert kinds(found) == ["unwaited"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("store_wait", "expected"), [("read", []), (None, ["unwaited", "race"])])
def test_memory_that_is_used_again(seed, store_wait, expected):
    function = through_shared_memory(store_wait=store_wait, reuse=True)
    found = simulate(function, X, target="h100", seed=seed)
    assert sorted(kinds(found)) == sorted(expected)
    if expected and seed == 0:
        assert not found.values.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_beyond_the_array(seed):
    """What is loaded there is zero, and what is stored there is dropped."""

    def body(x_gmem, starts, o_gmem, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(starts[0], 16)], buffer, arrived)
        plgpu.barrier_wait(arrived)
        buffer[...] = buffer[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer, o_gmem.at[pl.ds(starts[1], 16)])
        plgpu.wait_smem_to_gmem(0)

    function = kernel(body, SMEM, plgpu.Barrier(), shape=(28, 128))
    found = simulate(function, X, np.array([56, 16], np.int32), target="h100", seed=seed)
    assert kinds(found) == []
    expected = np.concatenate([X[56:] + 1, np.ones((4, 128), np.float32)])
    assert np.isnan(found.values[:16]).all()
    np.testing.assert_array_equal(found.values[16:], expected)


def test_windows_before_the_array():
    def body(x_gmem, start_gmem, o_gmem, buffer, arrived):
        start = start_gmem[0]
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(start, 16)], buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    start = np.array([-4], np.int32)
    found = simulate(kernel(body, SMEM, plgpu.Barrier()), X, start, target="h100")
    assert not found.values[:4].any()
    np.testing.assert_array_equal(found.values[4:], X[:12])


def test_rows_that_are_listed():
    rows = np.array([3, 1, 60, 3, 9, 9, 0, 63], np.int32)

    def body(x_gmem, rows_gmem, o_gmem, buffer, arrived):
        listed = plgpu.load(rows_gmem, layout=plgpu.Layout.TMA_INDICES)
        plgpu.copy_gmem_to_smem(x_gmem.at[listed], buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    buffer = plgpu.SMEM((8, 128), jnp.float32)
    function = kernel(body, buffer, plgpu.Barrier(), shape=(8, 128))
    found = simulate(function, X, rows, target="b200")
    np.testing.assert_array_equal(found.values, X[rows])
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arrives", [False, True])
def test_a_predicate_leaves_out_the_copy_and_its_arrival(seed, arrives, monkeypatch):
    """In JAX 0.11.2 the copy that does not happen arrives all the same."""
    monkeypatch.setattr(copies, "arrives_without_copying", lambda: arrives)

    def body(x_gmem, o_gmem, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(0, 16)], buffer, arrived, predicate=False)
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(16, 16)], buffer, arrived, predicate=True)
        plgpu.barrier_wait(arrived)
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    barrier = plgpu.Barrier(num_arrivals=2 if arrives else 1)
    found = simulate(kernel(body, SMEM, barrier), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X[16:32])
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_that_add(seed):
    def body(x_gmem, o_gmem, buffer, arrived):
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(0, 16)], buffer, arrived)
        plgpu.barrier_wait(arrived)
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)
        plgpu.copy_smem_to_gmem(buffer, o_gmem, reduction_op="add")
        plgpu.wait_smem_to_gmem(0)

    found = simulate(kernel(body, SMEM, plgpu.Barrier()), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, 2 * X[:16])
    assert kinds(found) == []


def in_order(left: int) -> Any:
    """Two ``cp.async`` copies, of which at most ``left`` may be under way when they are read."""

    def body(x_gmem, o_gmem, first, second):
        for number, buffer in enumerate((first, second)):
            rows = pl.ds(16 * number, 16)
            mode = plgpu.OOBFillMode.PROMISE_IN_BOUNDS
            plgpu.copy_gmem_to_smem(x_gmem.at[rows], buffer, oob_mode=mode)
        plgpu.wait_gmem_to_smem(left)
        o_gmem[...] = first[...] + second[...]

    return kernel(body, SMEM, SMEM)


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_without_a_barrier(seed):
    found = simulate(in_order(0), X, target="a100", seed=seed)
    np.testing.assert_array_equal(found.values, X[:16] + X[16:32])
    assert kinds(found) == []
    late = simulate(in_order(1), X, target="a100", seed=seed)
    assert "race" in kinds(late)
    assert {finding.ref for finding in late.findings if finding.kind == "race"} == {"second"}


def test_engines_that_a_chip_does_not_have():
    from pallas_sim.errors import SimulationError

    with pytest.raises(SimulationError, match="a100 has no TMA"):
        simulate(through_shared_memory(), X, target="a100")
    with pytest.raises(SimulationError, match="pass a barrier"):
        simulate(in_order(0), X, target="h100")


def test_an_index_beyond_shared_memory():
    def body(x_gmem, o_gmem, buffer):
        o_gmem[...] = buffer[pl.ds(x_gmem[0, 17].astype(jnp.int32), 16)]

    with pytest.raises(BoundsError, match=r"load from buffer \[16, 128\] beyond its edge"):
        simulate(kernel(body, SMEM), X, target="h100")


def test_a_kernel_for_a_gpu_on_a_tpu():
    from pallas_sim.errors import SimulationError

    with pytest.raises(SimulationError, match="is a kernel for GPUs, and the target is v6e"):
        simulate(through_shared_memory(), X, target="v6e")


def test_shared_memory_that_a_chip_does_not_have():
    def body(x_gmem, o_gmem, first, second):
        o_gmem[...] = x_gmem[pl.ds(0, 16)]

    large = plgpu.SMEM((256, 128), jnp.float32)
    found = simulate(kernel(body, large, large), X, target="h100")
    (finding,) = found.findings
    assert finding.kind == "capacity"
    assert finding.message == (
        "a block takes 262,144 bytes of shared memory, and a block of h100 can have 232,448: "
        "first 128.0 KiB, second 128.0 KiB. Choose smaller blocks, or fewer stages."
    )


@pytest.mark.parametrize("commit", [True, False])
def test_the_first_thing_that_a_thread_writes(commit):
    def body(x_gmem, o_gmem, buffer):
        buffer[...] = x_gmem[pl.ds(0, 16)]
        if commit:
            plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer, o_gmem)
        plgpu.wait_smem_to_gmem(0)

    found = simulate(kernel(body, SMEM), X, target="h100")
    assert kinds(found) == ([] if commit else ["race"])


@pytest.mark.parametrize("row", [0, 1])
def test_a_copy_of_one_element(row):
    """A thread overwrites it once one of two copies has read its source."""

    def body(x_gmem, o_gmem, buffer):
        buffer[...] = x_gmem[pl.ds(0, 2), 0]
        plgpu.commit_smem()
        for each in range(2):
            plgpu.copy_smem_to_gmem(buffer.at[each], o_gmem.at[each])
        plgpu.wait_smem_to_gmem(1, wait_read_only=True)
        buffer[row] = jnp.float32(3)
        plgpu.wait_smem_to_gmem(0)

    function = kernel(body, plgpu.SMEM((2,), jnp.float32), shape=(2,))
    found = simulate(function, X + 1, target="h100")
    assert kinds(found) == ["race"] * row
    assert found.values.tolist() == [1, 129 if not row else 3]


def test_memory_that_warpgroups_must_share():
    def body(x_gmem, o_gmem):
        pl.run_scoped(lambda buffer: None, plgpu.SMEM((8,), jnp.float32))

    from pallas_sim.errors import SimulationError

    with pytest.raises(SimulationError, match="pass collective_axes='wg'"):
        simulate(kernel(body, num_threads=2, thread_name="wg"), X, target="h100")
    with pytest.raises(SimulationError, match="only the warpgroups of a block can share"):
        simulate(
            kernel(
                lambda x, o: pl.run_scoped(lambda b: None, SMEM, collective_axes="g"),
                grid=(2,),
                grid_names=("g",),
            ),
            X,
            target="h100",
        )


def refilled(between: str) -> Any:
    """Rows 0 to 15 and 16 to 31, added up: both come to one buffer, one after the other."""

    def body(x_gmem, o_gmem, buffer, arrived, again):
        plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(0, 16)], buffer, arrived)
        plgpu.barrier_wait(arrived)
        first = buffer[...]
        if between == "commit":
            plgpu.commit_smem()
        if between in ("arrive", "arrive and wait"):
            plgpu.barrier_arrive(again)
        if between == "arrive and wait":
            plgpu.barrier_wait(again)

        def fill():
            plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(16, 16)], buffer, arrived)

        if between == "a warp":

            @plgpu.warp_map
            def _by_warp(warp):
                pl.when(warp == 0)(fill)

        else:
            fill()
        plgpu.barrier_wait(arrived)
        o_gmem[...] = first + buffer[...]

    params = plgpu.CompilerParams(unsafe_no_auto_barriers=between != "a barrier of the compiler")
    return kernel(body, SMEM, plgpu.Barrier(), plgpu.Barrier(), compiler_params=params)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "between", ["commit", "arrive and wait", "a warp", "a barrier of the compiler"]
)
def test_a_buffer_is_filled_again_when_all_lanes_have_read_it(between, seed):
    found = simulate(refilled(between), X, target="h100", seed=seed, read_fences="none")
    assert not found.findings
    np.testing.assert_array_equal(found.values, X[:16] + X[16:32])
    fenced = between == "commit"
    assert kinds(simulate(refilled(between), X, target="h100", seed=seed)) == ["race"] * (
        not fenced
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("between", ["", "arrive"])
def test_a_buffer_is_filled_again_while_some_lanes_read_it(between, seed):
    found = simulate(refilled(between), X, target="h100", seed=seed)
    (finding,) = found.findings
    assert finding.kind == "race"
    assert "commit_smem() between" in finding.message
    writes, reads = finding.accesses
    assert (writes.by, writes.kind, reads.by, reads.kind) == ("the TMA copy", "write", "", "read")
    assert writes.line != reads.line


def summed(*, fence: str = "", reader: str = "thread") -> Any:
    """The sum of two halves, which one warpgroup copies to a buffer and another one reads."""

    def body(x_gmem, o_gmem, buffer, arrived, free):
        @pl.when(lax.axis_index("w") == 0)
        def _fills():
            for half in range(2):
                if half:
                    plgpu.barrier_wait(free)
                    if fence == "before the copy":
                        plgpu.commit_smem()
                plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(half * 16, 16)], buffer, arrived)

        @pl.when(lax.axis_index("w") == 1)
        def _reads():
            plgpu.barrier_wait(arrived)
            if fence == "before the read":
                plgpu.commit_smem()
            if reader == "thread":
                first = buffer[...]
            else:
                plgpu.copy_smem_to_gmem(buffer, o_gmem)
                plgpu.wait_smem_to_gmem(0)
                first = o_gmem[...]
            if fence == "after the read":
                plgpu.commit_smem()
            plgpu.barrier_arrive(free)
            plgpu.barrier_wait(arrived)
            o_gmem[...] = first + buffer[...]

    barriers = plgpu.Barrier(), plgpu.Barrier()
    return kernel(body, SMEM, *barriers, num_threads=2, thread_name="w")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fence", ["", "before the read", "after the read", "before the copy"])
def test_a_fence_between_the_reads_of_a_warpgroup_and_the_copy_of_another(fence, seed):
    found = simulate(summed(fence=fence), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X[:16] + X[16:32])
    races = [each for each in found.findings if each.kind == "race"]
    if fence in ("after the read", "before the copy"):
        assert not found.findings
        return
    (race,) = races
    assert "no fence comes between them" in race.message
    assert "read_fences='none' (--pallas-read-fences=none)" in race.message
    writes, reads = race.accesses
    assert (writes.by, writes.kind, reads.by, reads.kind) == ("the TMA copy", "write", "", "read")


def test_what_an_engine_has_read_needs_no_fence():
    assert not simulate(summed(reader="engine"), X, target="h100", read_fences="all").findings


@pytest.mark.parametrize("fences", ["kernel", "all", "none"])
@pytest.mark.parametrize("own", [True, False])
def test_which_copies_need_a_fence(fences, own):
    """Those of the kernel, or those of JAX's pipeline, in which it can put none."""
    found = simulate(summed() if own else pipelined(), X, target="h100", read_fences=fences)
    needed = fences == "all" or (fences == "kernel" and own)
    assert kinds(found) == ["race"] * needed


@pytest.mark.parametrize("fences", ["kernel", "all", "none"])
@pytest.mark.parametrize("between", ["", "commit"])
@pytest.mark.parametrize("manual", [True, False])
def test_a_kernel_that_arrives_for_jaxs_pipeline_needs_a_fence(fences, between, manual):
    found = simulate(released(between, manual), X, target="h100", read_fences=fences)
    needed = fences == "all" or (fences == "kernel" and manual)
    assert kinds(found) == ["race"] * (needed and not between)


def released(between: str, manual: bool) -> Any:
    """The sum of halves, by JAX's pipeline; the kernel says itself that it has read a half."""

    def body(x_gmem, o_gmem):
        def consume(_, block, *rest):
            *consumed, total = rest
            total = total + block[...]
            if between:
                plgpu.commit_smem()
            for barrier in consumed:
                plgpu.barrier_arrive(barrier)
            return total

        def compute(pipeline):
            layout = plgpu.Layout.WG_STRIDED((16, 128), 2)
            o_gmem[...] = pipeline(plgpu.layout_cast(jnp.zeros((16, 128)), layout))

        plgpu.emit_pipeline_warp_specialized(
            consume,
            grid=(2,),
            in_specs=[plgpu.BlockSpec((16, 128), lambda i: (i, 0))],
            max_concurrent_steps=1,
            memory_registers=40,
            num_compute_wgs=1,
            wg_axis="w",
            manual_consumed_barriers=manual,
            compute_context=compute,
        )(x_gmem)

    return kernel(body, num_threads=2, thread_name="w")


def pipelined() -> Any:
    """The sum of halves, by JAX's pipeline."""

    def body(x_gmem, o_gmem):
        def add(_, block, total):
            return total + block[...]

        zeros = plgpu.layout_cast(jnp.zeros((16, 128)), plgpu.Layout.WG_STRIDED((16, 128), 2))
        block = plgpu.BlockSpec((16, 128), lambda i: (i, 0))
        pipeline = plgpu.emit_pipeline(add, grid=(2,), in_specs=[block], init_carry=zeros)
        o_gmem[...] = pipeline(x_gmem)

    return kernel(body)


def test_fences_that_there_are_not():
    from pallas_sim.errors import OptionError

    with pytest.raises(OptionError, match="unknown read_fences 'some'; valid: kernel, all, none"):
        simulate(summed(), X, target="h100", read_fences="some")
