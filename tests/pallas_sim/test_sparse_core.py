"""SparseCores: what their subcores do in registers, in memory, and with each other."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_sim.rules.kernels
from pallas_sim import simulate
from pallas_sim.errors import BoundsError, DeadlockError, SimulationError

plsc = pytest.importorskip("jax.experimental.pallas.tpu_sc")

LANES = 8
SUBCORES = 4
SEEDS = [0, 1, 2, 3]
DMA = pltpu.SemaphoreType.DMA
I32 = jax.ShapeDtypeStruct((LANES,), jnp.int32)
VALUES = np.array([3, -1, 3, 3, 2, -1, 7, 2], np.int32)
MASKS = {
    "all": [1, 1, 1, 1, 1, 1, 1, 1],
    "none": [0, 0, 0, 0, 0, 0, 0, 0],
    "odd": [0, 1, 0, 1, 0, 1, 0, 1],
    "late": [0, 0, 0, 1, 1, 0, 1, 0],
}
masked = pytest.mark.parametrize("mask", [*MASKS.values()], ids=[*MASKS])
seeded = pytest.mark.parametrize("seed", SEEDS)


def like(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def simulated(
    body: Callable[..., None],
    out: Any,
    *args: Any,
    scratch: Sequence[Any] = (),
    seed: int = 0,
    cores: int = 1,
    subcores: int = 1,
) -> Any:
    """How a kernel on subcores goes; its references are in HBM."""

    def call(*args: Any) -> Any:
        return pl.kernel(
            body,
            out_type=out,
            mesh=plsc.VectorSubcoreMesh(
                core_axis_name="core",
                subcore_axis_name="subcore",
                num_cores=cores,
                num_subcores=subcores,
            ),
            scratch_types=list(scratch),
            compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
        )(*args)

    found = simulate(call, *args, seed=seed)
    assert not found.fallbacks
    return found


def run(*args: Any, **options: Any) -> Any:
    """What a kernel that has no findings gives."""
    found = simulated(*args, **options)
    assert found.findings == ()
    return found.values


def me() -> Any:
    return jax.lax.axis_index("subcore")


def on_registers(function: Callable[..., Any], *args: Any, out: Any = I32) -> Any:
    """A function of registers, on one subcore."""
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


def in_memory(function: Callable[..., None], start: Any, *args: Any) -> Any:
    """What ``function(ref, *registers)`` makes of memory that holds ``start``."""
    arrays = [np.asarray(x) for x in args]

    def body(start_ref: Any, *refs: Any) -> None:
        *inputs, out, memory, buffers = refs
        pltpu.sync_copy(start_ref, memory)
        for hbm, vmem in zip(inputs, buffers, strict=True):
            pltpu.sync_copy(hbm, vmem)
        function(memory, *(vmem[...] for vmem in buffers))
        pltpu.sync_copy(memory, out)

    start = np.asarray(start)
    scratch = [pltpu.VMEM(start.shape, start.dtype), [pltpu.VMEM(x.shape, x.dtype) for x in arrays]]
    return run(body, like(start), start, *arrays, scratch=scratch)


@pytest.fixture
def _any_vector(monkeypatch):
    """Registers that no store takes are stored, so that a test can look at them."""
    monkeypatch.setattr(pallas_sim.rules.kernels, "require_lowering", lambda *_: None)


class TestRegisters:
    @pytest.mark.parametrize("dtype", [np.int32, np.float32, np.uint32])
    @masked
    def test_cumsum(self, mask, dtype):
        x = np.abs(VALUES).astype(dtype)
        found = on_registers(lambda x, m: plsc.cumsum(x, mask=m != 0), x, np.int32(mask))
        total, wanted = 0, []
        for each, counts in zip(x.tolist(), mask, strict=True):
            total += each * counts
            wanted.append(total)
        assert found.tolist() == wanted

    def test_a_sum_of_int32_wraps(self):
        x = np.full(LANES, 2**30, np.int32)
        found = on_registers(plsc.cumsum, x)
        assert found.tolist() == [(n * 2**30 + 2**31) % 2**32 - 2**31 for n in range(1, 9)]

    @pytest.mark.parametrize("dtype", [np.int32, np.float32])
    @pytest.mark.parametrize("largest", [True, False])
    @masked
    def test_running_extreme(self, mask, largest, dtype):
        # JAX 0.12.0.1 has both, and exports one.
        module = importlib.import_module("jax._src.pallas.mosaic.sc_primitives")
        function = module.cummax if largest else module.cummin
        x = VALUES.astype(dtype)
        found = on_registers(lambda x, m: function(x, mask=m != 0), x, np.int32(mask), out=like(x))
        seen: list[Any] = []
        wanted: list[Any] = []
        for each, counts in zip(x.tolist(), mask, strict=True):
            seen += [each] * counts
            wanted.append((max if largest else min)(seen) if seen else each)
        assert found.tolist() == wanted

    @masked
    def test_scan_count(self, mask):
        found = on_registers(
            lambda x, m: plsc.scan_count(x, m != 0), VALUES, np.int32(mask), out=(I32, I32)
        )
        pairs = list(zip(VALUES.tolist(), mask, strict=True))
        for at, (each, counts) in enumerate(pairs):
            assert found[0][at] == (pairs[: at + 1].count((each, 1)) if counts else 0)
            assert found[1][at] == (counts and (each, 1) not in pairs[at + 1 :])

    @pytest.mark.parametrize("descending", [False, True])
    @masked
    def test_sort(self, mask, descending):
        places = np.arange(LANES, dtype=np.int32)
        unsorted = np.where(places == 6, np.iinfo(np.int32).min, VALUES)
        keys, order, valid = on_registers(
            lambda k, v, m: plsc.sort_key_val(k, v, mask=m != 0, descending=descending),
            unsorted,
            places,
            np.int32(mask),
            out=(I32, I32, I32),
        )
        sign = -1 if descending else 1
        wanted = sorted(
            (at for at in range(LANES) if mask[at]), key=lambda at: sign * int(unsorted[at])
        )
        # What does not count comes last, as it was.
        assert order.tolist() == wanted + [at for at in range(LANES) if not mask[at]]
        assert keys.tolist() == [unsorted[at] for at in order]
        assert valid.tolist() == [1] * sum(mask) + [0] * (LANES - sum(mask))

    def test_sort_of_floats_without_a_mask(self):
        x = np.array([2, -np.inf, 0.5, -1, np.inf, 3, -0.25, 1], np.float32)
        keys, order = on_registers(
            plsc.sort_key_val, x, np.arange(LANES, dtype=np.int32), out=(like(x), I32)
        )
        assert keys.tolist() == sorted(x.tolist())
        assert x[order].tolist() == keys.tolist()

    @masked
    def test_how_many_and_which_is_the_first(self, mask):
        count, first = on_registers(
            lambda m: (plsc.all_reduce_population_count(m != 0), plsc.all_reduce_ffs(m != 0)),
            np.int32(mask),
            out=(I32, I32),
        )
        assert count.tolist() == [sum(mask)] * LANES
        assert first.tolist() == [mask.index(1) if 1 in mask else LANES] * LANES

    @pytest.mark.usefixtures("_any_vector")
    def test_a_reduction_to_fewer_lanes(self):
        found = on_registers(
            lambda m: plsc.all_reduce_population_count(m != 0, reduce=4),
            np.int32(MASKS["odd"]),
            out=jax.ShapeDtypeStruct((2,), jnp.int32),
        )
        assert found.tolist() == [4, 4]

    @pytest.mark.usefixtures("_any_vector")
    def test_pack(self):
        a = np.array([1, 2.00390625, 3, 4, 5, 6, 7, 1e9], np.float32)
        b = -np.arange(LANES, dtype=np.float32)
        interleaved = on_registers(
            lambda a, b: plsc.pack(a, b, format=plsc.PackFormat.INTERLEAVED),
            a,
            b,
            out=jax.ShapeDtypeStruct((2 * LANES,), jnp.bfloat16),
        )
        rounded = [float(jnp.bfloat16(x)) for pair in zip(a, b, strict=True) for x in pair]
        assert interleaved.astype(np.float32).tolist() == rounded
        columns = on_registers(
            lambda a, b: plsc.pack(a, b, format=plsc.PackFormat.COMPRESSED),
            a,
            b,
            out=jax.ShapeDtypeStruct((LANES, 2), jnp.bfloat16),
        )
        assert columns.astype(np.float32).ravel().tolist() == rounded

    def test_packed_integers_wrap(self):
        a = np.array([1, 2**16 + 5, -1, 40000, 0, 0, 0, 0], np.int32)
        form = plsc.PackFormat.INTERLEAVED
        first, second = on_registers(
            lambda a: plsc.unpack(plsc.pack(a, a + 1, format=form), format=form), a, out=(I32, I32)
        )
        assert first[:4].tolist() == [1, 5, -1, 40000 - 2**16]
        assert second[:4].tolist() == [2, 6, 0, 40001 - 2**16]


class TestMemory:
    @pytest.mark.parametrize("adds", [False, True])
    @masked
    def test_compressed_stores(self, mask, adds):
        store = plsc.addupdate_compressed if adds else plsc.store_compressed
        found = in_memory(
            lambda ref, x, m: store(ref.at[pl.ds(2, LANES)], x, mask=m != 0),
            np.arange(100, 112, dtype=np.int32),
            VALUES,
            np.int32(mask),
        )
        wanted = list(range(100, 112))
        at = 2
        for each, counts in zip(VALUES.tolist(), mask, strict=True):
            if counts:
                wanted[at] = wanted[at] + each if adds else each
                at += 1
        assert found.tolist() == wanted

    @masked
    def test_load_expanded(self, mask):
        def body(ref, m):
            loaded = plsc.load_expanded(ref.at[1, pl.ds(3, LANES)], mask=m != 0)
            ref[0, pl.ds(0, LANES)] = jnp.where(m != 0, loaded, -1)

        start = np.arange(24, dtype=np.int32).reshape(2, 12)
        found = in_memory(body, start, np.int32(mask))
        at, wanted = 15, []
        for counts in mask:
            wanted.append(at if counts else -1)
            at += counts
        assert found[0, :LANES].tolist() == wanted

    def test_lanes_that_a_mask_leaves_out_are_uninitialized(self):
        def body(ref, m):
            expanded = plsc.load_expanded(ref.at[pl.ds(0, LANES)], mask=m != 0)
            gathered = plsc.load_gather(ref, [jnp.arange(LANES)], mask=m != 0)
            ref[pl.ds(0, LANES)] = jnp.where(jnp.isnan(expanded) & jnp.isnan(gathered), 1.0, 2.0)

        found = in_memory(body, np.zeros(12, np.float32), np.int32(MASKS["late"]))
        assert found[:LANES].tolist() == [1 + counts for counts in MASKS["late"]]

    def test_addupdate(self):
        found = in_memory(
            lambda ref, x: plsc.addupdate(ref.at[1, pl.ds(1, LANES)], x),
            np.arange(20, dtype=np.int32).reshape(2, 10),
            VALUES,
        )
        wanted = list(range(20))
        for at, each in enumerate(VALUES.tolist()):
            wanted[11 + at] += each
        assert found.ravel().tolist() == wanted

    @masked
    def test_gather(self, mask):
        rows, columns = np.array([[1, 0, 2, 2, 1, 0, 2, 1], [3, 3, 0, 1, 2, 2, 0, 3]], np.int32)
        # What the mask leaves out may be beyond the edge.
        rows = np.where(mask, rows, 99).astype(np.int32)

        def body(ref, i, j, m):
            found = plsc.load_gather(ref.at[1], [i, j], mask=m != 0)
            ref[0, 0, pl.ds(0, LANES)] = jnp.where(m != 0, found, -1)

        start = np.arange(48, dtype=np.int32).reshape(2, 3, 8)
        found = in_memory(body, start, rows, columns, np.int32(mask))
        places = zip(rows.tolist(), columns.tolist(), mask, strict=True)
        wanted = [24 + 8 * i + j if counts else -1 for i, j, counts in places]
        assert found[0, 0].tolist() == wanted

    @pytest.mark.parametrize("adds", [False, True])
    @masked
    def test_scatter(self, mask, adds):
        # Repeated indices are each added; where a store has them, which one stays is undefined.
        indices = [4, 1, 4, 4, 0, 1, 4, 9] if adds else [4, 1, 5, 2, 0, 3, 8, 9]
        store = plsc.addupdate_scatter if adds else plsc.store_scatter
        found = in_memory(
            lambda ref, x, i, m: store(ref, [i], x, mask=m != 0),
            np.arange(100, 110, dtype=np.int32),
            VALUES,
            np.int32([i if counts else -7 for i, counts in zip(indices, mask, strict=True)]),
            np.int32(mask),
        )
        wanted = list(range(100, 110))
        for at, each, counts in zip(indices, VALUES.tolist(), mask, strict=True):
            if counts:
                wanted[at] = wanted[at] + each if adds else each
        assert found.tolist() == wanted

    @pytest.mark.parametrize(
        ("access", "what"),
        [
            (lambda ref, x, i, m: plsc.load_gather(ref, [i], mask=m), "load from"),
            (lambda ref, x, i, m: plsc.store_scatter(ref, [i], x, mask=m), "store to"),
            (lambda ref, x, i, m: plsc.addupdate_scatter(ref, [i], x, mask=m), "store to"),
            (
                lambda ref, x, i, m: plsc.store_compressed(ref.at[pl.ds(i[7], 8)], x, mask=m),
                "store to",
            ),
            (
                lambda ref, x, i, m: plsc.addupdate(ref.at[pl.ds(i[7], 8)], x),
                "store to",
            ),
            (
                lambda ref, x, i, m: plsc.load_expanded(ref.at[pl.ds(i[7], 8)], mask=m),
                "load from",
            ),
        ],
    )
    @pytest.mark.parametrize("last", [10, -1])
    def test_an_index_beyond_the_edge(self, access, what, last):
        indices = np.array([1, 2, 3, 4, 5, 6, 7, last], np.int32)

        def body(ref, x, i):
            ref[pl.ds(0, LANES)] = jnp.zeros(LANES, jnp.int32)
            out = access(ref, x, i, x > -100)
            if out is not None:
                ref[pl.ds(0, LANES)] = out

        with pytest.raises(BoundsError) as caught:
            in_memory(body, np.zeros(10, np.int32), VALUES, indices)
        finding = caught.value.finding
        assert finding is not None
        assert (finding.kind, finding.shape) == ("bounds", (10,))
        assert finding.message.startswith(what)
        assert last in finding.index or finding.index[1] == last + LANES - 1
        assert "test_sparse_core.py" in finding.line

    def test_a_compressed_store_touches_no_more_than_the_mask_has(self):
        def body(ref, x, m):
            plsc.store_compressed(ref.at[pl.ds(x[6], LANES)], x, mask=m != 0)

        found = in_memory(body, np.zeros(10, np.int32), VALUES, np.int32(MASKS["late"]))
        assert found.tolist() == [0] * 7 + [3, 2, 7]


class TestParallelLoop:
    def test_without_a_carry_it_runs_in_any_order(self):
        def body(out, memory, last):
            last[0] = 0

            @plsc.parallel_loop(0, 8 * LANES, LANES, unroll=2)
            def _(i):
                memory[pl.ds(i, LANES)] = jnp.full((LANES,), i)
                last[0] = i  # which no iteration may rely on

            memory[pl.ds(0, LANES)] = jnp.full((LANES,), last[0])
            pltpu.sync_copy(memory, out)

        shape = jax.ShapeDtypeStruct((8 * LANES,), jnp.int32)
        scratch = [pltpu.VMEM(shape.shape, jnp.int32), pltpu.SMEM((1,), jnp.int32)]
        ends = []
        for seed in range(9):
            found = run(body, shape, scratch=scratch, seed=seed).reshape(8, LANES)
            assert found[1:, 0].tolist() == list(range(LANES, 8 * LANES, LANES))
            ends.append(found[0, 0])
        assert ends[0] == 7 * LANES
        assert len(set(ends)) > 2

    @seeded
    def test_a_carry_is_passed_on_in_order(self, seed):
        def body(out, buffer):
            @plsc.parallel_loop(2, 11, 3, carry=(jnp.int32(1), jnp.int32(0)))
            def found(i, carry):
                product, count = carry
                return 10 * product + i, count + 1

            buffer[...] = jnp.full((LANES,), found[0] * 10 + found[1])
            pltpu.sync_copy(buffer, out)

        scratch = [pltpu.VMEM((LANES,), jnp.int32)]
        assert run(body, I32, scratch=scratch, seed=seed)[0] == 12583

    def test_no_rounds(self):
        def body(out, buffer):
            buffer[...] = jnp.zeros(LANES, jnp.int32)

            @plsc.parallel_loop(5, 5)
            def _(i):
                buffer[...] = jnp.full((LANES,), i)

            pltpu.sync_copy(buffer, out)

        assert run(body, I32, scratch=[pltpu.VMEM((LANES,), jnp.int32)])[0] == 0

    @pytest.mark.parametrize(("end", "way"), [(1, "none"), (4, "one"), (8, "several")])
    def test_its_rounds_are_what_coverage_counts(self, end, way):
        def body(out, buffer):
            buffer[...] = jnp.zeros(LANES, jnp.int32)

            @plsc.parallel_loop(1, end, 3)
            def _(i):
                buffer[...] = jnp.full((LANES,), i)

            pltpu.sync_copy(buffer, out)

        coverage = simulated(body, I32, scratch=[pltpu.VMEM((LANES,), jnp.int32)]).coverage
        (loop,) = [one for one in coverage if one.point.kind == "loop"]
        assert loop.counts == {way: 1}
        assert (loop.missing, "several" in loop.unreachable) == ((), way != "several")


_SHARED = (
    pltpu.VMEM_SHARED((SUBCORES, LANES), jnp.int32),
    pltpu.VMEM((LANES,), jnp.int32),
)
_ALL = jax.ShapeDtypeStruct((SUBCORES, LANES), jnp.int32)


def _exchange(waits: bool) -> Callable[..., None]:
    """Every subcore gives its number to the one before it, through shared memory."""

    def body(out: Any, shared: Any, buffer: Any) -> None:
        buffer[...] = jnp.full((LANES,), me())
        pltpu.sync_copy(buffer, shared.at[me()])
        if waits:
            plsc.subcore_barrier()
        pltpu.sync_copy(shared.at[(me() + 1) % SUBCORES], buffer)
        pltpu.sync_copy(buffer, out.at[me()])

    return body


class TestBarrier:
    @seeded
    def test_what_others_wrote_is_there(self, seed):
        found = run(_exchange(waits=True), _ALL, scratch=_SHARED, subcores=SUBCORES, seed=seed)
        assert found[:, 0].tolist() == [1, 2, 3, 0]

    @seeded
    def test_without_it_there_is_a_race(self, seed):
        options: Any = {"scratch": _SHARED, "subcores": SUBCORES, "seed": seed}
        found = simulated(_exchange(waits=False), _ALL, **options)
        assert {finding.kind for finding in found.findings} == {"race"}
        assert found.findings[0].ref == "shared"
        owners = {access.owner.thread for access in found.findings[0].accesses}
        assert len(owners) == 2

    @seeded
    def test_each_sparse_core_has_its_own(self, seed):
        def body(out, shared, buffer):
            core = jax.lax.axis_index("core")
            for _ in range(2):

                @pl.when(core == 0)
                def _again():
                    plsc.subcore_barrier()

            buffer[...] = jnp.full((LANES,), 10 * core + me())
            pltpu.sync_copy(buffer, shared.at[me()])
            plsc.subcore_barrier()
            pltpu.sync_copy(shared.at[SUBCORES - 1 - me()], buffer)
            pltpu.sync_copy(buffer, out.at[core, me()])

        shape = jax.ShapeDtypeStruct((2, SUBCORES, LANES), jnp.int32)
        found = run(body, shape, scratch=_SHARED, cores=2, subcores=SUBCORES, seed=seed)
        assert found[..., 0].tolist() == [[3, 2, 1, 0], [13, 12, 11, 10]]

    @seeded
    def test_it_is_one_barrier_whatever_the_line(self, seed):
        def body(out, buffer):
            pl.when(me() == 0)(lambda: plsc.subcore_barrier())
            pl.when(me() != 0)(lambda: plsc.subcore_barrier())
            buffer[...] = jnp.full((LANES,), me())
            pltpu.sync_copy(buffer, out.at[me()])

        found = run(body, _ALL, scratch=_SHARED[1:], subcores=SUBCORES, seed=seed)
        assert found[:, 0].tolist() == [0, 1, 2, 3]

    def test_who_does_not_reach_it_is_named(self):
        def body(out, buffer):
            pl.when(me() != 2)(lambda: plsc.subcore_barrier())
            pltpu.sync_copy(buffer, out.at[me()])

        with pytest.raises(
            DeadlockError, match=r"barrier of SparseCore 0 .not reached by subcore 2"
        ):
            run(body, _ALL, scratch=_SHARED[1:], subcores=SUBCORES)


class TestFetchAndAdd:
    @seeded
    def test_every_addition_counts(self, seed):
        def body(out, counter, buffer):
            counter[0] = 0
            counter[1] = 100
            plsc.subcore_barrier()
            before = plsc.fetch_and_add(counter.at[1], me() + 1, subcore_id=2)
            plsc.subcore_barrier()
            buffer[...] = jnp.where(jnp.arange(LANES) == 0, counter[1], before)
            pltpu.sync_copy(buffer, out.at[me()])

        scratch = [pltpu.SMEM((2,), jnp.int32), pltpu.VMEM((LANES,), jnp.int32)]
        found = run(body, _ALL, scratch=scratch, subcores=SUBCORES, seed=seed)
        assert found[:, 0].tolist() == [100, 100, 110, 100]
        # Each saw the sum of those that came before it.
        total = 100
        for number in np.argsort(found[:, 1]):
            assert found[number, 1] == total
            total += int(number) + 1

    def test_their_order_depends_on_the_seed(self):
        def body(out, counter, buffer):
            counter[0] = 0
            plsc.subcore_barrier()
            buffer[...] = jnp.full((LANES,), plsc.fetch_and_add(counter.at[0], 1, subcore_id=0))
            pltpu.sync_copy(buffer, out.at[me()])

        scratch = [pltpu.SMEM((1,), jnp.int32), pltpu.VMEM((LANES,), jnp.int32)]
        options: Any = {"scratch": scratch, "subcores": SUBCORES}
        orders = [tuple(run(body, _ALL, seed=seed, **options)[:, 0]) for seed in range(9)]
        assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2, 3)}
        assert len(set(orders)) > 1

    def test_others_come_between_two_of_them(self):
        """As where subcores take the next piece of work: none of them takes all."""

        def body(out, counter, buffer):
            counter[0] = 0
            plsc.subcore_barrier()
            takes = [plsc.fetch_and_add(counter.at[0], 1, subcore_id=0) for _ in range(3)]
            buffer[...] = jnp.full((LANES,), takes[2] - takes[0])
            pltpu.sync_copy(buffer, out.at[me()])

        scratch = [pltpu.SMEM((1,), jnp.int32), pltpu.VMEM((LANES,), jnp.int32)]
        options: Any = {"scratch": scratch, "subcores": SUBCORES}
        assert (run(body, _ALL, **options) == 2).all()
        assert any((run(body, _ALL, seed=seed, **options) > 2).any() for seed in range(1, 9))

    @seeded
    @pytest.mark.parametrize("early", ["addition", "read"])
    def test_without_a_barrier_it_is_a_race(self, seed, early):
        def body(out, counter, buffer):
            counter[0] = 0
            if early == "read":
                plsc.subcore_barrier()
            plsc.fetch_and_add(counter.at[0], 1, subcore_id=0)
            if early == "addition":
                plsc.subcore_barrier()
            buffer[...] = jnp.full((LANES,), counter[0])
            pltpu.sync_copy(buffer, out.at[me()])

        scratch = [pltpu.SMEM((1,), jnp.int32), pltpu.VMEM((LANES,), jnp.int32)]
        found = simulated(body, _ALL, scratch=scratch, subcores=SUBCORES, seed=seed)
        assert {(each.kind, each.ref) for each in found.findings} == {("race", "counter")}

    def test_places_that_are_not_there(self):
        def body(index, subcore):
            def kernel(out, counter, buffer):
                plsc.fetch_and_add(counter.at[me() + index], 1, subcore_id=subcore)
                pltpu.sync_copy(buffer, out)

            return kernel

        scratch = [pltpu.SMEM((2,), jnp.int32), pltpu.VMEM((LANES,), jnp.int32)]
        with pytest.raises(BoundsError, match=r"fetch_and_add to counter .2. beyond its edge"):
            run(body(2, 0), I32, scratch=scratch)
        with pytest.raises(SimulationError, match=r"no subcore 1: each SparseCore has 1"):
            run(body(0, 1), I32, scratch=scratch)


class TestIndexedCopies:
    X = np.arange(20 * LANES, dtype=np.float32).reshape(20, LANES)
    ROWS = np.array([3, 19, 0, 3], np.int32)

    @seeded
    @pytest.mark.parametrize("adds", [False, True])
    def test_gather(self, adds, seed):
        def body(x, i, out, lists, rows, semaphore):
            pltpu.sync_copy(i, lists.at[1])
            pltpu.sync_copy(x.at[pl.ds(0, 4)], rows)
            copy = pltpu.async_copy(x.at[lists.at[1]], rows, semaphore, add=adds)
            copy.wait()
            pltpu.sync_copy(rows, out)

        scratch = [pltpu.VMEM((2, 4), jnp.int32), pltpu.VMEM((4, LANES), jnp.float32), DMA]
        shape = jax.ShapeDtypeStruct((4, LANES), jnp.float32)
        found = run(body, shape, self.X, self.ROWS, scratch=scratch, seed=seed)
        for number, row in enumerate(self.ROWS.tolist()):
            before = self.X[number] if adds else 0
            assert found[number].tolist() == (self.X[row] + before).tolist()

    def test_gather_by_a_register_and_of_some_columns(self):
        def body(x, i, out, lists, rows, semaphore):
            pltpu.sync_copy(i, lists)
            pltpu.async_copy(x.at[lists[...], pl.ds(2, 4)], rows, semaphore).wait()
            pltpu.sync_copy(rows, out)

        indices = np.array([3, 19, 0, 3, 7, 7, 1, 2], np.int32)
        scratch = [pltpu.VMEM((LANES,), jnp.int32), pltpu.VMEM((8, 4), jnp.float32), DMA]
        shape = jax.ShapeDtypeStruct((8, 4), jnp.float32)
        found = run(body, shape, self.X, indices, scratch=scratch)
        wanted = [[LANES * row + column for column in range(2, 6)] for row in indices.tolist()]
        assert found.tolist() == wanted

    @seeded
    @pytest.mark.parametrize("adds", [False, True])
    def test_scatter_that_ignores_an_index(self, adds, seed):
        def body(x, i, ones, out, lists, rows, semaphore):
            pltpu.sync_copy(i, lists)
            pltpu.sync_copy(ones, out)
            pltpu.sync_copy(x, rows)
            target = out.at[plsc.Indices(lists, ignored_value=-1)]
            pltpu.async_copy(rows, target, semaphore, add=adds).wait()

        x = self.X[4:8]
        ones = np.ones((5, LANES), np.float32)
        indices = np.array([2, -1, 0, -1], np.int32)
        scratch = [pltpu.VMEM((4,), jnp.int32), pltpu.VMEM((4, LANES), jnp.float32), DMA]
        found = run(body, like(ones), x, indices, ones, scratch=scratch, seed=seed)
        wanted = ones.copy()
        wanted[2], wanted[0] = x[0] + adds, x[2] + adds
        np.testing.assert_array_equal(found, wanted)

    def test_which_of_two_rows_for_one_index_stays_depends_on_the_seed(self):
        def body(x, i, out, lists, rows, semaphore):
            pltpu.sync_copy(i, lists)
            pltpu.sync_copy(x.at[pl.ds(0, 4)], rows)
            pltpu.async_copy(rows, out.at[lists], semaphore).wait()

        indices = np.zeros(4, np.int32)
        scratch = [pltpu.VMEM((4,), jnp.int32), pltpu.VMEM((4, LANES), jnp.float32), DMA]
        shape = jax.ShapeDtypeStruct((1, LANES), jnp.float32)
        stayed = {
            float(run(body, shape, self.X, indices, scratch=scratch, seed=seed)[0, 0])
            for seed in range(9)
        }
        assert len(stayed) > 1
        assert stayed <= {0.0, 8.0, 16.0, 24.0}

    @seeded
    @pytest.mark.parametrize("dtype", [jnp.int32, jnp.bfloat16])
    def test_subcores_add_to_the_same_rows_at_once(self, seed, dtype):
        rng = np.random.default_rng(seed)
        x = rng.integers(-9, 9, (SUBCORES, 3, LANES)).astype(dtype)
        indices = rng.integers(0, 3, (SUBCORES, 3)).astype(np.int32)

        def body(x, i, zeros, out, lists, rows, sums):
            pl.when(me() == 0)(lambda: pltpu.sync_copy(zeros, sums))
            plsc.subcore_barrier()
            pltpu.sync_copy(i.at[me()], lists)
            pltpu.sync_copy(x.at[me()], rows)
            pltpu.sync_copy(rows, sums.at[lists], add=True)
            plsc.subcore_barrier()
            pl.when(me() == 0)(lambda: pltpu.sync_copy(sums, out))

        zeros = np.zeros((3, LANES), dtype)
        scratch = [
            pltpu.VMEM((3,), jnp.int32),
            pltpu.VMEM((3, LANES), dtype),
            pltpu.VMEM_SHARED((3, LANES), dtype),
        ]
        options: Any = {"scratch": scratch, "subcores": SUBCORES, "seed": seed}
        found = run(body, like(zeros), x, indices, zeros, **options)
        wanted = np.zeros((3, LANES), np.int64)
        for row, values in zip(indices.ravel(), x.reshape(-1, LANES), strict=True):
            wanted[row] += values.astype(np.int64)
        np.testing.assert_array_equal(found.astype(np.int64), wanted)

    @seeded
    @pytest.mark.parametrize("reads", [False, True])
    def test_adding_is_a_race_with_other_accesses(self, seed, reads):
        def body(x, i, out, lists, rows, sums):
            pl.when(me() == 0)(lambda: pltpu.sync_copy(x, sums))
            if reads:
                plsc.subcore_barrier()
            pltpu.sync_copy(i, lists)
            pltpu.sync_copy(x, rows)
            pltpu.sync_copy(rows, sums.at[lists], add=True)
            if not reads:
                plsc.subcore_barrier()
            pltpu.sync_copy(sums, out.at[me()])

        x, indices = self.X[:3], np.array([2, 0, 1], np.int32)
        scratch = [
            pltpu.VMEM((3,), jnp.int32),
            pltpu.VMEM((3, LANES), jnp.float32),
            pltpu.VMEM_SHARED((3, LANES), jnp.float32),
        ]
        shape = jax.ShapeDtypeStruct((2, 3, LANES), jnp.float32)
        found = simulated(body, shape, x, indices, scratch=scratch, subcores=2, seed=seed)
        assert {(each.kind, each.ref) for each in found.findings} == {("race", "sums")}

    @seeded
    @pytest.mark.parametrize("apart", [False, True])
    def test_rows_of_other_subcores_are_no_race(self, seed, apart):
        """Two subcores scatter to every other row of shared memory, or one of them to one more."""

        def body(x, i, out, lists, rows, shared):
            pltpu.sync_copy(i.at[me()], lists)
            pltpu.sync_copy(x, rows)
            pltpu.sync_copy(rows, shared.at[lists])
            plsc.subcore_barrier()
            pltpu.sync_copy(shared.at[pl.ds(3 * me(), 3)], out.at[pl.ds(3 * me(), 3)])

        indices = np.array([[0, 2, 4], [1, 3, 5] if apart else [1, 3, 4]], np.int32)
        scratch = [
            pltpu.VMEM((3,), jnp.int32),
            pltpu.VMEM((3, LANES), jnp.float32),
            pltpu.VMEM_SHARED((6, LANES), jnp.float32),
        ]
        shape = jax.ShapeDtypeStruct((6, LANES), jnp.float32)
        found = simulated(body, shape, self.X[:3], indices, scratch=scratch, subcores=2, seed=seed)
        assert [each.kind for each in found.findings] == ([] if apart else ["race"])
        if apart:
            np.testing.assert_array_equal(found.values, np.repeat(self.X[:3], 2, axis=0))

    @seeded
    @pytest.mark.parametrize("what", ["lists", "rows", "gathered", "expanded"])
    def test_an_access_before_the_wait(self, seed, what):
        def body(x, i, out, lists, rows, other, semaphore):
            pltpu.sync_copy(i, lists)
            copy = pltpu.async_copy(x.at[lists], rows, semaphore)
            odd = jnp.arange(LANES) % 2 == 1
            if what == "lists":  # which the copy reads while it is under way
                lists[...] = jnp.zeros(LANES, jnp.int32)
            elif what == "rows":
                rows[3, pl.ds(0, LANES)] = jnp.zeros(LANES)
            elif what == "expanded":
                other[...] = plsc.load_expanded(rows.at[1], mask=odd)
            else:
                ones = jnp.ones(LANES, jnp.int32)
                other[...] = plsc.load_gather(rows, [ones, jnp.arange(LANES)])
            copy.wait()
            pltpu.sync_copy(rows, out)

        indices = np.arange(LANES, dtype=np.int32)
        buffers = [pltpu.VMEM((8, LANES), jnp.float32), pltpu.VMEM((LANES,), jnp.float32)]
        scratch = [pltpu.VMEM((LANES,), jnp.int32), *buffers, DMA]
        shape = jax.ShapeDtypeStruct((8, LANES), jnp.float32)
        found = simulated(body, shape, self.X, indices, scratch=scratch, seed=seed)
        races = {(each.kind, each.ref) for each in found.findings}
        assert races == {("race", "lists" if what == "lists" else "rows")}

    @seeded
    @pytest.mark.parametrize("early", [False, True])
    def test_rows_of_memory_as_another_dtype(self, early, seed):
        """A gather from words of two elements, and a scatter to such."""

        def body(x, i, out, lists, rows, halves, semaphore):
            pltpu.sync_copy(i, lists)
            pltpu.sync_copy(x, halves)
            copy = pltpu.async_copy(halves.bitcast(jnp.int32).at[lists], rows, semaphore)
            if early:
                halves[pl.ds(6, 2), pl.ds(0, LANES)] = jnp.zeros((2, LANES), jnp.int16)
            copy.wait()
            pltpu.async_copy(rows, out.bitcast(jnp.int32).at[lists], semaphore).wait()

        x = np.arange(8 * LANES, dtype=np.int16).reshape(8, LANES)
        indices = np.array([3, 0, 2, 1], np.int32)
        scratch = [
            pltpu.VMEM((4,), jnp.int32),
            pltpu.VMEM((4, LANES), jnp.int32),
            pltpu.VMEM(x.shape, jnp.int16),
            DMA,
        ]
        found = simulated(body, like(x), x, indices, scratch=scratch, seed=seed)
        if early:
            assert {(each.kind, each.ref) for each in found.findings} == {("race", "halves")}
        else:
            assert found.findings == ()
            np.testing.assert_array_equal(found.values, x)

    @seeded
    def test_elements_beside_a_copy_are_no_race(self, seed):
        def body(x, out, memory, semaphore):
            copy = pltpu.async_copy(x.at[pl.ds(0, 4)], memory.at[pl.ds(2, 4)], semaphore)
            ones = jnp.ones(LANES, jnp.int32)
            rows = jnp.where(jnp.arange(LANES) < 4, ones, 6 * ones)
            plsc.store_scatter(memory, [rows, jnp.arange(LANES)], jnp.ones(LANES))
            copy.wait()
            pltpu.sync_copy(memory.at[1], out)

        scratch = [pltpu.VMEM((8, LANES), jnp.float32), DMA]
        shape = jax.ShapeDtypeStruct((LANES,), jnp.float32)
        found = run(body, shape, self.X, scratch=scratch, seed=seed)
        assert found[:4].tolist() == [1, 1, 1, 1]

    @pytest.mark.parametrize("index", [20, -1])
    @pytest.mark.parametrize("scatters", [False, True])
    def test_an_index_beyond_the_edge(self, index, scatters):
        def body(x, i, out, lists, rows, semaphore):
            pltpu.sync_copy(i, lists)
            pltpu.sync_copy(x.at[pl.ds(0, 4)], rows)
            if scatters:
                pltpu.async_copy(rows, out.at[lists], semaphore).wait()
            else:
                pltpu.async_copy(x.at[lists], rows, semaphore).wait()

        indices = np.array([3, index, 0, 3], np.int32)
        scratch = [pltpu.VMEM((4,), jnp.int32), pltpu.VMEM((4, LANES), jnp.float32), DMA]
        with pytest.raises(BoundsError) as caught:
            run(body, like(self.X), self.X, indices, scratch=scratch)
        finding = caught.value.finding
        assert finding is not None
        assert (finding.ref, finding.shape) == ("out" if scatters else "x", (20, LANES))
        assert index in finding.index
        assert finding.message.startswith("copy to out" if scatters else "copy from x")


class TestMeshes:
    @seeded
    def test_a_pipeline_is_dealt_to_all_subcores(self, seed):
        x = np.arange(12 * LANES, dtype=np.float32)

        def body(x_ref, out_ref):
            def double(x, out):
                out[...] = x[...] * 2

            pltpu.emit_pipeline(
                double,
                grid=(12,),
                in_specs=[pl.BlockSpec((LANES,), lambda i: (i,))],
                out_specs=[pl.BlockSpec((LANES,), lambda i: (i,))],
                core_axis_name=("core", "subcore"),
                dimension_semantics=(pltpu.PARALLEL,),
                tiling=pltpu.Tiling.SPARSE_CORE,
            )(x_ref, out_ref)

        found = run(body, like(x), x, cores=2, subcores=SUBCORES, seed=seed)
        np.testing.assert_array_equal(found, 2 * x)

    @seeded
    def test_semaphores_of_another_body(self, seed):
        def give(x, out, stage, buffer, filled):
            pltpu.sync_copy(x, stage)
            for subcore in range(2):
                pl.semaphore_signal(filled, 1, device_id={"subcore": subcore})

        def take(x, out, stage, buffer, filled):
            pl.semaphore_wait(filled, 1)
            pltpu.sync_copy(stage.at[me()], buffer)
            buffer[...] += 1
            pltpu.sync_copy(buffer, out.at[me()])

        def call(x):
            vectors = plsc.VectorSubcoreMesh(
                core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=2
            )
            scalars = plsc.ScalarSubcoreMesh(axis_name="core", num_cores=1)
            return pl.kernel(
                body=[take, give],
                mesh=[vectors, scalars],
                out_type=like(x),
                scratch_types=[
                    pltpu.VMEM_SHARED((2, LANES), jnp.float32),
                    pltpu.VMEM((LANES,), jnp.float32) @ vectors,
                    pltpu.SemaphoreType.REGULAR @ vectors,
                ],
            )(x)

        x = np.arange(2 * LANES, dtype=np.float32).reshape(2, LANES)
        found = simulate(call, x, seed=seed)
        assert found.findings == ()
        np.testing.assert_array_equal(found.values, x + 1)

    @pytest.mark.skipif(len(jax.devices()) < 2, reason="two devices are needed")
    @seeded
    def test_each_device_has_its_own_barrier_and_shared_memory(self, seed):
        def call(x):
            def body(x, out, shared, buffer):
                pltpu.sync_copy(x.at[0], buffer)
                buffer[...] += me()
                pltpu.sync_copy(buffer, shared.at[me()])
                plsc.subcore_barrier()
                pltpu.sync_copy(shared.at[SUBCORES - 1 - me()], buffer)
                pltpu.sync_copy(buffer, out.at[0, me()])

            mesh = plsc.VectorSubcoreMesh(
                core_axis_name="core",
                subcore_axis_name="subcore",
                num_cores=1,
                num_subcores=SUBCORES,
            )
            shape = jax.ShapeDtypeStruct((1, SUBCORES, LANES), jnp.int32)
            return pl.kernel(body, out_type=shape, mesh=mesh, scratch_types=_SHARED)(x)

        devices = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
        rows = jax.sharding.PartitionSpec("x")
        sharded = jax.shard_map(call, mesh=devices, in_specs=rows, out_specs=rows, check_vma=False)
        x = np.repeat(np.array([[0], [10]], np.int32), LANES, axis=1)
        found = simulate(sharded, x, seed=seed)
        assert found.findings == ()
        assert found.values[..., 0].tolist() == [[3, 2, 1, 0], [13, 12, 11, 10]]

    @seeded
    def test_one_scalar_subcore_alone(self, seed):
        def body(x, out, slots, semaphore):
            copy = pltpu.async_copy(x, slots, semaphore)
            copy.wait()
            slots[1] = slots[0] + slots[1]
            pltpu.sync_copy(slots, out)

        found = simulate(on_a_scalar_subcore(body), np.arange(3, 11, dtype=np.int32), seed=seed)
        assert found.findings == ()
        assert found.values.tolist() == [3, 7, 5, 6, 7, 8, 9, 10]

    def test_only_vector_subcores_have_barriers(self):
        def body(x, out, slots, semaphore):
            plsc.subcore_barrier()

        with pytest.raises(SimulationError, match="only vector subcores can wait"):
            simulate(on_a_scalar_subcore(body), VALUES)


def on_a_scalar_subcore(body: Callable[..., None]) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        mesh = plsc.ScalarSubcoreMesh(axis_name="core", num_cores=1)
        scratch = [pltpu.SMEM(x.shape, x.dtype), DMA]
        return pl.kernel(body, out_type=like(x), mesh=mesh, scratch_types=scratch)(x)

    return call
