"""Several devices: remote copies, semaphores, barriers, collectives, and their mistakes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import all_gather as bundled
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pallas_sim import Limits, simulate
from pallas_sim.errors import DeadlockError, SimulationError, SimulationLimitError

SEEDS = [0, 1, 2, 3, 4, 5]
ANY = pl.BlockSpec(memory_space=pl.ANY)
BY_ROWS = P("x")
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR


#: The devices do not wait for each other at the entry.
NO_BARRIER = {"collective_id": 0, "allow_collective_id_without_custom_barrier": True}


def mesh(*sizes: int) -> Mesh:
    count = int(np.prod(sizes))
    if len(jax.devices()) < count:
        pytest.skip(f"{count} devices are needed")
    return Mesh(np.array(jax.devices()[:count]).reshape(sizes), ("x", "y")[: len(sizes)])


def sharded(function: Any, *sizes: int, spec: Any = BY_ROWS) -> Any:
    return jax.shard_map(
        function, mesh=mesh(*sizes), in_specs=spec, out_specs=spec, check_vma=False
    )


def kernel(body: Any, *scratch: Any, rows: int = 8, **params: Any) -> Any:
    def function(x):
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((rows, 128), x.dtype),
            in_specs=[ANY],
            out_specs=ANY,
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(**params),
        )(x)

    return function


def rows(devices: int) -> np.ndarray[Any, Any]:
    return np.arange(devices * 8 * 128, dtype=np.float32).reshape(devices * 8, 128)


def kinds(simulation: Any) -> list[str]:
    return [finding.kind for finding in simulation.findings]


def neighbours() -> tuple[Any, Any]:
    me, count = lax.axis_index("x"), lax.axis_size("x")
    return lax.rem(me + count - 1, count), lax.rem(me + 1, count)


def meet(*others: Any) -> None:
    """Wait at the entry for the devices that reach this one, or that it reaches."""
    barrier = pltpu.get_barrier_semaphore()
    for other in others:
        pl.semaphore_signal(barrier, 1, device_id=(other,))
    pl.semaphore_wait(barrier, len(others))


def shift(x_ref: Any, o_ref: Any, sent: Any, received: Any, *, barrier: bool = True) -> None:
    left, right = neighbours()
    if barrier:
        meet(left, right)
    pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=(right,)).wait()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_a_remote_copy(devices, seed):
    x = rows(devices)
    found = simulate(sharded(kernel(shift, DMA, DMA, collective_id=0), devices), x, seed=seed)
    np.testing.assert_array_equal(found.values, np.roll(x, 8, axis=0))
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kernel_without_collective_id_has_a_barrier_at_its_entry(seed):
    body = functools.partial(shift, barrier=False)
    found = simulate(sharded(kernel(body, DMA, DMA), 4), rows(4), seed=seed)
    np.testing.assert_array_equal(found.values, np.roll(rows(4), 8, axis=0))
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("params", [NO_BARRIER, {"skip_device_barrier": True}])
def test_a_missing_barrier_at_the_entry(seed, params):
    body = functools.partial(shift, barrier=False)
    found = simulate(sharded(kernel(body, DMA, DMA, **params), 4), rows(4), seed=seed)
    assert "entry" in kinds(found)
    finding = found.findings[0]
    assert finding.ref == "o_ref"
    assert "has entered the kernel" in finding.message
    (access,) = finding.accesses
    assert access.copy
    assert access.home == (access.owner.device + 1) % 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_with_one_neighbour_only(seed):
    """The left neighbour is waited for, and not the right one, to which it copies."""

    def body(x_ref, o_ref, sent, received):
        left, right = neighbours()
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id=(right,))
        pl.semaphore_wait(barrier, 1)
        del left
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=(right,)).wait()

    found = simulate(sharded(kernel(body, DMA, DMA, collective_id=0), 4), rows(4), seed=seed)
    assert "entry" in kinds(found)


def ring(x_ref: Any, o_ref: Any, sent: Any, received: Any, *, slots: int) -> None:
    """An all-gather: each step passes on what the step before brought."""
    me, count = lax.axis_index("x"), lax.axis_size("x")
    left, right = neighbours()
    meet(left, right)
    pltpu.sync_copy(x_ref, o_ref.at[pl.ds(me * 8, 8)])
    for step in range(count - 1):
        part = o_ref.at[pl.ds(lax.rem(me - step + count, count) * 8, 8)]
        slot = step % slots
        pltpu.async_remote_copy(
            part, part, sent.at[slot], received.at[slot], device_id=(right,)
        ).wait()


def gather(devices: int, slots: int) -> Any:
    body = functools.partial(ring, slots=slots)
    scratch = (DMA((slots,)), DMA((slots,)))
    each = kernel(body, *scratch, rows=devices * 8, collective_id=0)
    return sharded(lambda x: each(x)[None], devices)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_ring_with_a_semaphore_for_each_step(devices, seed):
    found = simulate(gather(devices, devices), rows(devices), seed=seed)
    assert all((part == rows(devices)).all() for part in found.values)
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("devices", [4, 8])
def test_a_semaphore_that_serves_several_steps(devices, seed):
    """A copy of a later step can satisfy the wait of an earlier one."""
    found = simulate(gather(devices, 1), rows(devices), seed=seed)
    races = [finding for finding in found.findings if finding.kind == "race"]
    assert races
    later, earlier = races[0].accesses
    assert {later.kind, earlier.kind} == {"read", "write"}
    assert earlier.copy
    signals = [signal for wait in races[0].waits for signal in wait.signals]
    assert {wait.on for wait in races[0].waits} >= {"received[0]"}
    assert {signal.owner.device for signal in signals} == {earlier.owner.device}
    assert (earlier.step in range(1, devices), earlier.steps) == (True, devices - 1)
    assert {signal.step for signal in signals} >= {earlier.step}
    [shared] = [wait for wait in races[0].waits if wait.on == "received[0]"]
    assert shared.copies == devices - 1
    assert f"`received[0]` on {shared.owner} serves {devices - 1} copies" in str(races[0])
    assert races[0].seed == seed


@pytest.mark.parametrize("seed", SEEDS)
def test_it_makes_no_difference_to_two_devices(seed):
    found = simulate(gather(2, 1), rows(2), seed=seed)
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("devices", "races"), [(2, False), (4, True), (8, True)])
def test_the_bundled_all_gather(devices, races, seed):
    """JAX's own: its receive semaphore serves all steps of a direction."""

    def function(x):
        return bundled.all_gather(x, mesh=mesh(devices), axis_name="x")

    found = simulate(function, rows(devices), seed=seed, target="v5p")
    assert ("race" in kinds(found)) is races


