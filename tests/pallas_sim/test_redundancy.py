"""Which synchronisation a call needs: each kind of site, once needed and once not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.sharding import AxisType, PartitionSpec

from pallas_sim import (
    SyncGroup,
    SynchronizationReport,
    redundancy,
    simulate,
    synchronization,
    thresholds,
)
from pallas_sim.errors import OptionError, PallasError

DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
ANY = pl.BlockSpec(memory_space=pl.ANY)
BLOCK = pltpu.VMEM((8, 128), jnp.float32)


def on_ring(body: Callable[..., None], devices: int, *scratch: Any, steps: int = 1) -> Any:
    """Return a call of a kernel on a ring of devices, with its array."""
    mesh = jax.make_mesh(
        (devices,), ("x",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,)
    )
    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((8 * steps, 128), jnp.float32),
        in_specs=[ANY],
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )
    split = PartitionSpec("x")
    function = jax.shard_map(call, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    return function, np.arange(devices * 8 * steps * 128, dtype=np.float32).reshape(-1, 128)


def neighbor(steps: int = 1) -> Any:
    size = jax.lax.axis_size("x")
    return jax.lax.rem(jax.lax.axis_index("x") + steps + size, size)


def tell(semaphore: Any, steps: int) -> None:
    pl.semaphore_signal(semaphore, 1, device_id={"x": neighbor(steps)})
    pl.semaphore_wait(semaphore, 1)


def enter() -> None:
    tell(pltpu.get_barrier_semaphore(), -1)


def shifts(
    devices: int, *, boxes: int = 1, steps: int = 2, handshakes: int = 1, news: bool = False
) -> Any:
    """Blocks go to the right neighbor's mailboxes, each once it is free again."""

    def body(x_ref, o_ref, mailbox, sent, arrived, free, told):
        enter()
        for step in range(steps):
            block = pl.ds(8 * step, 8)
            copy = pltpu.make_async_remote_copy(
                x_ref.at[block],
                mailbox.at[step % boxes],
                sent,
                arrived.at[step],
                device_id={"x": neighbor()},
            )
            copy.start()
            copy.wait_recv()
            o_ref[block] = mailbox[step % boxes]
            copy.wait_send()
            if step % boxes == boxes - 1:
                for number in range(handshakes):
                    tell(free.at[number], -1)
        if news:
            tell(told, 1)

    mailbox = pltpu.VMEM((boxes, 8, 128), jnp.float32)
    semaphores = (DMA, DMA((steps,)), REGULAR((max(handshakes, 1),)), REGULAR)
    return on_ring(body, devices, mailbox, *semaphores, steps=steps)


def judged(call: tuple[Any, ...], **options: Any) -> SynchronizationReport:
    function, *arrays = call
    return synchronization(function, *arrays, **options)


def group(report: SynchronizationReport, what: str, on: str = "") -> SyncGroup:
    """Return the only group with a site of this kind, on this semaphore or barrier."""
    [one] = [
        one
        for one in report.groups
        if any(site.what == what for site in one.sites)
        and (not on or any(name.startswith(on) for name in one.on))
    ]
    return one


def kinds(one: SyncGroup) -> set[str]:
    return {finding.kind for finding in one.findings}


