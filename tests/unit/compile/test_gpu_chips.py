"""The chips that can be compiled for, and how XLA gets them."""

import re

import pytest

from pallas_sim.chips import GPUS, TARGETS, targets_of
from pytest_pallas.compile.cuda import target_config


def test_every_gpu_target_has_a_description_of_that_device():
    assert list(GPUS) == list(targets_of("gpu"))
    for name in GPUS:
        assert f'device_description_str: "{TARGETS[name].device_kind}"' in target_config(name)


@pytest.mark.parametrize(
    ("target", "capability", "shared"),
    [
        ("a100", "major: 8 ", 166912),
        ("h100", "major: 9 feature_extension: ACCELERATED_FEATURES ", 232448),
        ("h200", "major: 9 feature_extension: ACCELERATED_FEATURES ", 232448),
        ("b200", "major: 10 feature_extension: ACCELERATED_FEATURES ", 232448),
    ],
)
def test_the_proto_says_what_decides_about_kernels(target, capability, shared):
    text = target_config(target)
    assert f"cuda_compute_capability {{ {capability}}}" in text
    assert f"shared_memory_per_block_optin: {shared}\n" in text
    assert text.count("{") == text.count("}") > 0


def test_the_proto_has_no_gaps():
    for target in GPUS:
        assert not re.search(r":\s*\n|None", target_config(target))
