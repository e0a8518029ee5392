import pytest

from pytest_pallas.distribute.shards import scope_of

CHECKS = ("forward", "oracle-strength", "strength")


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("k/a.py::add-forward[tpu-sim]", "k/a.py::add"),
        ("k/a.py::add-forward[tpu-sim-x2]", "k/a.py::add"),
        ("k/a.py::add-oracle-strength[tpu-sim]", "k/a.py::add"),
        ("k/a.py::my-add-forward[tpu-sim]", "k/a.py::my-add"),
        ("test_a.py::test_forward[x]", "test_a.py::test_forward[x]"),
        ("test_a.py::Class::test_b", "test_a.py::Class::test_b"),
    ],
)
def test_checks_of_a_kernel_stay_together(nodeid, scope):
    assert scope_of(nodeid, CHECKS) == scope