def test_some_orders_give_wrong_answers():
    answers = (simulate(gather(8, 1), rows(8), seed=seed).values for seed in range(1, 40))
    assert any((part != rows(8)).any() for parts in answers for part in parts)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("waits", [True, False])
def test_a_buffer_that_is_written_again_before_it_is_read(seed, waits):
    """With credits, the sender waits until the receiver has read what was sent before."""

    def body(x_ref, o_ref, box, sent, received, free):
        left, right = neighbours()
        meet(left, right)
        for step in range(3):
            if waits and step:
                pl.semaphore_wait(free, 1)
            copy = pltpu.make_async_remote_copy(
                x_ref, box, sent, received.at[step], device_id=(right,)
            )
            copy.start()
            copy.wait()
            pltpu.sync_copy(box, o_ref)
            if waits and step < 2:
                pl.semaphore_signal(free, 1, device_id=(left,))

    scratch = (pltpu.VMEM((8, 128), jnp.float32), DMA, DMA((3,)), REGULAR)
    found = simulate(sharded(kernel(body, *scratch, collective_id=0), 4), rows(4), seed=seed)
    np.testing.assert_array_equal(found.values, np.roll(rows(4), 8, axis=0))
    assert ("race" in kinds(found)) is not waits


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("early", [False, True])
def test_a_slot_that_is_given_back_while_it_is_read(seed, early):
    """Sender and receiver prove that a copy has read its source; the sender's proof counts."""

    def body(x_ref, o_ref, slots, sent, received, free):
        left, right = neighbours()
        meet(left, right)

        def step(source, slot):
            copy = pltpu.make_async_remote_copy(
                source, slots.at[slot], sent, received.at[slot], device_id=(right,)
            )
            copy.start()
            return copy

        step(x_ref, 0).wait()
        copy = step(slots.at[0], 1)
        if early:
            pl.semaphore_signal(free, 1, device_id=(left,))
        copy.wait_send()
        if not early:
            pl.semaphore_signal(free, 1, device_id=(left,))
        copy.wait_recv()
        pl.semaphore_wait(free, 1)
        step(slots.at[1], 0).wait()
        pltpu.sync_copy(slots.at[0], o_ref)

    scratch = (pltpu.VMEM((2, 8, 128), jnp.float32), DMA, DMA((2,)), REGULAR)
    found = simulate(sharded(kernel(body, *scratch, collective_id=0), 4), rows(4), seed=seed)
    assert ("race" in kinds(found)) is early
    if not early:
        np.testing.assert_array_equal(found.values, np.roll(rows(4), 24, axis=0))


