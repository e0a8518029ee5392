"""``suite(...)`` in a test module."""

from __future__ import annotations

import pytest

QUICK = ("--pallas-backend=tpu-sim", "--pallas-checks=forward", "--pallas-max-examples=1")


@pytest.fixture
def package(project):
    """A package of two modules of specs."""
    (project.path / "package").mkdir()
    (project.path / "package" / "__init__.py").touch()
    project.specs('name="one", kernel=add', name="package/first")
    project.specs('name="two", kernel=add', 'name="three", kernel=add', name="package/second")
    return project


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        ("first.SPEC_0", ["one"]),
        ("first.SPEC_0, second.SPEC_1", ["one", "three"]),
        ("'package.second'", ["two", "three"]),
        ("'package'", ["one", "two", "three"]),
        ("'package.first', second.SPEC_0", ["one", "two"]),
        ("", []),
    ],
)
def test_by_module_name_and_by_spec(package, sources, names):
    package.write(
        test_kernels=f"""
        from package import first, second
        from pytest_pallas import suite

        test_kernels = suite({sources})

        def test_own(): pass
        """
    )
    result = package.run(*QUICK, "--collect-only", "-q")
    found = [line for line in result.outlines if line.startswith("test_kernels.py::")]
    ids = [f"test_kernels.py::test_kernels::{name}-forward[tpu-sim]" for name in names]
    assert found == [*ids, "test_kernels.py::test_own"]
    package.run(*QUICK).assert_outcomes(passed=len(names) + 1)


def test_specs_beside_a_module_and_beside_a_package(package):
    (package.path / "package" / "kernel.py").write_text("")
    package.specs('name="four", kernel=add', name="package/kernel_spec")
    package.specs('name="five", kernel=add', name="package_spec")
    package.write(
        test_kernels="""
        from pytest_pallas import suite

        test_one = suite("package.kernel")
        test_all = suite("package")
        """
    )
    result = package.run(*QUICK, "--collect-only", "-q")
    found = [line.split("::")[1:] for line in result.outlines if "::" in line]
    names = [(test, item.partition("-")[0]) for test, item in found]
    assert names == [
        ("test_one", "four"),
        *(("test_all", name) for name in ("one", "four", "two", "three", "five")),
    ]


def test_by_node_id(package):
    package.write(
        test_kernels="""
        from pytest_pallas import suite

        test_kernels = suite("package")
        """
    )
    result = package.run(*QUICK, "test_kernels.py::test_kernels::two-forward[tpu-sim]")
    result.assert_outcomes(passed=1)
    package.run(*QUICK, "test_kernels.py::test_kernels", "-k", "one").assert_outcomes(
        passed=1, deselected=2
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("'nothing_of_that_name'", "nothing_of_that_name"),
        ("'package.broken'", "package.broken"),
    ],
)
def test_a_source_that_is_none(package, source, message):
    package.write(
        **{"package/broken": "1 / 0"},
        test_kernels=f"""
        from package import first
        from pytest_pallas import suite

        test_kernels = suite({source}, first.SPEC_0)

        def test_own(): pass
        """,
    )
    result = package.run(*QUICK, "--continue-on-collection-errors")
    result.assert_outcomes(errors=1, passed=2)
    text = result.stdout.str()
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    assert f"importing '{message}' raised" in text
    assert "test_kernels.py" in text


def test_a_module_is_not_a_source(package):
    package.write(
        test_kernels="""
        from package import first
        from pytest_pallas import suite

        test_kernels = suite(first)
        """
    )
    result = package.run(*QUICK)
    result.assert_outcomes(errors=1)
    assert "suite() takes specs and names of modules, not <module" in result.stdout.str()


def test_two_of_one_name(package):
    package.write(
        test_kernels="""
        from package import first
        from pytest_pallas import suite

        test_kernels = suite("package", first.SPEC_0)
        """
    )
    result = package.run(*QUICK, "--continue-on-collection-errors")
    result.assert_outcomes(errors=1, passed=3)
    assert "test_kernels has two specs with the name 'one'; see " in result.stdout.str()
