"""``sanitizers.dma``."""

from __future__ import annotations

import re

import pytest

from pytest_pallas.backends import Call
from pytest_pallas.backends.interpreters import tpu_interpret
from pytest_pallas.backends.schedules import Schedule
from pytest_pallas.errors import DmaError
from pytest_pallas.sanitizers.dma import dma

from . import rings


@pytest.mark.parametrize(
    ("kernel", "devices"),
    [(rings.by_dma, 1), (rings.waiting, 1), (rings.ring, 4)],
    ids=["dma", "semaphore", "ring"],
)
def test_a_right_kernel_leaves_nothing(trial, kernel, devices):
    dma(trial(kernel, rings.SHARDS if devices > 1 else rings.BLOCKS, devices=devices))


def test_a_kernel_without_barrier_has_the_one_of_its_launch(trial):
    """Without collective_id, XLA lets all devices begin together."""
    dma(trial(rings.other(rings.ring, barrier="", collective_id=None), rings.SHARDS, devices=4))


@pytest.mark.parametrize("when", ["eager", "on_wait"])
def test_a_dma_that_nobody_waits_for(when):
    call = Call(
        function=rings.other(rings.by_dma, wait=False),
        args=(rings.BLOCKS[:1],),  # with more, there are also races with the DMAs of others
        schedule=Schedule(dma=when),
    )
    outcome = tpu_interpret().run(call)
    assert isinstance(outcome.error, DmaError)
    said = "not every DMA of" if when == "eager" else "was never waited for"
    assert said in str(outcome.error)
    assert re.search(r"rings\.py:\d+:\d+ \(by_dma.*\) in program \(0,\)", str(outcome.error))
    assert "arrived" in str(outcome.error)  # the semaphore's name in the kernel


def test_nobody_asked(capsys):
    call = Call(function=rings.other(rings.by_dma, wait=False), args=(rings.BLOCKS,), dma=False)
    outcome = tpu_interpret().run(call)
    assert outcome.error is None
    assert outcome.problems
    assert not capsys.readouterr().out  # the interpreter would print it


def test_the_sending_side_counts(trial):
    with pytest.raises(DmaError) as raised:
        dma(trial(rings.other(rings.ring, wait_send=False), rings.SHARDS, devices=4))
    said = "device 0, device 1, device 2, device 3: sent is 4096 and not 0 when the kernel ends"
    assert said in str(raised.value)


def test_a_semaphore_that_is_signalled_too_often(trial):
    with pytest.raises(DmaError, match=r"device 0: ready is 3 .*signalled more often"):
        dma(trial(rings.other(rings.waiting, signals=4), rings.BLOCKS))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"barrier": "right"}, "device 0 copies to device 1 at"),
        ({"waits": None}, "nothing says that device 1 has begun the kernel"),
        ({"barrier": ""}, "never asks for its barrier semaphore"),
    ],
    ids=["wrong neighbour", "no wait", "no barrier"],
)
def test_a_device_that_is_reached_before_it_is_there(trial, change, text):
    with pytest.raises(DmaError) as raised:
        dma(trial(rings.other(rings.ring, **change), rings.SHARDS, devices=4))
    assert text in str(raised.value)