def leave_early(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
    """A copy to the next device without a wait there."""
    left, right = neighbours()
    meet(left, right)
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=(right,))
    copy.start()
    copy.wait_send()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_that_leaves_before_its_buffer_is_full(seed):
    """The receiver does not wait, so the copy may arrive when its memory is another's."""

    found = simulate(sharded(kernel(leave_early, DMA, DMA, collective_id=0), 2), rows(2), seed=seed)
    assert {"race", "unwaited"} & set(kinds(found))


def test_the_end_of_a_kernel_is_a_place():
    """What takes an output reads it there; JAX has no line where ``shard_map`` maps a kernel."""

    call = pl.pallas_call(
        leave_early,
        out_shape=jax.ShapeDtypeStruct((8, 128), np.float32),
        in_specs=[ANY],
        out_specs=ANY,
        scratch_shapes=[DMA, DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )
    races = [each for each in simulate(sharded(call, 2), rows(2)).findings if each.kind == "race"]
    assert races
    lines = {access.line for race in races for access in race.accesses if access.kind == "read"}
    assert "the end of the kernel" in lines


@pytest.mark.parametrize("seed", SEEDS)
def test_the_receiver_may_wait_before_the_sender(seed):
    """Both prove that the source was read, and the sender need not know of the receiver's wait."""

    def body(x_ref, o_ref, box, sent, received):
        left, right = neighbours()
        meet(left, right)
        pltpu.sync_copy(x_ref, box)
        copy = pltpu.make_async_remote_copy(box, o_ref, sent, received, device_id=(right,))
        copy.start()
        copy.wait_recv()
        copy.wait_send()
        box[...] = jnp.zeros_like(box)

    scratch = (pltpu.VMEM((8, 128), jnp.float32), DMA, DMA)
    found = simulate(sharded(kernel(body, *scratch, collective_id=0), 3), rows(3), seed=seed)
    np.testing.assert_array_equal(found.values, np.roll(rows(3), 8, axis=0))
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_signal_to_a_device_that_may_have_left(seed):
    def body(x_ref, o_ref, done):
        left, right = neighbours()
        meet(left, right)
        pltpu.sync_copy(x_ref, o_ref)
        pl.semaphore_signal(done, 1, device_id=(right,))

    found = simulate(sharded(kernel(body, REGULAR, collective_id=0), 2), rows(2), seed=seed)
    assert {"leftover", "entry"} & set(kinds(found))


def test_a_barrier_semaphore_that_keeps_a_signal():
    def body(x_ref, o_ref):
        left, right = neighbours()
        meet(left, right)
        pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id=(right,))
        pltpu.sync_copy(x_ref, o_ref)

    found = simulate(sharded(kernel(body, collective_id=0), 2), rows(2))
    assert "leftover" in kinds(found)
    assert "the barrier semaphore of device" in str(found.findings[0])
    assert "a signal of 1 from device 1" in str(found.findings[0])
    assert "taken: 2 by device 0" in str(found.findings[0])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("meets", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_bytes_of_a_send_that_nobody_waits_for(waits, meets, seed):
    """A wait of the receiver, and a barrier, prove the copy done, and leave its bytes."""

    def body(x_ref, o_ref, sent, received):
        other = 1 - lax.axis_index("x")
        meet(other)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=(other,))
        copy.start()
        copy.wait_recv()
        if waits:
            copy.wait_send()
        if meets:
            meet(other)

    found = simulate(sharded(kernel(body, DMA, DMA, collective_id=0), 2), rows(2), seed=seed)
    np.testing.assert_array_equal(found.values, np.roll(rows(2), 8, axis=0))
    if waits:
        assert kinds(found) == []
        return
    assert set(kinds(found)) <= {"leftover", "unwaited"}
    if meets:
        (finding,) = found.findings
        assert finding.message == "sent ends with 4096 bytes that no wait took"
        assert (finding.ref, finding.signals[0].copy, finding.waits) == ("sent", True, ())
        assert f"{test_bytes_of_a_send_that_nobody_waits_for.__code__.co_filename}:" in str(finding)