class TestTpu:
    def test_a_handshake_that_frees_a_mailbox(self):
        handshake = group(judged(shifts(4)), "signal", "free")
        assert handshake.status == "needed"
        assert kinds(handshake) == {"race"}
        assert [site.what for site in handshake.sites] == ["signal", "wait"]
        assert handshake.count == 16
        assert handshake.seed is not None or handshake.witness is not None

    def test_a_handshake_that_orders_nothing(self):
        report = judged(shifts(4, news=True))
        told = group(report, "signal", "told")
        assert (told.status, told.findings) == ("redundant", ())
        assert report.together == (told,)
        assert "can be left out together (chosen greedily)" in str(report)

    def test_an_entry_barrier(self):
        barrier = group(judged(shifts(4)), "signal", "the barrier semaphore")
        assert (barrier.status, kinds(barrier)) == ("needed", {"entry"})

    def test_an_entry_barrier_of_a_kernel_that_reaches_nobody(self):
        def body(x_ref, o_ref, semaphore):
            enter()
            pltpu.async_copy(x_ref, o_ref, semaphore).wait()

        report = judged(on_ring(body, 4, DMA))
        assert group(report, "signal").status == "redundant"
        assert group(report, "copy wait").status == "end"

    def test_an_entry_barrier_of_the_compiler(self):
        def call(remote: bool) -> Any:
            def body(x_ref, o_ref, sent, arrived):
                target = {"x": neighbor()} if remote else {"x": jax.lax.axis_index("x")}
                copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, arrived, device_id=target)
                copy.start()
                copy.wait()

            mesh = jax.make_mesh(
                (4,), ("x",), devices=jax.devices()[:4], axis_types=(AxisType.Auto,)
            )
            kernel = pl.pallas_call(
                body,
                out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
                in_specs=[ANY],
                out_specs=ANY,
                scratch_shapes=[DMA, DMA],
            )
            split = PartitionSpec("x")
            function = jax.shard_map(
                kernel, mesh=mesh, in_specs=split, out_specs=split, check_vma=False
            )
            return function, np.zeros((32, 128), np.float32)

        assert group(judged(call(True)), "entry barrier").status == "needed"
        assert group(judged(call(False)), "entry barrier").status == "redundant"

    def test_waits_for_copies(self):
        report = judged(shifts(4))
        arrival, sending = group(report, "copy wait"), group(report, "send wait")
        assert (arrival.status, arrival.seed) == ("needed", 0)
        assert "race" in kinds(arrival)
        assert (sending.status, kinds(sending)) == ("end", {"leftover"})

    def test_one_barrier_after_the_other(self):
        report = judged(shifts(3, handshakes=2))
        both = [one for one in report.groups if any(name.startswith("free") for name in one.on)]
        assert [one.status for one in both] == ["needed"]  # one site: the same line

    def test_two_lines_that_do_the_same(self):
        def body(x_ref, o_ref, mailbox, sent, arrived, free):
            enter()
            for step in range(2):
                copy = pltpu.async_remote_copy(
                    x_ref, mailbox, sent, arrived.at[step], device_id={"x": neighbor()}
                )
                copy.wait()
                o_ref[...] = mailbox[...]
                tell(free.at[0], -1)
                tell(free.at[1], -1)

        report = judged(on_ring(body, 3, BLOCK, DMA, DMA((2,)), REGULAR((2,))))
        assert [one.status for one in report.groups].count("redundant") == 2
        assert len(report.together) == 1

    def test_a_barrier_that_is_met_twice_on_one_semaphore(self):
        def body(x_ref, o_ref, mailbox, sent, arrived):
            enter()
            copy = pltpu.async_remote_copy(
                x_ref, mailbox, sent, arrived, device_id={"x": neighbor()}
            )
            copy.wait()
            o_ref[...] = mailbox[...]
            enter()

        report = judged(on_ring(body, 4, BLOCK, DMA, DMA))
        entry, end = (one for one in report.groups if one.sites[0].what == "signal")
        assert entry.sites[0].line == end.sites[0].line
        assert entry.sites[0].callers != end.sites[0].callers
        assert (entry.status, end.status) == ("needed", "redundant")

    def test_a_count_that_is_looked_at(self):
        def body(x_ref, o_ref, told):
            pl.semaphore_signal(told, 1)
            looks = jax.lax.while_loop(
                lambda _: pl.semaphore_read(told) < 1, lambda looks: looks + 1, 0
            )
            pl.semaphore_wait(told, 1)
            o_ref[...] = jnp.full((8, 128), looks, jnp.float32)

        call = pl.pallas_call(
            body, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32), scratch_shapes=[REGULAR]
        )
        report = synchronization(call, np.zeros((8, 128), np.float32))
        told = group(report, "signal")
        assert told.status == "needed"
        assert "a loop does not end" in told.error

    def test_a_handshake_beside_a_count_that_is_looked_at(self):
        def body(x_ref, o_ref, told, news):
            enter()
            tell(news, 1)
            looks = jax.lax.fori_loop(0, 1, lambda _, n: n + pl.semaphore_read(told) * 0, 0)
            o_ref[...] = jnp.full((8, 128), looks, jnp.float32)

        call = on_ring(body, 3, REGULAR, REGULAR)
        unsearched, searched = judged(call, schedules=0), judged(call, schedules=200)
        assert group(unsearched, "signal", "news").status == "open"
        assert group(unsearched, "signal", "news").reasons == ("orders",)
        assert unsearched.together == ()
        assert group(searched, "signal", "news").status == "redundant"

    @pytest.mark.parametrize(
        "options",
        [{"news": True}, {"boxes": 2, "steps": 3}, {"boxes": 2, "steps": 2}, {"handshakes": 2}],
    )
    def test_a_proof_says_what_a_run_says(self, options, monkeypatch):
        proved = judged(shifts(4, **options), schedules=0)
        monkeypatch.setattr(redundancy._Analysis, "proved_without", lambda *_: None)
        run = judged(shifts(4, **options), schedules=0)
        assert proved.proofs
        assert not run.proofs
        assert [one.status for one in proved.groups] == [one.status for one in run.groups]

    def test_from_how_many_devices_on(self):
        # One block less than devices goes through two mailboxes: up to three use none twice.
        reports = [judged(shifts(n, boxes=2, steps=n - 1), schedules=0) for n in (3, 4, 5, 6)]
        [free] = [
            one
            for one in thresholds(reports)
            if any(name.startswith("free") for name in _names(reports, one.sites))
        ]
        assert free.statuses == ((3, "redundant"), (4, "needed"), (5, "needed"), (6, "needed"))
        assert free.needed_from == 4
        assert str(free).startswith("needed from 4 devices on: ")

    def test_the_run_is_repeated_without_sites(self):
        function, array = shifts(4)
        arrival = group(synchronization(function, array), "copy wait")
        right = simulate(function, array)
        wrong = simulate(function, array, seed=arrival.seed or 0, without=arrival.sites)
        assert not right.findings
        assert "race" in {finding.kind for finding in wrong.findings}
        assert not np.array_equal(right.values, wrong.values, equal_nan=True)

    def test_a_schedule_repeats_what_no_seed_shows(self, monkeypatch):
        monkeypatch.setattr(redundancy, "_SEEDS", 0)
        function, array = shifts(3)
        handshake = group(synchronization(function, array), "signal", "free")
        assert handshake.seed is None
        assert f"(shown by the witness {handshake.witness})" in str(handshake)
        wrong = simulate(function, array, witness=handshake.witness, without=handshake.sites)
        assert not np.array_equal(simulate(function, array).values, wrong.values, equal_nan=True)


