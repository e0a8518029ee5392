"""Simulated devices and meshes."""

import subprocess
import sys

import jax
import pytest

from pallas_sim.errors import DeviceError
from pytest_pallas.backends.devices import make_mesh, only_cpu, simulate


def test_the_users_own_count_wins_over_the_default():
    for environ in (
        {"JAX_NUM_CPU_DEVICES": "3"},
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"},
    ):
        before = dict(environ)
        simulate(8, environ, explicit=False)
        assert environ == before


def test_what_was_asked_for_wins_over_the_environment():
    environ = {"XLA_FLAGS": "--xla_dump_to=/x --xla_force_host_platform_device_count=3"}
    count = len(jax.devices("cpu"))  # JAX has started here, and cannot have another number
    simulate(count, environ, explicit=True)
    assert environ == {"XLA_FLAGS": "--xla_dump_to=/x", "JAX_NUM_CPU_DEVICES": str(count)}


def test_too_late():
    with pytest.raises(DeviceError, match=r"77 CPU devices come too late: JAX has already"):
        simulate(77, environ := {"HOME": "/"}, explicit=True)
    assert environ == {"HOME": "/"}
    simulate(77, {}, explicit=False)


@pytest.mark.parametrize("imported_first", [True, False])
def test_jax_starts_with_the_count(imported_first):
    lines = [
        "import os",
        "from pytest_pallas.backends.devices import simulate",
        "simulate(5, os.environ, explicit=True)",
        "import jax",
        "assert len(jax.devices()) == 5, jax.devices()",
    ]
    if imported_first:
        lines.insert(0, "import jax")
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


@pytest.mark.parametrize("before", [None, "cuda,cpu"])
def test_a_process_that_owns_no_accelerator_keeps_jax_on_the_cpu(before):
    environ = {} if before is None else {"JAX_PLATFORMS": before}
    own = jax.config.jax_platforms
    with only_cpu(environ) as otherwise:
        assert otherwise == (before or "")
        assert environ == {"JAX_PLATFORMS": "cpu"}
        assert jax.config.jax_platforms == "cpu"
    assert environ.get("JAX_PLATFORMS") == before
    assert jax.config.jax_platforms == own


def test_mesh():
    mesh = make_mesh({"x": 2, "y": 2}, "cpu")
    assert mesh.axis_names == ("x", "y")
    assert mesh.devices.shape == (2, 2)


def test_too_few_devices():
    with pytest.raises(DeviceError, match=r"needs 128 devices, .* run with --pallas-devices=128"):
        make_mesh({"x": 128}, "cpu")


@pytest.mark.parametrize("axes", [{}, {"x": 0}, {"x": "2"}])
def test_wrong_axes(axes):
    with pytest.raises(DeviceError, match="a mesh needs axes with positive sizes"):
        make_mesh(axes, "cpu")
