"""JUnit XML has backend, target, seed and errors of every check as properties."""

from __future__ import annotations

from xml.etree import ElementTree


def properties(project, *args):
    """Properties by test, as pairs."""
    project.run(*args, "--junit-xml=junit.xml")
    cases = ElementTree.parse(project.path / "junit.xml").iter("testcase")
    return {
        case.get("name"): [
            (each.get("name"), each.get("value")) for each in case.iterfind("properties/property")
        ]
        for case in cases
    }


RUN = ("--pallas-suite=specs", "--pallas-backend=interpret,tpu-interpret:v5e",
       "--pallas-checks=forward", "--pallas-max-examples=2", "--pallas-seed=5")  # fmt: skip


def test_junit_properties_of_specs(project):
    project.specs('name="good", kernel=add, exact=False', 'name="bad", kernel=add_off')
    found = properties(project, *RUN)
    good, bad = (
        dict(found["good-forward[interpret]"]),
        dict(found["bad-forward[tpu-interpret:v5e]"]),
    )
    assert good["pallas_kernel"] == "good"
    assert good["pallas_check"] == "forward"
    assert good["pallas_backend"] == "interpret"
    assert "pallas_target" not in good
    assert good["pallas_seed"] == "5"
    assert good["pallas_examples"] == "2"
    assert float(good["pallas_multiple"]) <= 2
    assert (bad["pallas_backend"], bad["pallas_target"]) == ("tpu-interpret:v5e", "v5e")
    assert float(bad["pallas_multiple"]) > 1e5
    assert float(bad["pallas_error"]) > 1e5
    assert len(found["good-forward[interpret]"]) == len(good), "each once"


def test_of_tests_of_ones_own(project):
    """Beside the properties of the test itself; none where no kernel is verified."""
    project.write(
        test_own="""
        import numpy as np
        import pytest
        from kernels import *

        def test_mine(pallas_check, request):
            request.node.user_properties.append(("mine", 1))
            x = np.ones((8, 128), np.float32)
            pallas_check(add, x, x, reference=reference)

        def test_other():
            pass
        """
    )
    found = properties(project, "--pallas-backend=tpu-interpret")
    mine = dict(found["test_mine[tpu-interpret]"])
    assert mine["mine"] == "1"
    assert (mine["pallas_kernel"], mine["pallas_target"]) == ("add", "v6e")
    assert found["test_other"] == []
