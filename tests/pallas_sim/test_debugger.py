"""Stops at lines, and watched references."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pallas_sim import Simulation, simulate
from pallas_sim.errors import OptionError

X = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
ANY = pl.BlockSpec(memory_space=pl.ANY)


def sum_kernel(x_ref, o_ref, acc_ref):
    @pl.when(pl.program_id(0) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    doubled = x_ref[...] * 2
    acc_ref[...] += doubled
    o_ref[...] = acc_ref[...]


def summed(x):
    return pl.pallas_call(
        sum_kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
    )(x)


def loop_kernel(x_ref, o_ref):
    def scope(total_ref):
        total_ref[...] = jnp.zeros_like(total_ref)

        def step(i, carry):
            total_ref[...] += x_ref[pl.ds(i, 1)]
            return carry

        lax.fori_loop(0, 3, step, 0)
        o_ref[...] = total_ref[...]

    pl.run_scoped(scope, pltpu.VMEM((1, 128), jnp.float32))


def looped(x):
    return pl.pallas_call(loop_kernel, out_shape=jax.ShapeDtypeStruct((1, 128), x.dtype))(x)


def fetch_kernel(x_ref, o_ref, buffer, semaphore):
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(8, 8)], buffer, semaphore)
    copy.start()
    copy.wait()
    o_ref[...] = buffer[...]


def fetched(x):
    return pl.pallas_call(
        fetch_kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
        in_specs=[ANY],
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
    )(x)


def sharded(x):
    if len(jax.devices()) < 2:
        pytest.skip("2 devices are needed")
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    return jax.shard_map(fetched, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)


def line(text: str, function: Any) -> str:
    """The place of the line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)
    (number,) = (n for n, each in enumerate(lines, first) if text in each)
    return f"test_debugger.py:{number}"


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the debugger sees at each stop."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: found.append(sys._getframe(1).f_locals))
    return found


def kinds(found: Simulation) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(each.ref, each.kind, each.program) for each in found.watched]


def test_a_stop_in_each_program(stops):
    simulate(summed, X, stop_at=line("+= doubled", sum_kernel))
    # get, add and swap in each of two programs.
    assert [stop["program"] for stop in stops] == [(0,)] * 3 + [(1,)] * 3
    first, last = stops[0], stops[-1]
    assert first["place"].endswith(": get in program (0) of sum_kernel on device 0")
    assert set(first["refs"]) == {"x_ref", "o_ref", "acc_ref"}
    np.testing.assert_array_equal(last["values"]["doubled"], X[8:] * 2)
    np.testing.assert_array_equal(last["operands"][1], (X[:8] + X[8:]) * 2)
    assert first["thread"].kernels == []  # the run is over by now


def test_memory_can_be_changed_at_a_stop(monkeypatch):
    def hook() -> None:
        sys._getframe(1).f_locals["refs"]["acc_ref"][...] = 7

    monkeypatch.setattr(sys, "breakpointhook", hook)
    found = simulate(summed, X, stop_at=line("o_ref[...] = acc_ref[...]", sum_kernel))
    # The stop before the store comes after the load.
    np.testing.assert_array_equal(found.values, np.full((8, 128), 7))


def test_a_stop_in_a_loop(stops):
    simulate(looped, X, stop_at=line("+= x_ref", loop_kernel))
    assert {"x_ref", "total_ref", "o_ref"} <= set(stops[0]["refs"])
    assert len(stops) >= 3 * 3


def test_stops_on_each_device(stops):
    simulate(sharded, np.concatenate([X, X]), stop_at=line("copy.wait()", fetch_kernel))
    assert [stop["thread"].owner.device for stop in stops] == [0, 1]
    assert [stop["place"].rpartition(" on ")[2] for stop in stops] == ["device 0", "device 1"]


def test_what_the_debugger_raises_ends_the_run(monkeypatch):
    def hook() -> None:
        raise ZeroDivisionError("left")

    monkeypatch.setattr(sys, "breakpointhook", hook)
    with pytest.raises(ZeroDivisionError, match="left"):
        simulate(looped, X, stop_at=line("+= x_ref", loop_kernel))


def test_changes_of_scratch(capsys):
    found = simulate(summed, X, watch=["acc_ref"])
    assert kinds(found) == [
        ("acc_ref", "new", (0,)),
        ("acc_ref", "store", (0,)),
        ("acc_ref", "store", (0,)),
        ("acc_ref", "store", (1,)),
    ]
    last = found.watched[-1]
    np.testing.assert_array_equal(last.values, (X[:8] + X[8:]) * 2)
    assert last.line.endswith(line("+= doubled", sum_kernel))
    assert (last.index, last.before, last.changed, last.kernel) == ((0, 0), 0, 1024, "sum_kernel")
    assert capsys.readouterr().out == "".join(f"{each}\n" for each in found.watched)
    assert str(last).splitlines()[0] == (
        f"acc_ref[0, 0]: 0.0 -> 2048.0, 1024 of 1024 elements of float32[8, 128] at {last.line} "
        "in program (1) of sum_kernel on device 0"
    )


def test_the_next_block_is_new_memory():
    found = simulate(summed, X, watch="x_ref")
    assert kinds(found) == [("x_ref", "new", (0,)), ("x_ref", "new", (1,))]
    np.testing.assert_array_equal(found.watched[1].values, X[8:])


def test_changes_in_a_loop():
    found = simulate(looped, X, watch=["total_ref"])
    assert [each.kind for each in found.watched] == ["new", *["store"] * 4]
    np.testing.assert_array_equal(found.watched[-1].values, X[:3].sum(0, keepdims=True))
    assert found.watched[2].changed == 127  # the first element of the first row is 0


def test_copies_and_semaphores():
    found = simulate(fetched, X, watch=["buffer", "semaphore"])
    copied = next(each for each in found.watched if each.ref == "buffer" and each.kind == "copy")
    assert copied.line.endswith(line("copy.start()", fetch_kernel))
    np.testing.assert_array_equal(copied.values, X[8:])
    assert "by a copy of device 0" in str(copied)
    counts = [int(each.values) for each in found.watched if each.ref == "semaphore"]
    assert counts == [0, 4096, 0]


def test_changes_on_each_device():
    found = simulate(sharded, np.concatenate([X, X]), watch=["buffer"])
    copies = [each for each in found.watched if each.kind == "copy"]
    assert [(each.owner.device, each.by.device) for each in copies] == [(0, 0), (1, 1)]


def test_without_jit(stops):
    found = simulate(
        summed, X, jit=False, watch="acc_ref", stop_at=line("doubled = x_ref", sum_kernel)
    )
    assert len(stops) == 4
    assert len(found.watched) == 4


def test_nothing_is_kept_without():
    assert simulate(summed, X).watched == ()


@pytest.mark.parametrize("jit", [True, False])
def test_unknown_names(jit):
    with pytest.raises(OptionError, match="there are: acc_ref, o_ref, x_ref"):
        simulate(summed, X, jit=jit, watch=["total_ref"])


@pytest.mark.parametrize("jit", [True, False])
def test_unknown_lines(jit, stops):
    with pytest.raises(OptionError, match=r"lines of test_debugger.py with equations: \d+, \d+"):
        simulate(summed, X, jit=jit, stop_at="test_debugger.py:1")
    with pytest.raises(OptionError, match=r"there are: test_debugger.py:\d+"):
        simulate(summed, X, jit=jit, stop_at="kernel.py:41")
    assert not stops
