"""Timelines of runs, in the format of trace viewers."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pallas_sim import Machine, simulate
from pallas_sim.errors import DeadlockError, OptionError
from pallas_sim.timeline import Timeline

X = np.ones((16, 128), np.float32)
ANY = pl.BlockSpec(memory_space=pl.ANY)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR


def double_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def double(x):
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(
        double_kernel, out_shape=shape, grid=(2,), in_specs=[block], out_specs=block
    )(x)


def fetch_kernel(x_ref, o_ref, buffers, semaphores):
    copies = [
        pltpu.make_async_copy(x_ref.at[pl.ds(8 * i, 8)], buffers.at[i], semaphores.at[i])
        for i in range(2)
    ]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.wait()
    o_ref[...] = buffers[0] + buffers[1]


def stuck_kernel(x_ref, o_ref, buffers, semaphores):
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffers.at[0], semaphores.at[0])
    copy.start()
    copy.wait()
    copy.wait()
    o_ref[...] = buffers[0]


def with_copies(body: Any) -> Any:
    return lambda x: pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
        in_specs=[ANY],
        scratch_shapes=[pltpu.VMEM((2, 8, 128), jnp.float32), DMA((2,))],
    )(x)


def send_kernel(x_ref, o_ref, sent, arrived, ready):
    me = jax.lax.axis_index("x")
    other = 1 - me
    pl.semaphore_signal(ready, 1, device_id={"x": other})
    pl.semaphore_wait(ready, 1)
    pltpu.make_async_remote_copy(x_ref, o_ref, sent, arrived, device_id={"x": other}).start()
    pltpu.make_async_copy(o_ref, o_ref, arrived).wait()
    pltpu.make_async_copy(x_ref, x_ref, sent).wait()


def swapped(x):
    if len(jax.devices()) < 2:
        pytest.skip("2 devices are needed")

    def exchange(part):
        return pl.pallas_call(
            send_kernel,
            out_shape=jax.ShapeDtypeStruct(part.shape, part.dtype),
            in_specs=[ANY],
            out_specs=ANY,
            scratch_shapes=[DMA, DMA, REGULAR],
        )(part)

    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    return jax.shard_map(exchange, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)


def traced(tmp_path: Any, function: Any, x: Any = X, **options: Any) -> dict[str, Any]:
    path = tmp_path / "run.json"
    simulate(function, x, trace=path, **options)
    return check(json.loads(path.read_text()))


def check(document: dict[str, Any]) -> dict[str, Any]:
    """A document, if it is one that viewers can show."""
    tracks: dict[Any, list[Any]] = defaultdict(list)
    arrows: dict[Any, list[Any]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "ts"} <= event.keys(), event
        assert event["ph"] in "MBEisf", event
        tracks[event["pid"], event["tid"]].append(event)
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
    for events in tracks.values():
        times = [event["ts"] for event in events]
        assert times == sorted(times), events
        assert "thread_name" in {event["name"] for event in events}
        opened: list[str] = []
        for event in events:
            if event["ph"] == "B":
                opened.append(event["name"])
            elif event["ph"] == "E":
                assert opened.pop() == event["name"]
            elif event["ph"] in "isf":
                assert opened, f"nothing goes on at {event}"
        assert not opened
    for pair in arrows.values():
        assert [event["ph"] for event in pair] == ["s", "f"]
    return document


def named(document: dict[str, Any], phase: str, name: str) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if (e["ph"], e["name"]) == (phase, name)]


def tracks(document: dict[str, Any]) -> list[tuple[int, str]]:
    return [(e["pid"], e["args"]["name"]) for e in named(document, "M", "thread_name")]


def test_programs_are_inside_of_their_kernel(tmp_path):
    document = traced(tmp_path, double)
    (kernel,) = named(document, "B", "double_kernel")
    programs = [named(document, "B", f"program ({i}) of double_kernel")[0] for i in range(2)]
    assert [p["args"]["blocks"]["x_ref"] for p in programs] == [[0, 0], [8, 0]]
    ends = [named(document, "E", f"program ({i}) of double_kernel")[0] for i in range(2)]
    # get, mul and swap of each body, and what index maps evaluate between them.
    assert [e["ts"] - p["ts"] for p, e in zip(programs, ends, strict=True)] == [3, 3]
    assert kernel["ts"] <= programs[0]["ts"] < ends[0]["ts"] <= programs[1]["ts"]
    assert tracks(document) == [(0, "core")]
    assert document["otherData"]["time"] == "1 us is 1 equation evaluated by the whole machine"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_copies_and_their_waits(tmp_path, seed):
    document = traced(tmp_path, with_copies(fetch_kernel), seed=seed)
    copies = named(document, "B", "x_ref -> buffers")
    assert [copy["args"]["bytes"] for copy in copies] == [4096, 4096]
    assert tracks(document) == [(0, "core"), (0, "copies 0"), (0, "copies 1")]
    for what in ("read", "written"):
        assert sum(e["args"]["bytes"] for e in named(document, "i", what)) == 2 * 4096
    waits = [named(document, "B", f"wait semaphores[{i}]")[0] for i in range(2)]
    assert [wait["args"]["needed"] for wait in waits] == [4096, 4096]
    if seed == 0:  # nothing is done before a wait for it
        assert [wait["args"]["had"] for wait in waits] == [0, 0]
    # From each start to its copy, and from each of its chunks to the wait.
    ids = {e["id"] for e in document["traceEvents"] if e["ph"] == "s" and e["tid"] >= 10_000}
    taken = [e for e in document["traceEvents"] if e["ph"] == "f" and e["id"] in ids]
    assert len(taken) >= 2
    assert all(e["tid"] == 0 for e in taken)


def test_two_devices(tmp_path):
    document = traced(tmp_path, swapped)
    assert [e["args"]["name"] for e in named(document, "M", "process_name")] == [
        "device 0",
        "device 1",
    ]
    signals = named(document, "B", "signal ready")
    assert {e["pid"] for e in signals} == {0, 1}
    assert {e["args"]["to device"] for e in named(document, "B", "x_ref -> o_ref")} == {0, 1}
    # An arrow from the signal of each device to the wait of the other.
    ends = {e["id"]: e["pid"] for e in document["traceEvents"] if e["ph"] == "f"}
    begins = {e["id"]: e["pid"] for e in document["traceEvents"] if e["ph"] == "s"}
    crossing = [(begins[each], ends[each]) for each in begins if begins[each] != ends[each]]
    assert sorted(set(crossing)) == [(0, 1), (1, 0)]


def test_a_blocked_wait_spans_what_the_others_do(tmp_path):
    """The device that waits first waits for the other's signal."""
    document = traced(tmp_path, swapped)
    begins = {e["pid"]: e["ts"] for e in named(document, "B", "wait ready")}
    ends = {e["pid"]: e["ts"] for e in named(document, "E", "wait ready")}
    first, second = sorted(begins, key=begins.__getitem__)
    assert begins[first] < begins[second] < ends[first]


