"""What a selection of backends means."""

import pytest

from pytest_pallas.backends import Family, label, parse, select
from pytest_pallas.backends.registry import FAMILIES
from pytest_pallas.errors import BackendUnavailableError, OptionError

KNOWN = {family.name: family for family in FAMILIES}


class Fake:
    kind = "hardware"
    platform = "tpu"
    target = None

    def __init__(self, name, reason):
        self.name, self.reason = name, reason

    def available(self):
        return self.reason

    def run(self, call):
        raise AssertionError


def fake(name, reason=None, kind="hardware"):
    return Family(name=name, make=lambda target: Fake(name, reason), kind=kind)


def labels(selection):
    return [label(backend) for backend in selection.backends]


def test_auto_takes_every_interpreter_where_there_is_no_hardware():
    families = {**KNOWN, "tpu": fake("tpu", "no TPU"), "gpu": fake("gpu", "no GPU")}
    assert labels(select(["auto"], families)) == ["interpret", "tpu-interpret", "gpu-interpret"]


def test_auto_takes_hardware_only_where_there_is_some():
    families = {**KNOWN, "tpu": fake("tpu"), "gpu": fake("gpu", "no GPU")}
    selection = select(["auto"], families)
    assert labels(selection) == ["tpu"]
    assert not selection.named


def test_all_says_what_it_leaves_out():
    families = {**KNOWN, "tpu": fake("tpu", "no TPU"), "gpu": fake("gpu")}
    selection = select(["all"], families)
    assert labels(selection) == ["interpret", "tpu-interpret", "gpu-interpret", "gpu"]
    assert selection.left_out == {"tpu": "no TPU"}


def test_targets():
    assert [label(b) for b in parse("tpu-interpret:v5e", KNOWN)] == ["tpu-interpret:v5e"]
    assert [label(b) for b in parse("gpu-interpret:all", KNOWN)] == [
        f"gpu-interpret:{target}" for target in ("a100", "h100", "h200", "b200")
    ]


def test_repetitions_run_once():
    assert labels(select(["interpret", "interpret"], KNOWN)) == ["interpret"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tpu_interpret", "unknown backend 'tpu_interpret'. Did you mean 'tpu-interpret'?"),
        ("tpu-interpret:h100", "unknown target 'h100' of backend 'tpu-interpret'; its targets: v4"),
        ("interpret:v6e", "its targets: none"),
    ],
)
def test_unknown_names_list_the_valid_ones(word, message):
    with pytest.raises(OptionError) as caught:
        select([word], KNOWN)
    assert message in str(caught.value)


def test_a_named_backend_that_is_not_there_is_an_error():
    families = {**KNOWN, "tpu": fake("tpu", "JAX finds no TPU"), "gpu": fake("gpu", "no")}
    with pytest.raises(BackendUnavailableError) as caught:
        select(["tpu"], families)
    assert "JAX finds no TPU" in str(caught.value)
    assert "Available here: interpret, tpu-interpret, gpu-interpret." in str(caught.value)
