"""Clusters that take over the work of others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.errors import DeadlockError, MissingRuleError
from pallas_sim.gpu.mosaic_kernels import NOTE
from pallas_sim.machine import Machine
from pallas_sim.rules.mosaic_threads import answer_of, point_in

SEEDS = (0, 1, 2, 3, 4)


def turns(
    grid: tuple[int, ...], *, threads: int = 1, blocks: int = 1, names_axis: bool = True
) -> Any:
    """A kernel that says in which turn of a block each program is computed, from 1 on.

    Args:
      grid: of clusters.
      threads: of a block.
      blocks: of a cluster.
      names_axis: whether the loop names the axis of the cluster.
    """
    names = tuple(f"g{axis}" for axis in range(len(grid)))
    cluster: Any = {"cluster": (blocks,), "cluster_names": ("c",)} if blocks > 1 else {}
    thread: Any = {"num_threads": threads, "thread_name": "t"} if threads > 1 else {}

    def body(o: Any) -> None:
        loop = plgpu.dynamic_scheduling_loop(
            names,
            thread_axis="t" if threads > 1 else None,
            cluster_axes=("c",) if blocks > 1 and names_axis else (),
        )

        @loop
        def _visit(info: Any) -> None:
            block = jax.lax.axis_index("c") if blocks > 1 else 0
            number = jax.lax.axis_index("t") if threads > 1 else 0
            o[(*info.index, block, number)] = info.local_index + 1

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((*grid, blocks, threads), jnp.int32),
        grid=grid,
        grid_names=names,
        **cluster,
        **thread,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "mesh", [{}, {"threads": 3}, {"blocks": 2}, {"threads": 2, "blocks": 2}], ids=str
)
@pytest.mark.parametrize("grid", [(1,), (7,), (3, 2), (2, 2, 2, 2)], ids=str)
def test_each_program_is_computed(grid: Any, mesh: dict[str, int], seed: int) -> None:
    """By all blocks and threads of a cluster in the same turn."""
    run = simulate(turns(grid, **mesh), target="b200", seed=seed)
    assert not run.findings
    by_cluster = run.values.reshape(-1, mesh.get("blocks", 1) * mesh.get("threads", 1))
    assert (by_cluster >= 1).all()
    assert (by_cluster == by_cluster[:, :1]).all()
    assert run.notes == (NOTE,)


def test_some_take_over_the_work_of_others() -> None:
    """Half begin, in the plain order; with seeds, other numbers do."""
    plain = simulate(turns((8,)), target="b200").values.ravel()
    assert plain[:4].tolist() == [1, 1, 1, 1]
    assert plain.max() > 1
    found = {tuple(simulate(turns((8,)), target="b200", seed=s).values.ravel()) for s in (1, 2, 3)}
    assert len(found) == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loop_that_is_not_told_of_its_cluster(seed: int) -> None:
    """Each of its blocks asks, and both answers go to the same place."""
    machine = Machine(target="b200", seed=seed)
    with suppress(DeadlockError):
        simulate(turns((8,), blocks=2, names_axis=False), machine=machine)
    races = [each for each in machine.findings if each.kind == "race"]
    assert "try_cancel_buffer" in {each.ref for each in races}
    assert all("test_cluster_control.py" in each.line for each in races if "try" in each.ref)


def asking(*, again: bool = False, waits: bool = True) -> Any:
    """A kernel whose blocks send a request once, or twice, and say what the answer was."""

    def body(o: Any, answer: Any, barrier: Any) -> None:
        where = jax.lax.axis_index("g")

        def ask() -> Any:
            plgpu.try_cluster_cancel(answer, barrier)
            if waits:
                plgpu.barrier_wait(barrier)
            (place,), taken = plgpu.query_cluster_cancel(answer, ("g",))
            if not waits:
                plgpu.barrier_wait(barrier)
            return jnp.where(taken, place, -1)

        o[where, 0] = where
        first = ask()
        pl.when(first >= 0)(lambda: o.__setitem__((first, 0), where))
        o[where, 1] = first
        if again:
            plgpu.commit_smem()  # the answer was read, and the next one overwrites it
            o[where, 1] = ask()

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((4, 2), jnp.int32),
        scratch_types=[plgpu.TryClusterCancelResult(), plgpu.Barrier()],
        grid=(4,),
        grid_names=("g",),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_who_takes_over_whom(seed: int) -> None:
    """No cluster is taken over twice, and those that were never run."""
    run = simulate(asking(), target="b200", seed=seed)
    assert not run.findings
    who, answers = run.values.T
    for program in range(4):
        if who[program] != program:
            assert answers[who[program]] == program
            assert answers[program] == np.iinfo(np.int32).min  # it has never run
    assert seed or {*answers} - {-1, np.iinfo(np.int32).min}  # in the plain order, a block does


def test_an_answer_is_read_after_the_wait() -> None:
    """Before that it is a race."""
    kinds = {each.kind for each in simulate(asking(waits=False), target="b200").findings}
    assert kinds == {"race"}


def test_nobody_asks_again_after_a_failure() -> None:
    """PTX does not define what happens then."""
    findings = simulate(asking(again=True), target="b200").findings
    assert [each.kind for each in findings] == ["undefined"]
    assert "after an answer that no cluster is left" in findings[0].message
    assert "test_cluster_control.py" in findings[0].line


def test_answers() -> None:
    """Uninitialized memory is no success."""
    assert point_in(np.zeros(16, np.int8), (3, 2)) is None
    assert point_in(np.full(16, -1, np.int8), (3, 2)) is None
    assert point_in(answer_of(None), (3, 2)) is None


def inlined(ptx: str) -> Any:
    """A kernel with inline PTX."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import llvm

    def body(o: Any) -> None:
        @plgpu.inline_mgpu()
        def code(_: Any) -> None:
            llvm.inline_asm(ir.Type.parse("!llvm.void"), [], ptx, "", has_side_effects=True)

        code()
        o[...] = jnp.ones((8,), jnp.int32)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((8,), jnp.int32))


def test_inline_fences() -> None:
    """They have no value."""
    run = simulate(inlined("fence.proxy.async; fence.acq_rel.cluster;"), target="b200")
    assert (run.values == 1).all()


def test_other_inline_code() -> None:
    """An error names it."""
    with pytest.raises(MissingRuleError, match=r"does not know the instruction 'trap'"):
        simulate(inlined("trap;"), target="b200")
