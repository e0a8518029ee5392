"""JAX looks for no accelerator where no driver shows one."""

import os
import sys

import pytest
from pallas_test_support.forked_python import run_python

from pallas_sim.platforms import set_platforms

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="device files are Linux's")


@linux_only
def test_without_device_files_only_the_cpu_is_left(tmp_path):
    (tmp_path / "null").touch()
    environ = {}
    set_platforms(environ, devices=tmp_path)
    assert environ == {"JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("name", ["nvidia0", "dxg", "kfd", "accel0", "vfio/0"])
def test_a_device_file_leaves_the_choice_to_jax(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    environ = {}
    set_platforms(environ, devices=tmp_path)
    assert environ == {}


def test_what_the_user_set_stays(tmp_path):
    environ = {"JAX_PLATFORMS": "cuda,cpu"}
    set_platforms(environ, devices=tmp_path)
    assert environ == {"JAX_PLATFORMS": "cuda,cpu"}


_SIMULATES = """
import jax, numpy, pallas_sim
pallas_sim.simulate(lambda x: 2 * x, numpy.ones(3, numpy.float32))
print(jax.config.jax_platforms)
"""


@linux_only
def test_a_script_that_simulates_loads_no_plugin_of_a_chip():
    """The plugins of compilers' extras would log that cuDNN, or a TPU's host, is missing."""
    chosen = {}
    set_platforms(chosen)
    if not chosen:
        pytest.skip("a driver shows a device")
    environ = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = run_python("-c", _SIMULATES, env=environ)
    assert (done.stdout, done.stderr) == ("cpu\n", "")
