"""What is kept of loads, and which one is the first that reads uninitialized memory."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import inspector as loads
from pallas_sim.findings import Owner
from pallas_sim.inspector import LoadRecorder, RecordedLoad, uninitialized_load
from pallas_sim.machine import Machine, Thread
from pallas_sim.simulation import evaluate

OF = {"copied": False, "owner": Owner(), "line": "k.py:3", "program": (1,), "kernel": "body"}


#: Of memory of shape (3, 4, 5) the part ``[2, 0:2, 3:5]``, whose elements have 8 bytes.
PART = {"shape": (3, 4, 5), "offset": 8 * 43, "strides": (40, 8)}


def load(values, ref="x_ref", **changed):
    values = np.asarray(values)
    return RecordedLoad(
        **{**OF, "ref": ref, "shape": (8,), "left": False, "values": values, **changed}
    )


def test_the_first_one_that_differs():
    nan = np.float32([np.nan, 1])
    before = [load(nan), load([[1, 2], [3, 4]], "a", **PART), load([5], "b")]
    after = [load(nan.copy()), load([[1, 2], [7, 4]], "a", **PART), load([6], "b")]
    finding = uninitialized_load(before, after)
    assert finding is not None
    assert (finding.kind, finding.ref, finding.index) == ("uninitialized", "a", (2, 1, 3))
    assert (finding.line, finding.program, finding.shape) == ("k.py:3", (1,), (3, 4, 5))
    assert (
        str(finding)
        == "load from a [3, 4, 5] before it is written in program (1) of body at k.py:3"
    )


@pytest.mark.parametrize("after", [[], [load([1.0])], [load([1.0]), load([2.0])]])
def test_none_of_them(after):
    assert uninitialized_load([load([1.0])], after) is None


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (np.nan, 1.0), (False, True)])
def test_bits_are_compared(old, new):
    finding = uninitialized_load([load(old)], [load(new)])
    assert finding is not None
    assert finding.index == ()


def test_who_read_it():
    there = load([2], copied=True, owner=Owner(device=3))
    finding = uninitialized_load([load([1])], [there])
    assert finding is not None
    assert str(finding).startswith("device 3: copy from x_ref [8] before it is written")


def test_what_is_kept_has_a_limit_and_no_gap(monkeypatch):
    monkeypatch.setattr(loads, "_KEPT_BYTES", 20)
    kept, thread = LoadRecorder(), Thread(Machine())
    for size in (1, 9, 1):
        values = np.zeros(size, np.int64)
        kept._add("x_ref", thread, "", values, values, values)
    assert [each.values.size for each in kept.loads] == [1]


@pytest.mark.parametrize("copies", [False, True])
def test_the_index_is_one_of_the_whole_reference(copies):
    """Of a load from a part of it, and of a copy."""

    def body(x_ref, o_ref, buffer, done):
        buffer[1, 0:4, :] = x_ref[...]
        buffer[1, 6:8, :] = x_ref[0:2]
        if copies:
            pltpu.async_copy(buffer.at[1, pl.ds(2, 4)], o_ref, done).wait()
        else:
            o_ref[...] = buffer.at[1][pl.ds(2, 4)]

    x = np.ones((4, 128), np.float32)
    kernel = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.VMEM((2, 8, 128), x.dtype), pltpu.SemaphoreType.DMA],
    )
    runs = []
    for fill in (1.0, 2.0):
        recorder = LoadRecorder()
        machine = Machine(fill=lambda dtype, purpose, fill=fill: dtype.type(fill))
        machine.inspector = recorder
        evaluate(jax.make_jaxpr(kernel)(x), machine, [x])
        runs.append(recorder.loads)
    finding = uninitialized_load(*runs)
    assert finding is not None
    assert (finding.ref, finding.index, finding.shape) == ("buffer", (1, 4, 0), (2, 8, 128))
