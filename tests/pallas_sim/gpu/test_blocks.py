"""Blocks of a grid: in any order, and what they do to each other's memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from pallas_sim import simulate
from pallas_sim.errors import DeadlockError, SimulationError

X = np.arange(64 * 128, dtype=np.float32).reshape(64, 128)
SEEDS = [0, 1, 2, 3]


def kernel(body: Any, *scratch: Any, shape: Any = (64, 128), blocks: int = 4, **more: Any) -> Any:
    def function(*arrays):
        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(shape, jnp.float32),
            scratch_types=list(scratch),
            grid=(blocks,),
            grid_names=("block",),
            **more,
        )(*arrays)

    return function


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


def rows_of_block(rows: int = 16) -> Any:
    return pl.ds(jax.lax.axis_index("block") * 16, rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_with_rows_of_their_own(seed):
    def body(x_gmem, o_gmem):
        o_gmem[rows_of_block()] = x_gmem[rows_of_block()] + jax.lax.axis_index("block")

    found = simulate(kernel(body), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, X + np.arange(64)[:, None] // 16)
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_that_write_the_same_rows(seed):
    def body(x_gmem, o_gmem):
        o_gmem[rows_of_block(17)] = x_gmem[rows_of_block(17)]

    found = simulate(kernel(body, shape=(65, 128)), np.ones((65, 128)), target="h100", seed=seed)
    (race,) = found.findings
    assert race.kind == "race"
    assert race.ref == "o_gmem"
    assert {access.kind for access in race.accesses} == {"write"}
    assert len({access.program for access in race.accesses}) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_block_that_reads_what_another_one_writes(seed):
    def body(x_gmem, o_gmem):
        before = jnp.where(jax.lax.axis_index("block") > 0, o_gmem[0, 0], 0.0)
        o_gmem[rows_of_block()] = x_gmem[rows_of_block()] + before

    found = simulate(kernel(body), X, target="h100", seed=seed)
    assert set(kinds(found)) == {"race"}
    assert {access.kind for access in found.findings[0].accesses} == {"read", "write"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("atomically", [True, False])
def test_sums_of_blocks(seed, atomically):
    def body(x_gmem, start_gmem, o_gmem):
        part = x_gmem[rows_of_block()]
        if atomically:
            plgpu.atomic_add(o_gmem, part)
        else:
            o_gmem[...] = o_gmem[...] + part

    def function(x):
        def run(refs):
            x_ref, o_ref = refs
            plgpu.kernel(lambda x, o: body(x, None, o), grid=(4,), grid_names=("block",))(
                x_ref, o_ref
            )

        return pl.run_state(run)((x, jnp.zeros((16, 128), jnp.float32)))[1]

    found = simulate(function, X, target="h100", seed=seed)
    if atomically:
        np.testing.assert_array_equal(found.values, X.reshape(4, 16, 128).sum(axis=0))
        assert kinds(found) == []
    else:
        assert "race" in kinds(found)


@pytest.mark.parametrize(
    ("operation", "reduce"),
    [
        (plgpu.atomic_max, np.maximum.reduce),
        (plgpu.atomic_min, np.minimum.reduce),
        (plgpu.atomic_xor, np.bitwise_xor.reduce),
        (plgpu.atomic_or, np.bitwise_or.reduce),
        (plgpu.atomic_and, np.bitwise_and.reduce),
    ],
)
def test_atomic_operations(operation, reduce):
    values = np.random.default_rng(1).integers(0, 1 << 20, (4, 128)).astype(np.int32)

    def body(x_gmem, o_gmem):
        operation(o_gmem, x_gmem[jax.lax.axis_index("block")])

    def function(x):
        def run(refs):
            plgpu.kernel(body, grid=(3,), grid_names=("block",))(*refs)

        return pl.run_state(run)((x, x[3]))[1]

    found = simulate(function, values, target="h100", seed=1)
    np.testing.assert_array_equal(found.values, reduce([values[3], *values[:3]]))
    assert kinds(found) == []


def handed_on(*, wait: bool) -> Any:
    """Each block adds to what the block before it wrote."""

    def body(x_gmem, o_gmem):
        block = jax.lax.axis_index("block")
        turns = pl.get_global(plgpu.SemaphoreType.REGULAR)
        if wait:
            pl.semaphore_wait(turns, block, decrement=False)
        rows = pl.ds(jnp.maximum(block - 1, 0) * 16, 16)
        before = jnp.where(block > 0, o_gmem[rows], 0.0)
        o_gmem[rows_of_block()] = x_gmem[rows_of_block()] + before
        pl.semaphore_signal(turns)

    return kernel(body)


@pytest.mark.parametrize("seed", SEEDS)
def test_semaphores_order_blocks(seed):
    found = simulate(handed_on(wait=True), X, target="h100", seed=seed)
    expected = np.cumsum(X.reshape(4, 16, 128), axis=0).reshape(64, 128)
    np.testing.assert_array_equal(found.values, expected)
    assert kinds(found) == []
    assert "race" in kinds(simulate(handed_on(wait=False), X, target="h100", seed=seed))


@pytest.mark.parametrize("takes", [1, 2])
def test_a_semaphore_that_keeps_a_count(takes):
    def body(x_gmem, o_gmem):
        semaphore = pl.get_global(plgpu.SemaphoreType.REGULAR)
        pl.semaphore_signal(semaphore, 2)
        pl.semaphore_wait(semaphore, takes)
        o_gmem[...] = x_gmem[...]

    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    found = simulate(plgpu.kernel(body, out_type=out), X, target="h100")
    expected = [] if takes == 2 else ["a global semaphore ends with 1 that no wait took"]
    assert [finding.message for finding in found.findings] == expected


def test_a_semaphore_that_nobody_signals():
    def body(x_gmem, o_gmem):
        pl.semaphore_wait(pl.get_global(plgpu.SemaphoreType.REGULAR), 5)

    with pytest.raises(DeadlockError, match="a global semaphore"):
        simulate(kernel(body), X, target="h100")


@pytest.mark.skipif(not hasattr(plgpu, "alloc_semaphore"), reason="JAX 0.11.2 has none")
def test_a_semaphore_that_outlives_its_kernel():
    def function(x):
        semaphore = plgpu.alloc_semaphore()

        def first(x_gmem, semaphore, o_gmem):
            pl.semaphore_signal(semaphore, 2)
            o_gmem[...] = x_gmem[...]

        def second(x_gmem, semaphore, o_gmem):
            pl.semaphore_wait(semaphore, 2)
            o_gmem[...] = x_gmem[...] + 1

        out_type = jax.ShapeDtypeStruct(x.shape, x.dtype)
        between = plgpu.kernel(first, out_type=out_type)(x, semaphore)
        return plgpu.kernel(second, out_type=out_type)(between, semaphore)

    found = simulate(function, X, target="h100")
    np.testing.assert_array_equal(found.values, X + 1)
    assert kinds(found) == []


def passed_on(*, finished: bool = True) -> Any:
    """Each device sends its block to the next one, by a TMA copy, and says so."""

    def on_device(x):
        def body(x_gmem, o_gmem, buffer, arrived, received):
            me = jax.lax.axis_index("x")
            right = {"x": jax.lax.rem(me + 1, jax.lax.axis_size("x"))}
            plgpu.copy_gmem_to_smem(x_gmem, buffer, arrived)
            plgpu.barrier_wait(arrived)
            plgpu.copy_smem_to_gmem(buffer, plgpu.remote_ref(o_gmem, right))
            plgpu.wait_smem_to_gmem(0, wait_read_only=not finished)
            pl.semaphore_signal(received, device_id=right)
            pl.semaphore_wait(received)

        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((16, 128), jnp.float32),
            scratch_types=[
                plgpu.SMEM((16, 128), jnp.float32),
                plgpu.Barrier(),
                plgpu.SemaphoreType.REGULAR,
            ],
        )(x)

    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    return jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_to_other_devices(seed):
    found = simulate(passed_on(), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, np.roll(X, 16, axis=0))
    assert kinds(found) == []
    early = simulate(passed_on(finished=False), X, target="h100", seed=seed)
    assert kinds(early) == ["race"]
    assert early.findings[0].ref == "o_gmem"


def stored_at_the_next(*, barrier: bool, waits: bool) -> Any:
    """Each device stores its block at the next one, which may not wait for it."""

    def on_device(x):
        def body(x_gmem, o_gmem, received):
            me = jax.lax.axis_index("x")
            right = {"x": jax.lax.rem(me + 1, jax.lax.axis_size("x"))}
            plgpu.remote_ref(o_gmem, right)[...] = x_gmem[...]
            if waits:
                pl.semaphore_signal(received, device_id=right)
                pl.semaphore_wait(received)

        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((16, 128), jnp.float32),
            scratch_types=[plgpu.SemaphoreType.REGULAR],
            compiler_params=plgpu.CompilerParams(skip_device_barrier=not barrier),
        )(x)

    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    return jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_stores_to_devices_that_have_left_or_not_entered(seed):
    found = simulate(stored_at_the_next(barrier=True, waits=True), X, target="h100", seed=seed)
    np.testing.assert_array_equal(found.values, np.roll(X, 16, axis=0))
    assert kinds(found) == []
    late = simulate(stored_at_the_next(barrier=True, waits=False), X, target="h100", seed=seed)
    assert set(kinds(late)) & {"entry", "race"}
    assert not any("copies to" in finding.message for finding in late.findings)
    early = simulate(stored_at_the_next(barrier=False, waits=True), X, target="h100", seed=seed)
    np.testing.assert_array_equal(early.values, np.roll(X, 16, axis=0))
    assert "entry" in kinds(early)


@pytest.mark.parametrize(
    ("target", "words"), [("h100", "call plgpu.kernel"), ("v6e", "use gpu-sim")]
)
def test_a_pallas_call_with_parameters_of_mosaic_gpu_is_refused(target, words):
    def copy(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def call(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(copy, out_shape=shape, compiler_params=plgpu.CompilerParams())(x)

    with pytest.raises(SimulationError, match=rf"{words}.*test_blocks\.py:\d+"):
        simulate(call, X, target=target)
