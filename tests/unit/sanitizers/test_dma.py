"""``sanitizers.dma``."""

from __future__ import annotations

import re

import pytest

from pytest_pallas.backends import Call
from pytest_pallas.backends.interpreters import tpu_interpret
from pytest_pallas.backends.schedules import Schedule
from pytest_pallas.errors import DmaError
from pytest_pallas.findings import Owner
from pytest_pallas.sanitizers.dma import dma

from . import rings


@pytest.mark.parametrize(
    ("kernel", "devices"),
    [(rings.by_dma, 1), (rings.waiting, 1), (rings.ring, 4)],
    ids=["dma", "semaphore", "ring"],
)
def test_a_right_kernel_leaves_nothing(on_both, kernel, devices):
    dma(on_both(kernel, rings.SHARDS if devices > 1 else rings.BLOCKS, devices=devices))


def test_a_kernel_without_barrier_has_the_one_of_its_launch(on_both):
    """Without collective_id, XLA lets all devices begin together."""
    dma(on_both(rings.other(rings.ring, barrier="", collective_id=None), rings.SHARDS, devices=4))


@pytest.mark.parametrize("when", ["eager", "on_wait"])
def test_a_dma_that_nobody_waits_for(when):
    call = Call(
        function=rings.other(rings.by_dma, wait=False),
        args=(rings.BLOCKS[:1],),  # with more, there are also races with the DMAs of others
        schedule=Schedule(dma=when),
    )
    outcome = tpu_interpret().run(call)
    assert isinstance(outcome.error, DmaError)
    [finding] = outcome.error.findings
    assert finding.kind == ("leftover" if when == "eager" else "unwaited")
    assert (finding.ref, finding.owners) == ("arrived", (Owner(device=0),))
    assert "has no wait()" in str(outcome.error)
    assert "program (0)" in str(outcome.error)
    assert re.search(r"rings\.py:\d+:\d+ \(by_dma", str(outcome.error))


def test_nobody_asked(capsys):
    call = Call(function=rings.other(rings.by_dma, wait=False), args=(rings.BLOCKS,), dma=False)
    outcome = tpu_interpret().run(call)
    assert outcome.error is None
    assert outcome.findings
    assert not capsys.readouterr().out  # the interpreter would print it


def test_the_sending_side_counts(trial):
    with pytest.raises(DmaError) as raised:
        dma(trial(rings.other(rings.ring, wait_send=False), rings.SHARDS, devices=4))
    devices = "device 0, device 1, device 2, device 3"
    said = f"{devices}: semaphore `sent` is 4096 and not 0 when the kernel ends"
    assert said in str(raised.value)


def test_a_semaphore_that_is_signalled_too_often(trial):
    with pytest.raises(DmaError, match=r"device 0: semaphore `ready` is 3 .*signalled more often"):
        dma(trial(rings.other(rings.waiting, signals=4), rings.BLOCKS))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"barrier": "right"}, r"device \d copies to device \d, which may not have entered"),
        ({"waits": None}, r"write of memory on device \d by a copy of device \d, at \S+rings\.py:"),
        ({"barrier": ""}, "never asks for its barrier semaphore"),
    ],
    ids=["wrong neighbour", "no wait", "no barrier"],
)
def test_a_device_that_is_reached_before_it_is_there(trial, change, text):
    with pytest.raises(DmaError) as raised:
        dma(trial(rings.other(rings.ring, **change), rings.SHARDS, devices=4))
    assert re.search(text, str(raised.value))
    assert raised.value.findings[0].kind == "entry"


@pytest.mark.parametrize(
    ("kernel", "devices", "kind", "ref"),
    [
        (rings.other(rings.by_dma, wait=False), 1, "unwaited", "buffer"),
        (rings.other(rings.ring, wait_send=False), 4, "unwaited", "o_ref"),
        (rings.other(rings.waiting, signals=4), 1, "leftover", "ready"),
        (rings.other(rings.ring, barrier="right"), 4, "entry", "o_ref"),
        (rings.other(rings.ring, waits=None), 4, "entry", "o_ref"),
        (rings.other(rings.ring, barrier=""), 4, "entry", ""),
    ],
    ids=[
        "no wait",
        "no wait of the sender",
        "signals",
        "wrong neighbour",
        "no entry",
        "no barrier",
    ],
)
def test_what_the_simulator_finds(simulated, kernel, devices, kind, ref):
    x = rings.SHARDS if devices > 1 else rings.BLOCKS[:2]
    with pytest.raises(DmaError) as raised:
        dma(simulated(kernel, x, devices=devices))
    findings = raised.value.findings
    assert (kind, ref) in [(finding.kind, finding.ref) for finding in findings]
    if ref:
        assert {finding.kernel for finding in findings if finding.ref == ref} == {"body"}
