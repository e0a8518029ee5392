"""``pytest_pallas_tolerance``."""

from __future__ import annotations

import pytest

CONFTEST = """
    from pytest_pallas import Tolerance

    ASKED = []

    def pytest_pallas_tolerance(config, kernel, check, backend, dtypes):
        with open("asked.txt", "a") as file:
            file.write(f"{kernel} {check} {backend.name} {dtypes}\\n")
        if backend.name == "tpu-interpret":
            return Tolerance(atol=1)
"""

TEST = """
    import numpy as np
    import pytest
    from kernels import *
    from pytest_pallas import Tolerance

    X = np.ones((8, 128), np.float32)

    def test_hook(pallas_check):
        pallas_check(add_off, X, X, reference=reference)

    def test_call(pallas_check):
        pallas_check(add_off, X, X, reference=reference, tolerance=Tolerance(atol=0.5))

    @pytest.mark.pallas_tolerance(atol=0.5)
    def test_mark(pallas_check):
        pallas_check(add_off, X, X, reference=reference)
"""


@pytest.mark.parametrize(
    ("backend", "passing"), [("interpret", []), ("tpu-interpret", ["test_hook"])]
)
def test_it_is_asked_where_nothing_else_says(project, backend, passing):
    project.write(conftest=CONFTEST, test_off=TEST)
    records = project.records(f"--pallas-backend={backend}")
    found = [r["test"].partition("::")[2].partition("[")[0] for r in records if not r["message"]]
    assert found == passing
    asked = (project.path / "asked.txt").read_text().splitlines()
    assert asked == [f"add_off forward {backend} ['float32']"]


def test_the_tolerance_of_a_spec_has_precedence_over_the_hook(project):
    project.specs(
        'name="hooked", kernel=add_off',
        'name="own", kernel=add_off, tolerance=__import__("pytest_pallas").Tolerance(atol=0.5)',
    )
    project.write(conftest=CONFTEST)
    records = project.records(
        "--pallas-suite=specs", "--pallas-backend=tpu-interpret", "--pallas-checks=forward",
        "--pallas-max-examples=1",
    )  # fmt: skip
    assert [(r["kernel"], r["outcome"]) for r in records] == [
        ("hooked", "passed"),
        ("own", "failed"),
    ]