def test_a_deadlock_says_who_waits_for_what():
    def body(x_ref, o_ref, ready):
        pl.semaphore_wait(ready, 2)
        pltpu.sync_copy(x_ref, o_ref)

    with pytest.raises(DeadlockError, match="every core is blocked") as raised:
        simulate(sharded(kernel(body, REGULAR), 2), rows(2))
    (finding,) = raised.value.findings
    assert [(wait.owner.device, wait.on, wait.needed, wait.had) for wait in finding.waits] == [
        (0, "ready", 2, 0),
        (1, "ready", 2, 0),
    ]


def test_a_barrier_that_one_device_does_not_reach():
    def body(x_ref, o_ref):
        @pl.when(lax.axis_index("x") != 1)
        def _():
            meet(*neighbours())

        pltpu.sync_copy(x_ref, o_ref)

    with pytest.raises(DeadlockError, match="the barrier semaphore of device"):
        simulate(sharded(kernel(body, collective_id=0), 3), rows(3))


def test_a_collective_that_one_device_does_not_reach():
    def function(x):
        there = lax.axis_index("x") == 0
        return lax.cond(there, lambda x: x, lambda x: lax.ppermute(x, "x", [(0, 1), (1, 0)]), x)

    with pytest.raises(DeadlockError, match=r"ppermute.*not reached by device 0"):
        simulate(sharded(function, 2), rows(2))


def test_a_device_that_is_not_there():
    def body(x_ref, o_ref, sent, received):
        right = lax.axis_index("x") + 1
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=(right,)).wait()

    with pytest.raises(SimulationError, match="no device 2 along the axis 'x', which has 2"):
        simulate(sharded(kernel(body, DMA, DMA), 2), rows(2))


def test_a_mesh_that_is_too_large():
    with pytest.raises(SimulationLimitError, match=r"the mesh has 4 devices.*at most 3"):
        simulate(
            sharded(kernel(shift, DMA, DMA, collective_id=0), 4), rows(4), limits=Limits(devices=3)
        )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("space", [pl.ANY, pltpu.VMEM])
