"""Copies and semaphores of one core."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import simulate
from pallas_sim.errors import BoundsError, DeadlockError

X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
ANY = pl.BlockSpec(memory_space=pl.ANY)
SEEDS = [0, 1, 2, 3, 4]


def kernel(body: Any, *scratch: Any, rows: int = 8, out_specs: Any = None) -> Any:
    """A function of an array in HBM, whose kernel has ``scratch``."""

    def function(x):
        specs = {} if out_specs is None else {"out_specs": out_specs}
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((rows, 128), x.dtype),
            grid=(1,),
            in_specs=[ANY],
            scratch_shapes=scratch,
            **specs,
        )(x)

    return function


def buffers(count: int = 1) -> Any:
    return pltpu.VMEM((count, 8, 128), jnp.float32)


DMA = pltpu.SemaphoreType.DMA


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy(seed):
    def body(x_ref, o_ref, buffer, semaphore):
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(8, 8)], buffer.at[0], semaphore)
        copy.start()
        copy.wait()
        o_ref[...] = buffer[0] * 2

    found = simulate(kernel(body, buffers(), DMA), X, seed=seed)
    np.testing.assert_array_equal(found.values, X[8:16] * 2)
    assert kinds(found) == []


@pytest.mark.parametrize("dtypes", [(bool, jnp.int32), (jnp.int32, bool)])
def test_a_bool_is_stored_as_an_int32(dtypes):
    """So a copy may go from one to the other, and its bytes are those of int32."""

    def body(x_ref, o_ref, buffer, semaphore):
        copy = pltpu.make_async_copy(x_ref, buffer, semaphore)
        copy.start()
        copy.wait()
        pltpu.sync_copy(buffer, o_ref)

    x = (np.arange(8 * 128).reshape(8, 128) % 3 == 0).astype(dtypes[0])
    buffer = pltpu.VMEM((8, 128), dtypes[1])
    found = simulate(kernel(body, buffer, DMA, out_specs=ANY), x)
    np.testing.assert_array_equal(found.values, x)
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_two_copies_with_a_semaphore_each(seed):
    def body(x_ref, o_ref, buffer, semaphores):
        copies = [
            pltpu.make_async_copy(x_ref.at[pl.ds(8 * i, 8)], buffer.at[i], semaphores.at[i])
            for i in range(2)
        ]
        copies[0].start()
        copies[1].start()
        copies[0].wait()
        o_ref[...] = buffer[0]
        copies[1].wait()
        o_ref[...] += buffer[1]

    found = simulate(kernel(body, buffers(2), DMA((2,))), X, seed=seed)
    np.testing.assert_array_equal(found.values, X[:8] + X[8:16])
    assert kinds(found) == []


@pytest.mark.parametrize(("waits", "reads", "shared"), [(2, 0, True), (1, 1, False), (0, 0, False)])
def test_a_semaphore_of_its_own_is_advised_where_it_helps(waits, reads, shared):
    """Two copies signal it. It does not help where nothing waits for the copy before the read."""

    def body(x_ref, o_ref, buffer, semaphore):
        copies = [
            pltpu.make_async_copy(x_ref.at[pl.ds(8 * i, 8)], buffer.at[i], semaphore)
            for i in range(2)
        ]
        for copy in copies:
            copy.start()
        for copy in copies[: min(waits, 1)]:
            copy.wait()
        o_ref[...] = buffer[reads]
        for copy in copies[min(waits, 1) :]:
            copy.wait()

    found = simulate(kernel(body, buffers(2), DMA), X)
    [race] = found.findings
    assert race.kind == "race"
    assert ("a semaphore of its own" in str(race)) == shared


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wait_proves_nothing_of_one_of_two_copies(seed):
    """Bytes have no names: the first wait may have taken those of the second copy."""

    def body(x_ref, o_ref, buffer, semaphore):
        copies = [
            pltpu.make_async_copy(x_ref.at[pl.ds(8 * i, 8)], buffer.at[i], semaphore)
            for i in range(2)
        ]
        copies[0].start()
        copies[1].start()
        copies[0].wait()
        o_ref[...] = buffer[0]
        copies[1].wait()
        o_ref[...] += buffer[1]

    found = simulate(kernel(body, buffers(2), DMA), X, seed=seed)
    assert kinds(found) == ["race"]
    assert "test_transfers.py" in found.findings[0].line
    assert found.findings[0].ref == "buffer"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", ["target read", "target written", "source written"])
def test_an_access_before_the_wait(seed, side):
    def body(x_ref, o_ref, buffer, other, semaphore):
        other[0] = jnp.ones((8, 128))
        copy = pltpu.make_async_copy(other.at[0], buffer.at[0], semaphore)
        copy.start()
        if side == "target read":
            o_ref[...] = buffer[0]
        elif side == "target written":
            buffer[0] = jnp.zeros((8, 128))
        else:
            other[0] = jnp.zeros((8, 128))
        copy.wait()
        o_ref[...] = buffer[0]

    assert kinds(simulate(kernel(body, buffers(), buffers(), DMA), X, seed=seed)) == ["race"]


def test_a_sync_copy_has_its_line():
    """JAX keeps none of the copy inside, only of the scope around it."""

    def body(x_ref, o_ref, buffer, semaphore):
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer.at[0], semaphore)
        copy.start()
        pltpu.sync_copy(buffer.at[0], buffer.at[1])
        pltpu.sync_copy(buffer.at[0], o_ref)
        copy.wait()

    first = body.__code__.co_firstlineno
    found = simulate(kernel(body, buffers(2), DMA, out_specs=ANY), X).findings
    lines = [finding.line.rpartition(":")[2] for finding in found]
    assert lines == [str(first + 3), str(first + 4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_allowed_before_the_wait(seed):
    def body(x_ref, o_ref, buffer, other, semaphore):
        other[...] = jnp.ones((2, 8, 128))
        copy = pltpu.make_async_copy(other.at[0], buffer.at[0], semaphore)
        copy.start()
        other[1] = other[0] * 3  # the source is read, and memory beside it written
        buffer[1] = other[1]
        copy.wait()
        o_ref[...] = buffer[0] + buffer[1]

    found = simulate(kernel(body, buffers(2), buffers(2), DMA), X, seed=seed)
    np.testing.assert_array_equal(found.values, np.full((8, 128), 4.0))
    assert kinds(found) == []


def test_adding():
    def body(x_ref, o_ref, buffer, semaphore):
        buffer[0] = jnp.ones((8, 128))
        pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer.at[0], semaphore).start(add=True)
        pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer.at[0], semaphore).wait()
        o_ref[...] = buffer[0]

    np.testing.assert_array_equal(simulate(kernel(body, buffers(), DMA), X).values, X[:8] + 1)


def test_a_missing_wait_is_reported():
    def body(x_ref, o_ref, buffer, semaphore):
        pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer.at[0], semaphore).start()
        o_ref[...] = jnp.zeros((8, 128))

    (finding,) = simulate(kernel(body, buffers(), DMA), X).findings
    assert finding.kind == "unwaited"
    assert "from x_ref to buffer" in finding.message
    assert finding.line.endswith(str(body.__code__.co_firstlineno + 1))


def test_what_is_left_on_a_semaphore_is_reported():
    def body(x_ref, o_ref, semaphore):
        pl.semaphore_signal(semaphore, 3)
        pl.semaphore_wait(semaphore, 1)
        o_ref[...] = jnp.full((8, 128), pl.semaphore_read(semaphore), jnp.float32)

    found = simulate(kernel(body, pltpu.SemaphoreType.REGULAR), X)
    assert kinds(found) == ["leftover"]
    (finding,) = found.findings
    assert "ends with 2 that no wait took" in finding.message
    first = body.__code__.co_firstlineno
    (given,), (taken,) = finding.signals, finding.waits
    assert (given.amount, given.copy, taken.needed) == (3, False, 1)
    assert given.line.endswith(f".py:{first + 1}")
    assert taken.line.endswith(f".py:{first + 2}")
    assert "given: a signal of 3 from device 0, at " in str(finding)
    assert "taken: 1 by device 0, at " in str(finding)
    assert found.values[0, 0] == 2


def test_a_semaphore_of_a_scope_ends_with_it():
    def body(x_ref, o_ref):
        def scope(ready):
            pl.semaphore_signal(ready.at[1], 2)

        pl.run_scoped(scope, pltpu.SemaphoreType.REGULAR((2,)))
        pltpu.sync_copy(x_ref.at[pl.ds(0, 8)], o_ref)

    (finding,) = simulate(kernel(body, out_specs=ANY), X).findings
    assert (finding.kind, finding.ref) == ("leftover", "ready[1]")
    assert "taken: nothing" in str(finding)


def test_a_signal_that_takes():
    def body(x_ref, o_ref, ready):
        pl.semaphore_signal(ready, -1)
        pltpu.sync_copy(x_ref.at[pl.ds(0, 8)], o_ref)

    found = simulate(kernel(body, pltpu.SemaphoreType.REGULAR, out_specs=ANY), X)
    assert [f.message for f in found.findings] == [
        "ready ends at -1: signals took more than was given"
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wait_for_too_many_bytes(seed):
    def body(x_ref, o_ref, buffer, semaphore):
        pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffer.at[0], semaphore).start()
        pltpu.make_async_copy(x_ref.at[pl.ds(0, 16)], x_ref.at[pl.ds(0, 16)], semaphore).wait()
        o_ref[...] = buffer[0]

    with pytest.raises(DeadlockError, match=r"needs 8192 bytes, has 4096, at \S+\.py:"):
        simulate(kernel(body, buffers(), DMA), X, seed=seed)


def test_the_size_of_a_copy_may_be_a_value():
    def body(x_ref, o_ref, semaphore):
        o_ref[...] = jnp.zeros((8, 128))

        def copy(size):
            here = pl.ds(0, size)
            started = pltpu.make_async_copy(x_ref.at[here], o_ref.at[here], semaphore)
            started.start()
            started.wait()

        copy(pl.program_id(0) * 5)  # no rows: no access, and its wait is satisfied
        copy(pl.program_id(0) + 3)

    spec = pl.BlockSpec(memory_space=pltpu.VMEM)
    found = simulate(kernel(body, DMA, out_specs=spec), X)
    np.testing.assert_array_equal(found.values[:3], X[:3])
    assert (found.values[3:] == 0).all()
    assert kinds(found) == []


def test_a_copy_beyond_the_edge():
    def body(x_ref, o_ref, buffer, semaphore):
        first = pl.program_id(0) + 30
        pltpu.sync_copy(x_ref.at[pl.ds(first, 8)], buffer.at[0])
        o_ref[...] = buffer[0]

    with pytest.raises(BoundsError, match=r"copy from x_ref .* indices 30 to 37 of axis 0"):
        simulate(kernel(body, buffers(), DMA), X)


@pytest.mark.parametrize("seed", SEEDS)
def test_emit_pipeline_in_a_kernel_of_one_core(seed):
    def body(x_ref, o_ref, total):
        total[...] = jnp.zeros((8, 128))

        def step(x_block, o_block):
            total[...] += x_block[...]
            o_block[...] = x_block[...] + 1

        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(step, grid=(4,), in_specs=[block], out_specs=[block])(x_ref, o_ref)

    function = pl.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(X.shape, X.dtype),
        mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=1),
        scratch_types=[pltpu.VMEM((8, 128), jnp.float32)],
    )
    found = simulate(function, X, seed=seed)
    np.testing.assert_array_equal(found.values, X + 1)
    assert kinds(found) == []


def pipelined(step: Any, *, outputs: int = 1) -> Any:
    """Return a kernel that runs ``step`` on the four blocks of an array."""

    def body(x_ref, *o_refs):
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(step, grid=(4,), in_specs=[block], out_specs=[block] * outputs)(
            x_ref, *o_refs
        )

    def function(x):
        return pl.pallas_call(
            body, out_shape=[x] * outputs, in_specs=[ANY], out_specs=[ANY] * outputs
        )(x)

    return function


def doubled_in_place(x_block, o_block):
    x_block[...] = x_block[...] * 2
    o_block[...] = x_block[...]


def added_in_place(x_block, o_block):
    jax.ref.addupdate(x_block, (slice(None), slice(None)), x_block[...])
    o_block[...] = x_block[...]


def copied_in_place(x_block, o_block):
    o_block[...] = x_block[...] * 2
    pltpu.sync_copy(o_block, x_block)


@pytest.mark.parametrize("step", [doubled_in_place, added_in_place, copied_in_place])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_to_an_inputs_window_of_emit_pipeline(step, seed):
    found = simulate(pipelined(step), X, seed=seed)
    (finding,) = found.findings
    assert (finding.kind, finding.ref) == ("input-write", "x_ref")
    assert "test_transfers.py" in finding.line


def test_stores_to_outputs_windows_of_emit_pipeline():
    def step(x_block, o_block, p_block):
        o_block[...] = x_block[...]
        o_block[...] += 1
        pltpu.sync_copy(x_block, p_block)

    found = simulate(pipelined(step, outputs=2), X)
    np.testing.assert_array_equal(found.values, [X + 1, X])
    assert kinds(found) == []


def test_a_kernel_of_one_core_may_capture_a_scalar():
    def function(x, row):
        def body(x_ref, o_ref):
            pltpu.sync_copy(x_ref.at[pl.ds(row, 8)], o_ref)

        mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
        shape = jax.ShapeDtypeStruct((8, 128), x.dtype)
        return pl.kernel(body, out_type=shape, mesh=mesh)(x)

    found = simulate(function, X, np.int32(8))
    np.testing.assert_array_equal(found.values, X[8:16])
