"""``--pallas-doctor``."""

from __future__ import annotations

import re

import pytest

from pytest_pallas.report import terminal
from pytest_pallas.tested import VersionRange


def test_no_test_runs_and_every_backend_is_tried(project):
    project.write(
        test_a="def test_a(): assert False",
        conftest="""
        from pytest_pallas import Family

        class Broken:
            name, platform, kind, target = "broken", "tpu", "interpreting", None

            def available(self):
                raise RuntimeError("its driver is broken")

        def pytest_pallas_backends(config):
            return [Family(name="broken", make=lambda target: Broken(), kind="interpreting")]
        """,
    )
    result = project.spawn("--pallas-doctor")
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.OK, text
    for name in ("tpu-sim", "gpu-sim", "interpret", "tpu-interpret", "gpu-interpret"):
        assert re.search(rf"^  {name} +ok +[\d.]+ s  x \+ 1 is right$", text, re.MULTILINE), name
    assert re.search(r"^  broken +FAILED +[\d.]+ s  RuntimeError: its driver", text, re.MULTILINE)
    for name in ("tpu", "gpu", "tpu-compile", "gpu-compile"):
        assert re.search(rf"^  {name} +(ok|missing) ", text, re.MULTILINE), name
    assert re.search(r"^  jax +\d", text, re.MULTILINE)
    assert "failed: broken" in text
    assert "test_a" not in text


def test_the_header_says_where_jax_is_newer_than_what_was_tested(project, monkeypatch):
    project.write(test_a="def test_a(): pass")
    words = "pallas: this JAX is newer than 0.1, the newest that was tested"
    assert words not in project.run().outlines
    monkeypatch.setattr(terminal, "TESTED", {"jax": VersionRange("0.1", "0.1")})
    assert words in project.run().outlines
