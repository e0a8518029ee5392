"""``pytest_report_header``: one or two lines, and true."""

from __future__ import annotations

from importlib import metadata

import pytest


def header(result):
    return [line for line in result.outlines if line.startswith("pallas: ")]


def test_the_header_has_versions_backends_and_seed(project):
    project.write(test_a="def test_a(): pass")
    (line,) = header(project.run())
    assert f"jax {metadata.version('jax')}" in line
    assert "backends auto" in line
    assert "simulated devices" in line
    assert "seed 0" in line
    assert "hypothesis profile default" in line


def test_what_was_asked_for(project):
    project.write(test_a="def test_a(): pass")
    first, second = header(
        project.run("--pallas-seed=7", "--pallas-backend=interpret,tpu-interpret:v5e")
    )
    assert "backends interpret, tpu-interpret:v5e" in first
    assert "seed 7" in first
    assert second == "pallas: runs on interpret, tpu-interpret:v5e (as TPU v5 lite)"


def test_the_header_has_the_devices_of_the_environment(project, monkeypatch):
    """The count is the one that JAX starts with, also where the environment has set it."""
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    project.write(
        test_a="""
        def test_a():
            import jax

            assert len(jax.devices()) == 3
        """
    )
    result = project.spawn()
    result.assert_outcomes(passed=1)
    assert "3 simulated devices" in header(result)[0]


@pytest.mark.parametrize("profile", ["quick", "default"])
def test_the_header_has_the_hypothesis_profile(project, profile):
    project.write(
        conftest="""
        from hypothesis import settings

        settings.register_profile("quick", max_examples=3)
        """,
        test_a="def test_a(): pass",
    )
    result = project.spawn(f"--hypothesis-profile={profile}")
    assert f"hypothesis profile {profile}" in header(result)[0]


def test_quiet_has_no_header(project):
    project.write(test_a="def test_a(): pass")
    assert header(project.run("-q")) == []