def test_a_remote_copy_that_a_later_kernel_waits_for(space, seed):
    anywhere, semaphore = (
        pl.BlockSpec(memory_space=space),
        pl.BlockSpec(memory_space=pltpu.SEMAPHORE),
    )
    array = jax.ShapeDtypeStruct((8, 128), jnp.float32)

    def copy(x_ref, o_ref, sent, received):
        _, right = neighbours()
        return pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=(right,))

    def begin(x_ref, o_ref, sent, received):
        copy(x_ref, o_ref, sent, received).start()

    def end(x_ref, _, sent, received, o_ref):
        copy(x_ref, o_ref, sent, received).wait()

    def function(x):
        o, *semaphores = pl.pallas_call(
            begin,
            out_shape=(array, DMA(()), DMA(())),
            in_specs=[anywhere],
            out_specs=(anywhere, semaphore, semaphore),
            compiler_params=pltpu.CompilerParams(has_side_effects=True),
        )(x)
        return pl.pallas_call(
            end,
            out_shape=array,
            in_specs=[anywhere, anywhere, semaphore, semaphore],
            out_specs=anywhere,
            input_output_aliases={1: 0},
            compiler_params=pltpu.CompilerParams(has_side_effects=True),
        )(x, o, *semaphores)

    found = simulate(sharded(function, 4), rows(4), seed=seed)
    np.testing.assert_array_equal(found.values, np.roll(rows(4), 8, axis=0))
    assert kinds(found) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_devices_of_two_axes(seed):
    def body(x_ref, o_ref, sent, received):
        other = 1 - lax.axis_index("y")
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id={"y": other}).wait()

    spec = P(("x", "y"))
    found = simulate(sharded(kernel(body, DMA, DMA), 2, 2, spec=spec), rows(4), seed=seed)
    parts = rows(4).reshape(2, 2, 8, 128)[:, ::-1].reshape(32, 128)
    np.testing.assert_array_equal(found.values, parts)
    assert kinds(found) == []


def test_kernels_one_after_the_other_share_a_barrier_semaphore():
    each = kernel(shift, DMA, DMA, collective_id=0)
    found = simulate(sharded(lambda x: each(each(x)), 4), rows(4), seed=3)
    np.testing.assert_array_equal(found.values, np.roll(rows(4), 16, axis=0))
    assert kinds(found) == []


def gather_by_steps(devices: int, *, heard: tuple[int, ...]) -> Any:
    """Before each step all devices meet: each signals those that are so far ahead of it."""

    def body(x_ref: Any, o_ref: Any, box: Any, sent: Any, arrived: Any, met: Any) -> None:
        me = lax.axis_index("x")
        pltpu.sync_copy(x_ref, o_ref.at[pl.ds(me * 8, 8)])
        for step in range(1, devices):
            for ahead in heard:
                pl.semaphore_signal(met, 1, device_id=(lax.rem(me + ahead, devices),))
            pl.semaphore_wait(met, len(heard))
            there = (lax.rem(me + step, devices),)
            pltpu.async_remote_copy(x_ref, box, sent, arrived, device_id=there).wait()
            row = lax.rem(me + devices - step, devices) * 8
            pltpu.sync_copy(box, o_ref.at[pl.ds(row, 8)])

    scratch = [pltpu.VMEM((8, 128), jnp.float32), DMA, DMA, REGULAR]
    return sharded(kernel(body, *scratch, rows=8 * devices), devices)


@pytest.mark.parametrize("seed", SEEDS[:3])
@pytest.mark.parametrize("devices", [3, 5, 8])
def test_all_meet_again_and_again_on_one_semaphore(devices, seed):
    # A wait may take two signals of one device and none of another one. But the second signal of a
    # device comes only after its wait, and the first wait that ends has the signals of all.
    found = simulate(gather_by_steps(devices, heard=(*range(devices),)), rows(devices), seed=seed)
    assert not found.findings
    assert (found.values.reshape(devices, -1) == rows(devices).reshape(-1)).all()


