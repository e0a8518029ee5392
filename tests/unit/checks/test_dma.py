"""``sanitizers.dma``."""

from __future__ import annotations

import pytest

from pytest_pallas import DmaError
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.schedule import dma

from . import rings


@pytest.mark.parametrize(
    ("kernel", "devices"),
    [(rings.by_dma, 1), (rings.waiting, 1), (rings.ring, 4)],
    ids=["dma", "semaphore", "ring"],
)
def test_a_right_kernel_leaves_nothing(context, kernel, devices):
    dma(context(kernel, rings.SHARDS if devices > 1 else rings.BLOCKS, devices=devices))


def test_a_kernel_without_barrier_has_the_one_of_its_launch(context):
    """Without collective_id, XLA lets all devices begin together."""
    dma(context(rings.other(rings.ring, barrier="", collective_id=None), rings.SHARDS, devices=4))


def test_leftover_semaphores_are_no_error_without_the_sanitizer():
    call = Call(
        function=rings.other(rings.waiting, signals=4),
        args=(rings.BLOCKS,),
        settings=RunSettings(dma=False),
    )
    outcome = tpu_sim().run(call)
    assert outcome.error is None
    assert outcome.findings


@pytest.mark.parametrize(
    ("kernel", "devices", "kind", "ref"),
    [
        (rings.other(rings.by_dma, wait=False), 1, "unwaited", "buffer"),
        (rings.other(rings.ring, wait_send=False), 4, "unwaited", "o_ref"),
        (rings.other(rings.waiting, signals=4), 1, "leftover", "ready"),
        (rings.other(rings.ring, barrier="right"), 4, "entry", "o_ref"),
        (rings.other(rings.ring, waits=None), 4, "entry", "o_ref"),
        (rings.other(rings.ring, barrier="", collective_id=None, skips=True), 4, "entry", "o_ref"),
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
def test_what_is_found(context, kernel, devices, kind, ref):
    x = rings.SHARDS if devices > 1 else rings.BLOCKS[:2]
    with pytest.raises(DmaError) as raised:
        dma(context(kernel, x, devices=devices))
    findings = raised.value.findings
    assert (kind, ref) in [(finding.kind, finding.ref) for finding in findings]
    assert {finding.kernel for finding in findings if finding.ref == ref} == {"body"}
