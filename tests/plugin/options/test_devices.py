"""``--pallas-devices``: settled before JAX starts, so each test has a process of its own."""

from __future__ import annotations

import pytest

COUNT = """
    def test_jax_starts_with_the_number_of_devices(pallas_devices, pallas_backend):
        import jax

        assert len(pallas_devices) == {count}
        assert pallas_devices == jax.devices("cpu")
"""


@pytest.fixture
def clean(project, monkeypatch):
    """A project in an environment that says nothing of devices."""
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    project.ini(pallas_backend="interpret")
    return project


@pytest.mark.parametrize(
    ("args", "fresh", "count", "passed"),
    [
        ((), True, 8, 1),
        (("--pallas-devices=3", "-n1"), False, 3, 1),
        # To know whether hardware is there, JAX is started: not before the count is settled.
        (("--pallas-backend=auto,interpret",), False, 8, 2),
    ],
)
def test_jax_starts_with_the_number_of_devices(clean, args, fresh, count, passed):
    clean.write(test_count=COUNT.format(count=count))
    clean.spawn(*args, fresh=fresh).assert_outcomes(passed=passed)


@pytest.mark.parametrize(("args", "count"), [((), 2), (("--pallas-devices=3",), 3)])
def test_the_environment_gives_way_only_to_the_option(clean, monkeypatch, args, count):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    clean.write(test_count=COUNT.format(count=count))
    clean.spawn(*args).assert_outcomes(passed=1)


def test_devices_after_the_start_of_jax_are_a_usage_error(clean):
    clean.write(conftest="import jax\njax.devices()\n", test_count=COUNT.format(count=3))
    result = clean.spawn("--pallas-devices=3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "Traceback" not in text
    assert "3 CPU devices come too late: JAX has already started with 1 CPU devices" in text
    assert "move that call into a fixture" in text


def test_a_conftest_may_import_jax(clean):
    clean.write(conftest="import jax\n", test_count=COUNT.format(count=3))
    clean.spawn("--pallas-devices=3", fresh=True).assert_outcomes(passed=1)