def _names(reports: Any, sites: Any) -> set[str]:
    return {
        name
        for report in reports
        for one in report.groups
        if not set(sites).isdisjoint(one.sites)
        for name in one.on
    }


class TestBadInput:
    def test_a_kernel_that_is_wrong_as_it_is(self):
        with pytest.raises(PallasError, match="race on mailbox") as raised:
            judged(shifts(4, handshakes=0))
        assert raised.value.findings

    def test_a_call_that_does_not_synchronise(self):
        report = synchronization(lambda x: x + 1, np.zeros(8, np.float32))
        assert report.groups == ()
        assert "no synchronisation" in str(report)

    def test_fewer_than_no_runs(self):
        with pytest.raises(OptionError, match="schedules is -1"):
            judged(shifts(2), schedules=-1)


class TestSparseCore:
    def call(self, *, shared: bool) -> Any:
        """Each subcore writes a row, and reads that of another one or its own."""

        def body(x_ref, o_ref, rows):
            me = jax.lax.axis_index("s")
            pltpu.sync_copy(x_ref.at[me], rows.at[me])
            plsc.subcore_barrier()
            other = jax.lax.rem(me + 1, 16) if shared else me
            pltpu.sync_copy(rows.at[other], o_ref.at[me])

        def function(x):
            return pl.kernel(
                body,
                out_type=jax.ShapeDtypeStruct((16, 16), jnp.float32),
                mesh=plsc.VectorSubcoreMesh(
                    core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=16
                ),
                scratch_types=[pltpu.VMEM_SHARED((16, 16), jnp.float32)],
                compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
            )(x)

        return function

    @pytest.mark.parametrize(("shared", "status"), [(True, "needed"), (False, "redundant")])
    def test_a_barrier_of_subcores(self, shared, status):
        x = np.arange(256, dtype=np.float32).reshape(16, 16)
        report = synchronization(self.call(shared=shared), x, target="tpu7x", schedules=1)
        assert group(report, "subcore barrier").status == status


X = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
SMEM = plgpu.SMEM((16, 128), jnp.float32)