@pytest.mark.parametrize("seed", SEEDS[:3])
@pytest.mark.parametrize("devices", [3, 5, 8])
def test_all_meet_and_nobody_hears_from_the_left_neighbour(devices, seed):
    found = simulate(
        gather_by_steps(devices, heard=(0, *range(2, devices))), rows(devices), seed=seed
    )
    assert found.findings


def shift_twice(devices: int, *, right_first: bool) -> Any:
    """Two calls of a kernel that meets its neighbours once; both use one barrier semaphore."""

    def body(x_ref: Any, o_ref: Any, sent: Any, received: Any) -> None:
        left, right = neighbours()
        meet(*((right, left) if right_first else (left, right)))
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=(right,)).wait()

    once = kernel(body, DMA, DMA, collective_id=0)
    return sharded(lambda x: once(once(x)), devices)


@pytest.mark.parametrize("seed", SEEDS[:3])
@pytest.mark.parametrize("right_first", [False, True])
@pytest.mark.parametrize(("devices", "missing"), [(4, False), (6, True)])
def test_neighbours_meet_once_in_each_of_two_calls(devices, missing, right_first, seed):
    # A device may take the signals of both calls of one neighbour. With four devices that one heard
    # of the other neighbour before its second call. With six it need not.
    found = simulate(shift_twice(devices, right_first=right_first), rows(devices), seed=seed)
    assert bool(found.findings) == missing
    assert set(kinds(found)) <= {"entry"}
    assert (found.values == np.roll(rows(devices), 16, axis=0)).all()


COLLECTIVES = {
    "psum": lambda x: lax.psum(x, "x"),
    "pmax": lambda x: lax.pmax(x, "x"),
    "pmin": lambda x: lax.pmin(x, "x"),
    "pmean": lambda x: lax.pmean(x, "x"),
    "ppermute": lambda x: lax.ppermute(x, "x", [(0, 1), (1, 2)]),
    "all_gather": lambda x: lax.all_gather(x, "x").sum(0),
    "all_gather_tiled": lambda x: lax.all_gather(x, "x", axis=1, tiled=True)[:, ::4],
    "psum_scatter": lambda x: lax.psum_scatter(x, "x", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "x", 0, 1, tiled=True),
    "pshuffle": lambda x: lax.pshuffle(x, "x", [2, 0, 3, 1]),
    "groups": lambda x: lax.psum(x, "x", axis_index_groups=[[0, 2], [1, 3]]),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_of_lax_as_jax_has_them(name):
    function = sharded(COLLECTIVES[name], 4)
    x = rows(4)
    np.testing.assert_array_equal(simulate(function, x).values, jax.jit(function)(x))


def test_collectives_along_two_axes():
    def function(x):
        return lax.psum(x, ("x", "y")) + lax.psum(x, "y") * 2 + lax.axis_index(("x", "y"))

    both = sharded(function, 2, 2, spec=P(("x", "y")))
    np.testing.assert_array_equal(simulate(both, rows(4)).values, jax.jit(both)(rows(4)))


# What ends a run says what was found until then.


def two_phases(x: Any, count: Any) -> Any:
    """Send twice on one semaphore; what comes first says how much comes after it.

    Bytes of a fast neighbour's second phase can answer the wait of the first.
    """
    devices = 3

    def body(x_ref, count_ref, o_ref, box, sent, arrived):
        me = lax.axis_index("x")
        meet(*range(devices))
        first = (count_ref, box, sent.at[0], arrived)
        pltpu.async_remote_copy(*first, device_id=(lax.rem(me + 1, devices),)).wait()
        others = jnp.where(box[0, 0] == 1, devices - 1, devices)
        for distance in range(1, devices):
            second = (x_ref, o_ref.at[me], sent.at[1], arrived)
            to = lax.rem(me + distance, devices)
            pltpu.async_remote_copy(*second, device_id=(to,)).wait_send()

        def receive(_, carry):
            pltpu.make_async_copy(x_ref, o_ref.at[0], arrived).wait()
            return carry

        lax.fori_loop(0, others, receive, 0)
        pltpu.sync_copy(x_ref, o_ref.at[me])

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((devices, *x.shape), x.dtype),
        in_specs=[ANY, ANY],
        out_specs=ANY,
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), DMA((2,)), DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(x, count)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_deadlock_says_first_which_race_caused_it(seed):
    function = sharded(two_phases, 3)
    x = np.ones((24, 128), np.float32)
    try:
        text = str(simulate(function, x, x, seed=seed).findings[0])
    except DeadlockError as error:
        text = str(error)
        *before, deadlock = error.findings
        assert {finding.kind for finding in before} == {"race"}
        assert deadlock.kind == "deadlock"
        assert "deadlock: every core is blocked" in text
    assert text.startswith("race on box")


