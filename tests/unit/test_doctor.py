"""``--pallas-doctor``: facts, trials and text; and the record of what was tested."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from pytest_pallas.backends.protocol import Outcome
from pytest_pallas.backends.registry import FAMILIES
from pytest_pallas.doctor import (
    EXTRAS,
    FAILED,
    MISSING,
    OK,
    Installation,
    Package,
    Trial,
    installation_of,
    lines,
    tried,
)
from pytest_pallas.tested import TESTED, VersionRange

ROOT = Path(__file__).parents[2]


class Fake:
    """A backend with a given result."""

    name, platform, kind, target = "fake", "tpu", "interpreting", None

    def __init__(self, answer=None, missing=None):
        self.answer, self.missing = answer, missing

    def available(self):
        return self.missing

    def run(self, call):
        if isinstance(self.answer, Exception):
            raise self.answer
        return Outcome(**self.answer)


def test_a_simulator_works():
    [family] = [family for family in FAMILIES if family.name == "tpu-sim"]
    trial = tried(family.make(None))
    assert (trial.backend, trial.status, trial.text) == ("tpu-sim", OK, "x + 1 is right")
    assert trial.seconds > 0


@pytest.mark.parametrize(
    ("backend", "status", "words"),
    [
        (Fake(missing="pip install it"), MISSING, "pip install it"),
        (Fake(RuntimeError("no driver")), FAILED, "RuntimeError: no driver"),
        (Fake({"error": ValueError("bad")}), FAILED, "ValueError: bad"),
        (Fake({"values": np.zeros((8, 128), np.float32)}), FAILED, "x + 1 of a float32"),
    ],
)
def test_what_becomes_of_a_backend(backend, status, words):
    trial = tried(backend)
    assert trial.status == status
    assert trial.text.startswith(words)


def test_the_report_can_be_pasted():
    found = Installation(
        python=Package("python", "3.13.0", "3.12 to 3.14"),
        system="Linux",
        packages=(Package("jax", "9.9", "0.11.2 to 0.12.0.1", newer=True), Package("libtpu", "")),
        plugins=("pytest-xdist 3.8.0",),
        extras={"report": Package("jinja2", "3.1"), "golden": Package("safetensors", "")},
        environment={"JAX_PLATFORMS": "cpu"},
    )
    done = (
        Trial("tpu-sim", OK, "x + 1 is right", 0.5),
        Trial("tpu", MISSING, "pip install 'pytest-pallas[tpu]'"),
        Trial("gpu", FAILED, "RuntimeError: no driver\nof this kind", 1.25),
    )
    text = "\n".join(lines(found, ("8 x cpu (cpu)",), done))
    for wanted in (
        "  python             3.13.0 (tested: 3.12 to 3.14)\n",
        "  jax                9.9 (newer than what was tested: 0.11.2 to 0.12.0.1)\n",
        "  libtpu             not installed\n",
        "  environment        JAX_PLATFORMS=cpu\n",
        "  tpu-sim            ok        0.50 s  x + 1 is right\n",
        "  tpu                missing           pip install 'pytest-pallas[tpu]'\n",
        "  gpu                FAILED    1.25 s  RuntimeError: no driver\n",
        "                                       of this kind\n",
        "  golden             missing; pip install 'pytest-pallas[golden]'\n",
    ):
        assert wanted in text
    assert text.endswith("backends: 1 work, 1 missing, 1 failed: gpu")


def test_only_variables_that_matter_are_told():
    environ = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "-x", "SECRET_TOKEN": "s", "HOME": "/root"}
    found = installation_of([("b", "2"), ("a", "1"), ("b", "2")], environ)
    assert found.environment == {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "-x"}
    assert found.plugins == ("a 1", "b 2")
    assert {package.name: package.version for package in found.packages}["jax"]


def test_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]
    of_backends = {"tpu", "tpu-compile", "gpu", "gpu-compile"}
    assert set(declared) == {*EXTRAS, *of_backends}
    for extra, package in EXTRAS.items():
        assert declared[extra][0].startswith(package)


@pytest.mark.parametrize(
    ("version", "newer"),
    [
        ("0.12.0.1", False),
        ("0.12.0", False),
        ("0.11.9", False),
        ("0.12.0.2", True),
        ("0.12.1", True),
        ("0.13.0.dev20261101", True),
        ("1.0", True),
    ],
)
def test_what_is_newer(version, newer):
    assert VersionRange("0.11.2", "0.12.0.1").newer(version) == newer
    assert not VersionRange("6.131", "6.170").newer("6.170.99")
    assert VersionRange("6.131", "6.170").newer("6.171.0")


def test_the_installed_versions_are_none_that_nobody_tested():
    from importlib import metadata

    for name in ("jax", "pytest", "hypothesis"):
        assert not TESTED[name].newer(metadata.version(name)), f"run the tests, then raise {name}"