def on_gpu(body: Callable[..., None], *scratch: Any, **mesh: Any) -> SynchronizationReport:
    def function(x):
        out = jax.ShapeDtypeStruct((32, 128), jnp.float32)
        return plgpu.kernel(body, out_type=out, scratch_types=list(scratch), **mesh)(x)

    return synchronization(function, X, target="h100", schedules=1)


class TestGpu:
    def test_barriers_and_fences_around_copies(self):
        def body(x_gmem, o_gmem, buffer, arrived):
            for step in range(2):
                rows = pl.ds(16 * step, 16)
                plgpu.copy_gmem_to_smem(x_gmem.at[rows], buffer, arrived)
                plgpu.barrier_wait(arrived)
                plgpu.commit_smem()
                buffer[...] = buffer[...] + 1
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(buffer, o_gmem.at[rows])
                plgpu.wait_smem_to_gmem(0)

        report = on_gpu(body, SMEM, plgpu.Barrier())
        assert group(report, "barrier wait").status == "needed"
        assert group(report, "copy wait").status == "needed"
        before, after = (one for one in report.groups if one.sites[0].what == "fence")
        assert (before.status, after.status) == ("redundant", "needed")
        assert report.together == (before,)

    def test_groups_of_copies(self):
        def body(x_gmem, o_gmem, one, other, arrived):
            for buffer, start in ((one, 0), (other, 16)):
                plgpu.copy_gmem_to_smem(x_gmem.at[pl.ds(start, 16)], buffer, arrived)
                plgpu.barrier_wait(arrived)
                rows = o_gmem.at[pl.ds(start, 16)]
                plgpu.copy_smem_to_gmem(buffer, rows, commit_group=False)
                plgpu.commit_smem_to_gmem_group()
            plgpu.commit_smem_to_gmem_group()
            plgpu.wait_smem_to_gmem(0)

        report = on_gpu(body, SMEM, SMEM, plgpu.Barrier())
        each, last = (one for one in report.groups if one.sites[0].what == "commit")
        assert (each.status, last.status) == ("redundant", "redundant")
        assert len(report.together) == 1  # one of the two must commit
        assert group(report, "copy wait").status == "end"

    @pytest.mark.parametrize(("reads", "status"), [(True, "needed"), (False, "redundant")])
    def test_an_arrival_and_its_wait(self, reads, status):
        def body(x_gmem, o_gmem, buffer, filled):
            thread = jax.lax.axis_index("wg")

            @pl.when(thread == 0)
            def _():
                buffer[...] = x_gmem[pl.ds(0, 16)]
                plgpu.barrier_arrive(filled)

            @pl.when(thread == 1)
            def _():
                plgpu.barrier_wait(filled)
                o_gmem[pl.ds(0, 16)] = buffer[...] if reads else x_gmem[pl.ds(0, 16)]
                o_gmem[pl.ds(16, 16)] = x_gmem[pl.ds(16, 16)]

        report = on_gpu(body, SMEM, plgpu.Barrier(), num_threads=2, thread_name="wg")
        filled = group(report, "arrival")
        assert {site.what for site in filled.sites} == {"arrival", "barrier wait"}
        assert filled.status == status

    @pytest.mark.parametrize(("rounds", "status"), [(2, "needed"), (1, "redundant")])
    def test_a_barrier_of_a_cluster(self, rounds, status):
        def body(x_gmem, o_gmem, buffer, arrived, read):
            rank = jax.lax.axis_index("rank")
            for step in range(rounds):
                if step:
                    plgpu.commit_smem()
                    plgpu.barrier_arrive(read)
                    plgpu.barrier_wait(read)
                rows = pl.ds(16 * step, 16)
                plgpu.copy_gmem_to_smem(x_gmem.at[rows], buffer, arrived, collective_axes="rank")
                plgpu.barrier_wait(arrived)
                o_gmem[pl.ds(rank * 16, 16)] = buffer[...] + rank
            if rounds == 1:
                plgpu.barrier_arrive(read)
                plgpu.barrier_wait(read)

        barriers = (plgpu.Barrier(), plgpu.ClusterBarrier(collective_axes=("rank",)))
        report = on_gpu(body, SMEM, *barriers, cluster=(2,), cluster_names=("rank",))
        assert group(report, "arrival").status == status
