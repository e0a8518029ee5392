"""Several TensorCores of one device: both alive at once, what they share, and their mistakes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from pallas_sim import simulate
from pallas_sim.errors import DeadlockError, SimulationError

SEEDS = [0, 1, 2, 3]
ANY = pl.BlockSpec(memory_space=pl.ANY)
X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR


def divided(body: Any, *scratch: Any) -> Any:
    """A kernel whose two programs a chip with two cores runs at once."""
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
        grid=(2,),
        in_specs=[ANY],
        out_specs=ANY,
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )


def on_cores(body: Any, *scratch: Any) -> Any:
    """A kernel on a mesh of two cores."""
    return pl.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(X.shape, X.dtype),
        mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=2),
        scratch_types=scratch,
    )


def half(core: Any) -> Any:
    return pl.ds(core * 8, 8)


def handshake(core: Any, ready: Any) -> None:
    pl.semaphore_signal(ready, 1, core_index=1 - core)
    pl.semaphore_wait(ready, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_cores_that_wait_for_each_other(seed):
    def body(x_ref, o_ref, ready):
        core = pl.program_id(0)
        handshake(core, ready)
        pltpu.sync_copy(x_ref.at[half(core)], o_ref.at[half(core)])

    found = simulate(divided(body, REGULAR), X, seed=seed, target="v5p")
    np.testing.assert_array_equal(found.values, X)
    assert found.findings == ()


def test_a_chip_with_one_core_runs_the_programs_one_after_the_other():
    def body(x_ref, o_ref, ready):
        core = pl.program_id(0)
        pl.semaphore_wait(ready, core)  # the program before signals
        pl.semaphore_signal(ready, 1 - core)
        pltpu.sync_copy(x_ref.at[half(core)], o_ref.at[half(core)])

    found = simulate(divided(body, REGULAR), X, target="v6e")
    np.testing.assert_array_equal(found.values, X)
    with pytest.raises(DeadlockError, match="device 0, core 1 is blocked"):
        simulate(divided(body, REGULAR), X, target="v5p")


TWO = "a device of {0} has 1, one of v4 and v5p has 2"


def meeting(core_index):
    """Each core signals the other one, and waits for it."""

    def body(x_ref, o_ref, ready):
        core = core_index()
        pl.semaphore_signal(ready, 1, device_id={"core": 1 - core})
        pl.semaphore_wait(ready, 1)
        pltpu.sync_copy(x_ref.at[half(core)], o_ref.at[half(core)])

    return body


@pytest.mark.parametrize("target", ["v5e", "v6e", "tpu7x"])
def test_cores_that_a_chip_lacks_run_one_after_the_other(target):
    """XLA runs a mesh of two TensorCores on one, too: it is a parallel dimension of a grid."""

    def apart(x_ref, o_ref, ready):
        del ready
        core = jax.lax.axis_index("core")
        pltpu.sync_copy(x_ref.at[half(core)], o_ref.at[half(core)])

    found = simulate(on_cores(apart, REGULAR), X, target=target)
    np.testing.assert_array_equal(found.values, X)
    together = on_cores(meeting(lambda: jax.lax.axis_index("core")), REGULAR)
    with pytest.raises(DeadlockError, match=TWO.format(target)):
        simulate(together, X, target=target)
    assert simulate(together, X, target="v4").findings == ()


def test_programs_that_wait_for_later_ones_need_two_cores():
    def body(x_ref, o_ref, ready):
        core = pl.program_id(0)
        pl.semaphore_signal(ready, core)
        pl.semaphore_wait(ready, 1 - core)  # the program after signals
        pltpu.sync_copy(x_ref.at[half(core)], o_ref.at[half(core)])

    with pytest.raises(DeadlockError, match=TWO.format("v6e")):
        simulate(divided(body, REGULAR), X, target="v6e")

    def handshaking(x_ref, o_ref, ready):
        handshake(pl.program_id(0), ready)
        pltpu.sync_copy(x_ref, o_ref)

    with pytest.raises(SimulationError, match="there is no TensorCore 1: " + TWO.format("v6e")):
        simulate(divided(handshaking, REGULAR), X, target="v6e")


def test_a_core_parallel_dimension_has_no_more_programs_than_cores():
    """libtpu 0.0.50.1: "iteration bound: 2, which is greater than the number of active cores"."""

    def body(x_ref, o_ref):
        pltpu.sync_copy(x_ref, o_ref)

    def on(target, programs):
        call = pl.pallas_call(
            body,
            out_shape=X,
            grid=(programs,),
            in_specs=[ANY],
            out_specs=ANY,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("core_parallel",)),
        )
        return simulate(call, X, target=target)

    on("v6e", 1)
    on("v5p", 2)
    for target, programs, cores in (("v6e", 2, 1), ("v5p", 3, 2)):
        with pytest.raises(SimulationError, match=f"{programs} programs, .* {target} has {cores}"):
            on(target, programs)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_deadlock_names_a_core_that_has_ended(devices):
    """One core of a device ends without the signal that the other one waits for."""

    def body(x_ref, o_ref, ready):
        core = lax.axis_index("core")

        @pl.when(core == 1)
        def _():
            pl.semaphore_wait(ready, 1)

        pltpu.sync_copy(x_ref.at[half(core)], o_ref.at[half(core)])

    function = on_cores(body, REGULAR)
    if devices > 1:
        mesh = AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))
        spec = {"in_specs": P(), "out_specs": P(), "check_vma": False}
        function = jax.shard_map(function, mesh=mesh, **spec)
    with pytest.raises(DeadlockError) as caught:
        simulate(function, X, target="v5p")
    lines = str(caught.value).splitlines()
    for device in range(devices):
        assert f"  device {device}, core 0 is at the end of the program" in lines


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("waits", [True, False])
def test_a_core_that_reads_what_another_writes(seed, waits):
    def body(x_ref, o_ref, shared, ready):
        core = lax.axis_index("core")

        @pl.when(core == 0)
        def _():
            pltpu.sync_copy(x_ref, shared)

        if waits:
            handshake(core, ready)
        pltpu.sync_copy(shared.at[half(core)], o_ref.at[half(core)])

    def function(x):
        shared = jax.new_ref(jnp.zeros_like(x))
        return on_cores(lambda x_ref, o_ref, ready: body(x_ref, o_ref, shared, ready), REGULAR)(x)

    found = simulate(function, X, seed=seed, target="v5p")
    assert ("race" in {finding.kind for finding in found.findings}) is not waits
    if waits:
        np.testing.assert_array_equal(found.values, X)
    else:
        owners = {access.owner.core for access in found.findings[0].accesses}
        assert owners == {0, 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_both_cores_write_the_same_rows(seed):
    def body(x_ref, o_ref, ready):
        del ready
        pltpu.sync_copy(x_ref.at[half(0)], o_ref.at[half(0)])
        pltpu.sync_copy(x_ref.at[half(1)], o_ref.at[half(1)])

    found = simulate(divided(body, REGULAR), X, seed=seed, target="v5p")
    assert {finding.kind for finding in found.findings} == {"race"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_core_that_ends_before_it_is_signalled(seed):
    def body(x_ref, o_ref, ready):
        core = pl.program_id(0)
        pltpu.sync_copy(x_ref.at[half(core)], o_ref.at[half(core)])

        @pl.when(core == 0)
        def _():
            pl.semaphore_signal(ready, 1, core_index=1)

    found = simulate(divided(body, REGULAR), X, seed=seed, target="v5p")
    assert {finding.kind for finding in found.findings} & {"leftover", "entry"}


@pytest.mark.parametrize("mode", ["kv_head", "batch"])
@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_bundled_paged_attention_on_two_cores(mode, inline, seed):
    rng = np.random.default_rng(0)
    q = rng.integers(-2, 3, (2, 4, 128)).astype(np.float32) / 8
    k, v = rng.integers(-2, 3, (2, 2, 6, 16, 128)).astype(np.float32)
    lengths, pages = np.array([5, 40], np.int32), np.arange(6, dtype=np.int32).reshape(2, 3)

    def attention(*args):
        return paged_attention(
            *args, pages_per_compute_block=1, megacore_mode=mode, inline_seq_dim=inline
        )

    found = simulate(attention, q, k, v, lengths, pages, seed=seed, target="v5p")
    assert found.findings == ()
    for batch, length in enumerate(lengths):
        for head in range(4):
            keys = k[head // 2, pages[batch]].reshape(-1, 128)[:length]
            weights = np.exp(keys @ q[batch, head])
            wanted = weights / weights.sum() @ v[head // 2, pages[batch]].reshape(-1, 128)[:length]
            np.testing.assert_allclose(found.values[batch, head], wanted, rtol=1e-2, atol=1e-2)
    # One core cannot run what two cores share without an order.
    with pytest.raises(DeadlockError):
        simulate(attention, q, k, v, lengths, pages, seed=seed, target="v6e")
