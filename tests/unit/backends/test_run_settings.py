"""``RunSettings``: what a check's context and every call of it have in common."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pytest_pallas import Arguments, Call, RunSettings
from pytest_pallas.backends.protocol import Fill
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.context import CheckContext, call

NAMES = [field.name for field in dataclasses.fields(RunSettings)]
OTHERS = RunSettings(
    devices=2, jit=False, timeout=1.5, races=False, dma=False, dump="there", rewriting=abs
)


def context(settings):
    arguments = Arguments((np.ones(3),))
    return CheckContext(
        kernel=abs, reference=abs, arguments=arguments, backend=tpu_sim(), settings=settings
    )


def test_neither_repeats_one():
    for kind in (Call, CheckContext):
        assert not {field.name for field in dataclasses.fields(kind)} & {*NAMES}


def test_a_call_has_those_of_its_context():
    check_context = context(OTHERS)
    assert call(check_context, abs, ()).settings is OTHERS
    assert call(check_context, abs, (), jit=True).settings == dataclasses.replace(OTHERS, jit=True)


def test_the_same_call_under_others():
    made = Call(function=abs, fill=Fill("zero"), settings=OTHERS)
    changed = made.with_settings(devices=4)
    assert changed.settings == dataclasses.replace(OTHERS, devices=4)
    assert changed.fill == Fill("zero")
    assert made.settings.devices == 2
    with pytest.raises(TypeError, match="orders"):
        made.with_settings(orders=1)
