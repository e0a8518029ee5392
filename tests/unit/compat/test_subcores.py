"""Operations of SparseCores under the TPU interpreter: each as its documentation says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas.backends.interpreters import tpu_interpret
from pytest_pallas.backends.protocol import Call
from pytest_pallas.compat import subcores
from pytest_pallas.compat.cores import require_threads
from pytest_pallas.devices.mesh import make_mesh
from pytest_pallas.devices.targets import TARGETS

plsc = pytest.importorskip("jax.experimental.pallas.tpu_sc")
LANES = 8
SUBCORES = 4

I32 = jax.ShapeDtypeStruct((LANES,), jnp.int32)
RNG = np.random.default_rng(0)
VALUES = RNG.integers(-9, 9, LANES).astype(np.int32)
MASKS = [
    np.ones(LANES, bool),
    np.zeros(LANES, bool),
    np.arange(LANES) % 2 == 1,
    np.arange(LANES) >= 5,
]


def mesh(cores: int = 1, subcores: int = 1) -> Any:
    return plsc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=cores, num_subcores=subcores
    )


def run(
    body: Callable[..., None],
    out: Any,
    *args: Any,
    scratch: Any = (),
    timeout: float = 60.0,
    chip: str = "v6e",
    **sizes: int,
) -> Any:
    """Run a kernel on simulated subcores; its references are in HBM."""

    def call(*args: Any) -> Any:
        kernel = pl.kernel(
            body,
            out_type=out,
            mesh=mesh(**sizes),
            scratch_types=scratch,
            compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
        )
        return kernel(*args)

    outcome = tpu_interpret(TARGETS[chip]).run(Call(function=call, args=args, timeout=timeout))
    if outcome.error is not None:
        raise outcome.error
    return jax.tree.map(np.asarray, outcome.values)


def on_registers(function: Callable[..., Any], *args: Any, out: Any = I32) -> Any:
    """Run a function of registers on one subcore."""
    outs = jax.tree.leaves(out)

    def body(*refs: Any) -> None:
        count = len(args)
        inputs, outputs, buffers = refs[:count], refs[count:-1], refs[-1]
        for hbm, vmem in zip(inputs, buffers[:count], strict=True):
            pltpu.sync_copy(hbm, vmem)
        results = jax.tree.leaves(function(*(vmem[...] for vmem in buffers[:count])))
        for hbm, vmem, result in zip(outputs, buffers[count:], results, strict=True):
            vmem[...] = result.astype(vmem.dtype)
            pltpu.sync_copy(vmem, hbm)

    arrays = [np.asarray(x) for x in args]
    buffers = [pltpu.VMEM(x.shape, x.dtype) for x in (*arrays, *outs)]
    return run(body, out, *arrays, scratch=[buffers])


MASKED = pytest.mark.parametrize("mask", MASKS, ids=["all", "none", "odd", "last"])


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@MASKED
class TestRegisters:
    """The functions themselves."""

    def test_cumsum(self, mask: Any, dtype: Any) -> None:
        x = VALUES.astype(dtype)
        np.testing.assert_array_equal(subcores.cumsum(x, mask), np.cumsum(x * mask))

    @pytest.mark.parametrize("extreme", ["maximum", "minimum"])
    def test_running_extreme(self, mask: Any, dtype: Any, extreme: str) -> None:
        x = VALUES.astype(dtype)
        out = subcores.running(getattr(jnp, extreme), x, mask)
        for i in range(LANES):
            counted = x[: i + 1][mask[: i + 1]]
            assert out[i] == (getattr(np, extreme).reduce(counted) if counted.size else x[i])

    @pytest.mark.parametrize("descending", [False, True])
    def test_sort(self, mask: Any, dtype: Any, descending: bool) -> None:
        keys = VALUES.astype(dtype)
        keys[3] = keys[1]
        places = np.arange(LANES, dtype=np.int32)
        sorted_keys, sorted_places, valid = subcores.sort_key_val(
            jnp.asarray(keys), jnp.asarray(places), jnp.asarray(mask), descending=descending
        )
        count = mask.sum()
        order = sorted(places[mask], key=lambda i: -keys[i] if descending else keys[i])
        np.testing.assert_array_equal(sorted_places[:count], order)
        np.testing.assert_array_equal(sorted_keys[:count], keys[order])
        np.testing.assert_array_equal(valid, places < count)

    def test_scan_count(self, mask: Any, dtype: Any) -> None:
        x = np.array([3, 1, 3, 3, 2, 1, 3, 7], dtype)
        counts, last = subcores.scan_count(jnp.asarray(x), jnp.asarray(mask))
        for i, each in enumerate(x):
            if mask[i]:
                assert counts[i] == (x[: i + 1][mask[: i + 1]] == each).sum()
            assert last[i] == (mask[i] and each not in x[i + 1 :][mask[i + 1 :]])


class TestInKernels:
    """Each primitive finds its function."""

    def test_scans(self) -> None:
        mask = (VALUES % 2 == 1).astype(np.int32)

        def scans(x: Any, m: Any) -> Any:
            m = m != 0
            return plsc.cumsum(x, mask=m), plsc.cummax(x, mask=m)

        total, largest = on_registers(scans, VALUES, mask, out=(I32, I32))
        np.testing.assert_array_equal(total, subcores.cumsum(VALUES, mask != 0))
        np.testing.assert_array_equal(largest, subcores.running(jnp.maximum, VALUES, mask != 0))

    def test_sort(self) -> None:
        places = np.arange(LANES, dtype=np.int32)
        keys, order = on_registers(plsc.sort_key_val, VALUES, places, out=(I32, I32))
        np.testing.assert_array_equal(order, np.argsort(VALUES, stable=True))
        np.testing.assert_array_equal(keys, np.sort(VALUES))

    def test_scan_count(self) -> None:
        x = np.array([3, 1, 3, 3, 2, 1, 3, 7], np.int32)
        counts, last = on_registers(plsc.scan_count, x, out=(I32, I32))
        np.testing.assert_array_equal(counts, [1, 1, 2, 3, 1, 2, 4, 1])
        np.testing.assert_array_equal(last, [0, 0, 0, 0, 1, 1, 1, 1])


def _like(x: np.ndarray) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@MASKED
def test_population_count_and_first_set(mask: Any) -> None:
    count, first = on_registers(
        lambda m: (plsc.all_reduce_population_count(m != 0), plsc.all_reduce_ffs(m != 0)),
        mask.astype(np.int32),
        out=(I32, I32),
    )
    assert (count == mask.sum()).all()
    assert (first == (mask.argmax() if mask.any() else LANES)).all()


@pytest.mark.parametrize("form", list(plsc.PackFormat), ids=lambda f: f.value)
def test_pack_and_unpack(form: Any) -> None:
    a, b = np.arange(LANES, dtype=np.float32), -np.arange(LANES, dtype=np.float32)
    both = on_registers(
        lambda a, b: plsc.unpack(plsc.pack(a, b, format=form), format=form),
        a,
        b,
        out=(_like(a), _like(b)),
    )
    np.testing.assert_array_equal(both[0], a)
    np.testing.assert_array_equal(both[1], b)


def test_interleaved_is_one_of_each_in_turn() -> None:
    a, b = np.arange(LANES, dtype=np.float32), 100 + np.arange(LANES, dtype=np.float32)
    form = plsc.PackFormat.INTERLEAVED
    out = on_registers(
        lambda a, b: plsc.pack(a, b, format=form).astype(jnp.float32),
        a,
        b,
        out=jax.ShapeDtypeStruct((2 * LANES,), jnp.float32),
    )
    np.testing.assert_array_equal(out[:4], [0, 100, 1, 101])


def _on_memory(function: Callable[..., None], start: Any, *args: Any) -> np.ndarray:
    """What ``function(ref, *values)`` makes of memory that holds ``start``."""
    start = np.asarray(start, np.int32)
    arrays = [np.asarray(x, np.int32) for x in args]

    def body(start_ref: Any, *refs: Any) -> None:
        *inputs, out, memory, buffers = refs
        pltpu.sync_copy(start_ref, memory)
        for hbm, vmem in zip(inputs, buffers, strict=True):
            pltpu.sync_copy(hbm, vmem)
        function(memory, *(vmem[...] for vmem in buffers))
        pltpu.sync_copy(memory, out)

    scratch = [pltpu.VMEM(start.shape, jnp.int32), [pltpu.VMEM(x.shape, x.dtype) for x in arrays]]
    return run(body, _like(start), start, *arrays, scratch=scratch)


@pytest.mark.parametrize("mask", [MASKS[1], MASKS[2]], ids=["none", "odd"])
class TestMemory:
    def test_store_compressed(self, mask: Any) -> None:
        out = _on_memory(
            lambda ref, x, m: plsc.store_compressed(ref.at[...], x, mask=m != 0),
            np.full(LANES, 99),
            VALUES,
            mask,
        )
        count = mask.sum()
        np.testing.assert_array_equal(out[:count], VALUES[mask])
        assert (out[count:] == 99).all()

    def test_addupdate_compressed(self, mask: Any) -> None:
        out = _on_memory(
            lambda ref, x, m: plsc.addupdate_compressed(ref.at[...], x, mask=m != 0),
            np.full(LANES, 100),
            VALUES,
            mask,
        )
        count = mask.sum()
        np.testing.assert_array_equal(out[:count], 100 + VALUES[mask])
        assert (out[count:] == 100).all()

    def test_load_expanded(self, mask: Any) -> None:
        def body(ref: Any, m: Any) -> None:
            loaded = plsc.load_expanded(ref.at[...], mask=m != 0)
            ref[...] = jnp.where(m != 0, loaded, -1)

        out = _on_memory(body, VALUES, mask)
        np.testing.assert_array_equal(out[mask], VALUES[: mask.sum()])

    def test_scatter(self, mask: Any) -> None:
        indices = np.array([9, 2, 0, 7, 5, 11, 3, 1])
        out = _on_memory(
            lambda ref, x, i, m: plsc.store_scatter(ref, [i], x, mask=m != 0),
            np.full(12, 99),
            VALUES,
            indices,
            mask,
        )
        expected = np.full(12, 99)
        expected[indices[mask]] = VALUES[mask]
        np.testing.assert_array_equal(out, expected)

    def test_scatter_that_adds_counts_what_is_repeated(self, mask: Any) -> None:
        indices = np.array([3, 2, 3, 3, 0, 2, 3, 1])
        out = _on_memory(
            lambda ref, x, i, m: plsc.addupdate_scatter(ref, [i], x, mask=m != 0),
            np.full(LANES, 10),
            VALUES,
            indices,
            mask,
        )
        expected = np.full(LANES, 10)
        np.add.at(expected, indices[mask], VALUES[mask])
        np.testing.assert_array_equal(out, expected)

    def test_gather(self, mask: Any) -> None:
        def body(ref: Any, i: Any, m: Any) -> None:
            loaded = plsc.load_gather(ref, [i], mask=m != 0)
            ref[...] = jnp.where(m != 0, loaded, -1)

        indices = RNG.permutation(LANES)
        out = _on_memory(body, VALUES, np.where(mask, indices, 1000), mask)
        np.testing.assert_array_equal(out[mask], VALUES[indices[mask]])


def test_addupdate() -> None:
    out = _on_memory(lambda ref, x: plsc.addupdate(ref.at[...], x), np.full(LANES, 7), VALUES)
    np.testing.assert_array_equal(out, 7 + VALUES)


def test_gather_beyond_the_end_is_an_error() -> None:
    def body(ref: Any, i: Any) -> None:
        ref[...] = plsc.load_gather(ref, [i])

    with pytest.raises(Exception, match=r"Out-of-bounds gather: index 8 of axis 0"):
        _on_memory(body, VALUES, np.arange(LANES) + 1)


def test_parallel_loop_with_a_carry() -> None:
    def body(ref: Any) -> None:
        @plsc.parallel_loop(0, LANES, 2, carry=jnp.int32(5))
        def total(i: Any, carry: Any) -> Any:
            ref[pl.ds(i, 2)] = ref[pl.ds(i, 2)] + carry
            return carry + 1

        ref[pl.ds(0, 1)] = jnp.full((1,), total)

    out = _on_memory(body, np.zeros(LANES))
    np.testing.assert_array_equal(out, [9, 5, 6, 6, 7, 7, 8, 8])


class TestMeshes:
    def test_every_subcore_of_every_core_knows_its_place(self) -> None:
        def body(out: Any, buffer: Any) -> None:
            core, subcore = jax.lax.axis_index("core"), jax.lax.axis_index("subcore")
            buffer[...] = jnp.full((LANES,), 10 * core + subcore)
            pltpu.sync_copy(buffer, out.at[core, subcore])

        shape = jax.ShapeDtypeStruct((2, SUBCORES, LANES), jnp.int32)
        scratch = [pltpu.VMEM((LANES,), jnp.int32)]
        out = run(body, shape, scratch=scratch, cores=2, subcores=SUBCORES)
        np.testing.assert_array_equal(out[..., 0], [[0, 1, 2, 3], [10, 11, 12, 13]])

    @pytest.mark.parametrize("waits", [True, False])
    def test_a_barrier_makes_what_others_wrote_visible(self, waits: bool) -> None:
        def body(out: Any, shared: Any, buffer: Any) -> None:
            me = jax.lax.axis_index("subcore")
            buffer[...] = jnp.full((LANES,), me)
            pltpu.sync_copy(buffer, shared.at[me])
            if waits:
                plsc.subcore_barrier()
            pltpu.sync_copy(shared.at[(me + 1) % SUBCORES], buffer)
            pltpu.sync_copy(buffer, out.at[me])

        shape = jax.ShapeDtypeStruct((SUBCORES, LANES), jnp.int32)
        scratch = [
            pltpu.VMEM_SHARED((SUBCORES, LANES), jnp.int32),
            pltpu.VMEM((LANES,), jnp.int32),
        ]
        if not waits:
            with pytest.raises(Exception, match="race on shared"):
                run(body, shape, scratch=scratch, subcores=SUBCORES)
            return
        out = run(body, shape, scratch=scratch, subcores=SUBCORES)
        np.testing.assert_array_equal(out[:, 0], [1, 2, 3, 0])

    def test_more_cores_than_xla_runs_at_once_on_a_device(self) -> None:
        """A v5p has 64 subcores, and all may wait for each other."""

        def body(out: Any, vmem: Any) -> None:
            plsc.subcore_barrier()
            number = jax.lax.axis_index("core") * 16 + jax.lax.axis_index("subcore")
            vmem[...] = jnp.full((LANES,), number, jnp.int32)
            pltpu.sync_copy(vmem, out.at[number])

        out = jax.ShapeDtypeStruct((64, LANES), jnp.int32)
        scratch = [pltpu.VMEM((LANES,), jnp.int32)]
        found = run(body, out, scratch=scratch, cores=4, subcores=16, chip="v5p")
        np.testing.assert_array_equal(found[:, 0], np.arange(64))

    def test_too_many_cores_for_the_devices_that_there_are(self) -> None:
        with pytest.raises(NotImplementedError, match="--pallas-devices=42"):
            require_threads(1000)

    def test_cores_of_several_devices_at_once(self) -> None:
        """Each device has more of them than fit beside those of another on one CPU device."""
        sizes = {"num_cores": 1, "num_subcores": 16}

        def body(x: Any, out: Any, vmem: Any) -> None:
            plsc.subcore_barrier()
            pltpu.sync_copy(x, vmem)
            pltpu.sync_copy(vmem, out.at[jax.lax.axis_index("subcore")])
            plsc.subcore_barrier()

        def call(x: Any) -> Any:
            return pl.kernel(
                body,
                out_type=jax.ShapeDtypeStruct((16, LANES), jnp.float32),
                mesh=plsc.VectorSubcoreMesh(
                    core_axis_name="core", subcore_axis_name="subcore", **sizes
                ),
                scratch_types=[pltpu.VMEM((LANES,), jnp.float32)],
            )(x[0])

        mesh = make_mesh({"x": 4}, "cpu")
        everywhere = jax.sharding.PartitionSpec("x")
        sharded = jax.shard_map(
            call, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
        )
        x = np.arange(4 * LANES, dtype=np.float32).reshape(4, LANES)
        outcome = tpu_interpret(TARGETS["v6e"]).run(
            Call(function=sharded, args=(x,), devices=4, timeout=60.0)
        )
        assert outcome.error is None, outcome.error
        np.testing.assert_array_equal(np.asarray(outcome.values), np.repeat(x, 16, axis=0))

    def test_a_barrier_that_one_does_not_reach_is_a_deadlock(self) -> None:
        def body(out: Any, buffer: Any) -> None:
            @pl.when(jax.lax.axis_index("subcore") > 0)
            def _others() -> None:
                plsc.subcore_barrier()

            pltpu.sync_copy(buffer, out)

        shape = jax.ShapeDtypeStruct((LANES,), jnp.int32)
        scratch = [pltpu.VMEM((LANES,), jnp.int32)]
        with pytest.raises(Exception, match=r"(?i)wait|deadlock"):
            run(body, shape, scratch=scratch, subcores=SUBCORES, timeout=3.0)

    def test_fetch_and_add(self) -> None:
        def body(out: Any, counter: Any, buffer: Any) -> None:
            me = jax.lax.axis_index("subcore")
            counter[0] = 0
            plsc.subcore_barrier()
            plsc.fetch_and_add(counter.at[0], me + 1, subcore_id=0)
            plsc.subcore_barrier()
            buffer[...] = jnp.full((LANES,), counter[0])
            pltpu.sync_copy(buffer, out.at[me])

        shape = jax.ShapeDtypeStruct((SUBCORES, LANES), jnp.int32)
        scratch = [pltpu.SMEM((1,), jnp.int32), pltpu.VMEM((LANES,), jnp.int32)]
        out = run(body, shape, scratch=scratch, subcores=SUBCORES)
        np.testing.assert_array_equal(out[:, 0], [10, 0, 0, 0])


class TestCopies:
    @pytest.mark.parametrize("adds", [False, True])
    def test_gather_of_rows(self, adds: bool) -> None:
        x = np.arange(20 * LANES, dtype=np.float32).reshape(20, LANES)
        indices = np.array([3, 19, 0, 3], np.int32)

        def body(x: Any, i: Any, out: Any, i_vmem: Any, rows: Any, semaphore: Any) -> None:
            pltpu.sync_copy(i, i_vmem)
            pltpu.sync_copy(x.at[pl.ds(0, 4)], rows)
            pltpu.async_copy(x.at[i_vmem], rows, semaphore, add=adds).wait()
            pltpu.sync_copy(rows, out)

        scratch = [
            pltpu.VMEM((4,), jnp.int32),
            pltpu.VMEM((4, LANES), jnp.float32),
            pltpu.SemaphoreType.DMA,
        ]
        out = run(body, jax.ShapeDtypeStruct((4, LANES), jnp.float32), x, indices, scratch=scratch)
        np.testing.assert_array_equal(out, x[indices] + adds * x[:4])

    def test_gather_by_a_register(self) -> None:
        x = np.arange(20 * LANES, dtype=np.float32).reshape(20, LANES)
        indices = np.array([3, 19, 0, 3, 7, 7, 1, 2], np.int32)

        def body(x: Any, i: Any, out: Any, i_vmem: Any, rows: Any, semaphore: Any) -> None:
            pltpu.sync_copy(i, i_vmem)
            pltpu.async_copy(x.at[i_vmem[...]], rows, semaphore).wait()
            pltpu.sync_copy(rows, out)

        scratch = [
            pltpu.VMEM((LANES,), jnp.int32),
            pltpu.VMEM((LANES, LANES), jnp.float32),
            pltpu.SemaphoreType.DMA,
        ]
        out = run(body, jax.ShapeDtypeStruct((8, LANES), jnp.float32), x, indices, scratch=scratch)
        np.testing.assert_array_equal(out, x[indices])

    @pytest.mark.parametrize("adds", [False, True])
    def test_scatter_that_ignores_an_index(self, adds: bool) -> None:
        x = RNG.integers(-9, 9, (4, LANES)).astype(np.float32)
        indices = np.array([2, -1, 0, -1], np.int32)

        def body(x: Any, i: Any, zeros: Any, out: Any, i_vmem: Any, rows: Any, sem: Any) -> None:
            pltpu.sync_copy(i, i_vmem)
            pltpu.sync_copy(zeros, out)
            pltpu.sync_copy(x, rows)
            pltpu.async_copy(
                rows, out.at[plsc.Indices(i_vmem, ignored_value=-1)], sem, add=adds
            ).wait()

        scratch = [
            pltpu.VMEM((4,), jnp.int32),
            pltpu.VMEM((4, LANES), jnp.float32),
            pltpu.SemaphoreType.DMA,
        ]
        ones = np.ones((5, LANES), np.float32)
        out = run(
            body, jax.ShapeDtypeStruct((5, LANES), jnp.float32), x, indices, ones, scratch=scratch
        )
        wanted = ones.copy()
        wanted[[2, 0]] = x[[0, 2]] + adds
        np.testing.assert_array_equal(out, wanted)

    @pytest.mark.parametrize("dtype", ["float32", "int32"])
    def test_sums_that_overflow_do_so_without_a_warning(self, dtype: str) -> None:
        large = jnp.finfo(dtype).max if dtype == "float32" else jnp.iinfo(dtype).max
        x = np.full((4, LANES), large, dtype)

        def body(x: Any, i: Any, out: Any, i_vmem: Any, rows: Any, shared: Any) -> None:
            pltpu.sync_copy(i, i_vmem)
            pltpu.sync_copy(x, rows)
            pltpu.sync_copy(x, shared)
            pltpu.sync_copy(rows, shared.at[i_vmem], add=True)
            pltpu.sync_copy(shared, out)

        scratch = [
            pltpu.VMEM((4,), jnp.int32),
            pltpu.VMEM((4, LANES), dtype),
            pltpu.VMEM_SHARED((4, LANES), dtype),
        ]
        out = run(
            body,
            jax.ShapeDtypeStruct(x.shape, dtype),
            x,
            np.arange(4, dtype=np.int32),
            scratch=scratch,
        )
        assert np.all(out == (np.inf if dtype == "float32" else -2))

    @pytest.mark.parametrize("waits", [True, False])
    def test_adding_to_what_another_writes_is_a_race(self, waits: bool) -> None:
        ones = np.ones((4, LANES), np.float32)

        def body(x: Any, i: Any, out: Any, i_vmem: Any, rows: Any, shared: Any) -> None:
            pltpu.sync_copy(i, i_vmem)
            pltpu.sync_copy(x, rows)

            @pl.when(jax.lax.axis_index("subcore") == 0)
            def _clear() -> None:
                pltpu.sync_copy(x, shared)

            if waits:
                plsc.subcore_barrier()
            pltpu.sync_copy(rows, shared.at[i_vmem], add=True)
            plsc.subcore_barrier()
            pltpu.sync_copy(shared, out.at[jax.lax.axis_index("subcore")])

        scratch = [
            pltpu.VMEM((4,), jnp.int32),
            pltpu.VMEM((4, LANES), jnp.float32),
            pltpu.VMEM_SHARED((4, LANES), jnp.float32),
        ]
        out = jax.ShapeDtypeStruct((SUBCORES, 4, LANES), jnp.float32)
        indices = np.arange(4, dtype=np.int32)
        if waits:
            found = run(body, out, ones, indices, scratch=scratch, subcores=SUBCORES)
            np.testing.assert_array_equal(found, np.full(found.shape, 1.0 + SUBCORES))
        else:
            with pytest.raises(Exception, match="race on shared"):
                run(body, out, ones, indices, scratch=scratch, subcores=SUBCORES)

    def test_rows_of_all_subcores_are_added_to_shared_memory(self) -> None:
        x = RNG.integers(-9, 9, (SUBCORES, 3, LANES)).astype(np.float32)
        indices = RNG.integers(0, 5, (SUBCORES, 3)).astype(np.int32)

        def body(x: Any, i: Any, out: Any, i_vmem: Any, rows: Any, shared: Any) -> None:
            me = jax.lax.axis_index("subcore")
            rows[...] = jnp.zeros_like(rows)

            @pl.when(me == 0)
            def _clear() -> None:
                for row in range(5):
                    pltpu.sync_copy(rows.at[0], shared.at[row])

            plsc.subcore_barrier()
            pltpu.sync_copy(i.at[me], i_vmem)
            pltpu.sync_copy(x.at[me], rows)
            pltpu.sync_copy(rows, shared.at[i_vmem], add=True)
            plsc.subcore_barrier()

            @pl.when(me == 0)
            def _store() -> None:
                pltpu.sync_copy(shared, out)

        scratch = [
            pltpu.VMEM((3,), jnp.int32),
            pltpu.VMEM((3, LANES), jnp.float32),
            pltpu.VMEM_SHARED((5, LANES), jnp.float32),
        ]
        shape = jax.ShapeDtypeStruct((5, LANES), jnp.float32)
        out = run(body, shape, x, indices, scratch=scratch, subcores=SUBCORES)
        expected = np.zeros((5, LANES), np.float32)
        np.add.at(expected, indices.reshape(-1), x.reshape(-1, LANES))
        np.testing.assert_array_equal(out, expected)


def test_records_say_what_was_simulated() -> None:
    def call(x: Any) -> Any:
        def body(x: Any, out: Any, buffer: Any) -> None:
            pltpu.sync_copy(x, buffer)
            buffer[...] = plsc.cumsum(buffer[...])
            pltpu.sync_copy(buffer, out)

        scratch = [pltpu.VMEM((LANES,), jnp.int32)]
        return pl.kernel(body, out_type=I32, mesh=mesh(), scratch_types=scratch)(x)

    outcome = tpu_interpret().run(Call(function=call, args=(VALUES,)))
    assert "simulated by pytest-pallas: VectorSubcoreMesh, masked_cumsum" in outcome.notes