def test_a_run_that_never_ends_is_written(tmp_path):
    path = tmp_path / "run.json"
    with pytest.raises(DeadlockError):
        simulate(with_copies(stuck_kernel), X, trace=path)
    document = check(json.loads(path.read_text()))
    waits = named(document, "E", "wait semaphores[0]")
    assert [e.get("args") for e in waits] == [None, {"unfinished": True}]


def test_eager_runs_have_a_timeline(tmp_path):
    document = traced(tmp_path, double, jit=False)
    assert len(named(document, "B", "program (1) of double_kernel")) == 1


def test_equations_are_counted_as_without():
    plain, timed = Machine(), Machine(timeline=Timeline())
    simulate(with_copies(fetch_kernel), X, machine=plain)
    simulate(with_copies(fetch_kernel), X, machine=timed)
    assert plain.steps == timed.steps
    assert plain.timeline is None
    assert timed.timeline is not None
    assert timed.timeline.copies


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OptionError, match="cannot write there"):
        simulate(double, X, trace=tmp_path / "none" / "run.json")


def early_kernel(x_ref, o_ref, buffers, semaphores):
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(0, 8)], buffers.at[0], semaphores.at[0])
    copy.start()
    o_ref[...] = buffers[0]
    copy.wait()


def test_a_race_is_marked_at_both_accesses(tmp_path):
    document = traced(tmp_path, with_copies(early_kernel))
    read, write = (named(document, "i", f"race: {kind} of buffers") for kind in ("read", "write"))
    assert len(read) == len(write) == 1
    assert "not ordered with" in read[0]["args"]
    assert read[0]["tid"] < 10_000 <= write[0]["tid"]
    [begin], [end] = named(document, "s", "race"), named(document, "f", "race")
    assert {(e["tid"], e["ts"]) for e in (begin, end)} == {
        (e["tid"], e["ts"]) for e in (*read, *write)
    }
    assert begin["ts"] <= end["ts"]
    document = traced(tmp_path, with_copies(fetch_kernel))
    assert not [e for e in document["traceEvents"] if e.get("cat") == "race"]
