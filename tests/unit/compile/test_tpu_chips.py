"""Topologies are as small as they can be; the names were tried with libtpu 0.0.51."""

import pytest

from pytest_pallas import DeviceError
from pytest_pallas.compile.libtpu import topology


@pytest.mark.parametrize(
    ("target", "devices", "name"),
    [
        ("v4", 1, "v4:2x2x1"),
        ("v4", 8, "v4:2x2x1"),
        ("v4", 9, "v4:2x2x2"),
        ("v5e", 1, "v5e:2x2"),
        ("v5e", 3, "v5e:2x2"),
        ("v5e", 8, "v5e:2x4"),
        ("v5p", 4, "v5p:2x2x1"),
        ("v5p", 8, "v5p:2x2x2"),
        ("v6e", 4, "v6e:2x2"),
        ("tpu7x", 8, "tpu7x:2x2x1"),
    ],
)
def test_the_smallest_that_has_enough_devices(target, devices, name):
    assert topology(target, devices) == name


def test_a_mesh_that_is_too_large_is_refused():
    with pytest.raises(DeviceError, match="65 devices is larger than every v6e topology"):
        topology("v6e", 65)
