"""A backend's label, taken apart."""

from __future__ import annotations

import pytest

from pallas_sim.chips import Label, default_target


@pytest.mark.parametrize(
    ("text", "name", "target", "platform", "chip"),
    [
        ("tpu-sim", "tpu-sim", "", "tpu", "v6e"),
        ("tpu-compile:v5e", "tpu-compile", "v5e", "tpu", "v5e"),
        ("gpu", "gpu", "", "gpu", "h100"),
        ("interpret", "interpret", "", "", ""),
    ],
)
def test_what_a_label_says(text: str, name: str, target: str, platform: str, chip: str) -> None:
    label = Label.of(text)
    assert (label.name, label.target, label.platform, label.chip) == (name, target, platform, chip)


def test_any_platform_has_no_default_chip() -> None:
    found = default_target("gpu")
    assert found is not None
    assert found.name == "h100"
    assert default_target("any") is None
