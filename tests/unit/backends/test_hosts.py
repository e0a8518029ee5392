"""JAX looks for no accelerator where no driver shows one."""

import sys

import pytest

from pytest_pallas.backends.devices import set_platforms

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