def spin(semaphore: Any) -> None:
    """Signal again and again."""

    def again(_, carry):
        pl.semaphore_signal(semaphore, 1)
        return carry

    lax.fori_loop(0, 10_000, again, 0)


ENDS = {
    "steps": (lambda: spin(pltpu.get_barrier_semaphore()), "stopped"),
    "no device": (lambda: pl.semaphore_signal(pltpu.get_barrier_semaphore(), device_id=7), "7"),
    "callback": (lambda: jax.debug.callback(lambda: [][0]), "index"),
}


@pytest.mark.parametrize("end", ENDS)
def test_another_error_keeps_what_was_found(end):
    act, message = ENDS[end]

    def body(x_ref, o_ref, done):
        copy = pltpu.make_async_copy(x_ref, o_ref, done)
        copy.start()
        pltpu.sync_copy(x_ref, o_ref)
        act()
        copy.wait()

    function = sharded(kernel(body, DMA, **NO_BARRIER), 2)
    with pytest.raises(Exception, match=message) as raised:
        simulate(function, rows(2), limits=Limits(steps=5_000))
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "race on o_ref" in text


# An operand that several devices have: each has memory of its own for it.


def through(x: Any, box: Any, *, aliased: bool = False) -> Any:
    """Copy ``x`` into a mailbox, and from there into the output."""

    def body(x_ref, box_ref, o_ref, *shared):
        box_ref = shared[0] if aliased else box_ref
        pltpu.sync_copy(x_ref, box_ref)
        pltpu.sync_copy(box_ref, o_ref)

    outputs, aliases = ((x, box), {1: 1}) if aliased else (x, {})
    call = pl.pallas_call(
        body,
        out_shape=outputs,
        in_specs=[ANY, ANY],
        out_specs=jax.tree.map(lambda _: ANY, outputs),
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
        input_output_aliases=aliases,
    )
    return call(x, box)[0] if aliased else call(x, box)


CONSTANT = np.zeros((8, 128), np.float32)


def of_both_devices(x: Any, box: Any, function: Any = through) -> Any:
    """Give each device its rows of ``x`` and all of ``box``."""
    specs = (BY_ROWS, P())
    function = jax.shard_map(
        function, mesh=mesh(2), in_specs=specs, out_specs=BY_ROWS, check_vma=False
    )
    return function(x, box)


def exchanged(x: Any) -> Any:
    """Use as mailboxes a value, and what the other device has received of it."""
    box = jnp.zeros_like(x) + x
    theirs = lax.ppermute(box, "x", [(0, 1), (1, 0)])
    return (through(x, theirs) + through(x, box)) / 2


MAILBOXES = {
    "empty": lambda x: of_both_devices(x, pl.empty((8, 128), x.dtype)),
    "zeros": lambda x: of_both_devices(x, jnp.zeros((8, 128), x.dtype)),
    "captured": lambda x: of_both_devices(x, x, lambda x, _: through(x, CONSTANT)),
    "array of JAX": lambda x: of_both_devices(x, x, lambda x, _: through(x, jnp.zeros((8, 128)))),
    "jit": lambda x: of_both_devices(x, pl.empty((8, 128), x.dtype), jax.jit(through)),
    "aliased": lambda x: of_both_devices(
        x, pl.empty((8, 128), x.dtype), functools.partial(through, aliased=True)
    ),
    "in a loop": lambda x: of_both_devices(
        x,
        pl.empty((8, 128), x.dtype),
        lambda x, box: lax.fori_loop(0, 2, lambda _, value: through(value, box), x),
    ),
    "received": lambda x: sharded(exchanged, 2)(x),
}


@pytest.mark.parametrize("mailbox", MAILBOXES)
@pytest.mark.parametrize("seed", [0, 1])
def test_each_device_has_its_own_copy_of_an_operand(mailbox, seed):
    x = rows(2)
    simulation = simulate(MAILBOXES[mailbox], x, seed=seed)
    assert (simulation.values == x).all()
    assert "race" not in kinds(simulation)
    assert not CONSTANT.any()


@pytest.mark.parametrize("spec", [P(), P("x")])
def test_a_reference_is_memory_of_each_device(spec):
    def function(x):
        box = jax.new_ref(jnp.zeros((8, 128) if spec == P() else x.shape))

        def on_device(x, box_ref):
            def body(x_ref, o_ref):
                pltpu.sync_copy(x_ref, box_ref)
                pltpu.sync_copy(box_ref, o_ref)

            core = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
            return pl.kernel(body, out_type=x, mesh=core)(x)

        specs = {"in_specs": (BY_ROWS, spec), "out_specs": BY_ROWS, "check_vma": False}
        out = jax.shard_map(on_device, mesh=mesh(2), **specs)(x, box)
        return out, box[...]

    x = rows(2)
    simulation = simulate(function, x)
    assert kinds(simulation) == []
    np.testing.assert_array_equal(simulation.values[0], x)
    if spec != P():
        np.testing.assert_array_equal(simulation.values[1], x)


def test_an_operand_that_is_alike_along_one_axis_only():
    def function(x, box):
        specs = (P("x"), P("y"))
        return jax.shard_map(
            through, mesh=mesh(2, 2), in_specs=specs, out_specs=P("x"), check_vma=False
        )(x, box)

    simulation = simulate(function, rows(2), np.zeros((16, 128), np.float32))
    assert "race" not in kinds(simulation)


@pytest.mark.parametrize("again", [False, True])
def test_a_mailbox_that_others_write(again):
    """A later kernel sees what came; two copies into it are in a race that nothing orders."""

    def send(x, box):
        def body(x_ref, box_ref, o_ref, sent, received):
            other = 1 - lax.axis_index("x")
            meet(other)
            copies = [
                pltpu.make_async_remote_copy(
                    x_ref, box_ref, sent.at[i], received.at[i], device_id=(other,)
                )
                for i in range(1 + again)
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
            o_ref[...] = jnp.zeros_like(o_ref)

        return pl.pallas_call(
            body,
            out_shape=x,
            in_specs=[ANY, ANY],
            scratch_shapes=[DMA((2,)), DMA((2,))],
            compiler_params=pltpu.CompilerParams(collective_id=0, has_side_effects=True),
        )(x, box)

    def receive(box, zero):
        def body(box_ref, zero_ref, o_ref):
            del zero_ref
            pltpu.sync_copy(box_ref, o_ref)

        return pl.pallas_call(body, out_shape=zero, in_specs=[ANY, ANY], out_specs=ANY)(box, zero)

    def function(x, box):
        return receive(box, send(x, box))

    x = rows(2)
    simulation = simulate(lambda x: of_both_devices(x, CONSTANT, function), x)
    assert ("race" in kinds(simulation)) == again
    assert (simulation.values == np.roll(x, 8, axis=0)).all()
