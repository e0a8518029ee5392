"""``--pallas-suite``."""

from __future__ import annotations

import pytest

QUICK = ("--pallas-backend=tpu-sim", "--pallas-checks=forward", "--pallas-max-examples=1")


def test_module(project):
    project.specs('name="add", kernel=add')
    project.run("--pallas-suite=specs", *QUICK).assert_outcomes(passed=1)


def test_package_with_all_below_it(project):
    (project.path / "package" / "inner").mkdir(parents=True)
    for folder in ("package", "package/inner"):
        (project.path / folder / "__init__.py").touch()
    project.specs('name="one", kernel=add', name="package/first")
    project.specs('name="two", kernel=add', name="package/inner/second")
    result = project.run("--pallas-suite=package", *QUICK, "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "package/first.py::one-forward[[]tpu-sim[]] PASSED*",
            "package/inner/second.py::two-forward[[]tpu-sim[]] PASSED*",
        ]
    )
    result = project.run("--pallas-suite=package.inner", *QUICK)
    result.assert_outcomes(passed=1)


def test_several(project):
    project.specs('name="one", kernel=add', name="first")
    project.specs('name="two", kernel=add', name="second")
    project.run("--pallas-suite=first,second", *QUICK).assert_outcomes(passed=2)


def test_specs_that_a_module_imports_are_not_its_own(project):
    project.specs('name="one", kernel=add', name="first")
    project.specs('name="two", kernel=add', name="second")
    with (project.path / "second.py").open("a") as file:
        file.write("\nfrom first import SPEC_0 as OTHER")
    project.run("--pallas-suite=first,second", *QUICK).assert_outcomes(passed=2)


def test_no_such_module(project):
    result = project.run("--pallas-suite=nothing_of_that_name")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "Traceback" not in text
    assert "--pallas-suite: no module named 'nothing_of_that_name'" in text


def test_package_that_fails_to_import(project):
    (project.path / "package").mkdir()
    (project.path / "package" / "__init__.py").write_text("1 / 0")
    project.specs('name="one", kernel=add', name="package/first")
    result = project.run("--pallas-suite=package.first")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert "Traceback" not in text
    assert "importing 'package.first' raised ZeroDivisionError" in text


def test_without_arguments_it_replaces_testpaths(project):
    project.ini(testpaths="tests")
    (project.path / "tests").mkdir()
    (project.path / "tests" / "test_a.py").write_text("def test_a(): pass")
    project.specs('name="add", kernel=add')
    result = project.run("--pallas-suite=specs", *QUICK, "-v")
    result.assert_outcomes(passed=1)
    assert "add-forward" in result.stdout.str()


def test_together_with_test_files(project):
    project.write(test_a="def test_a(): pass", test_b="def test_b(): pass")
    project.specs('name="add", kernel=add')
    result = project.run("--pallas-suite=specs", *QUICK, "-v", "test_a.py")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["test_a.py::test_a PASSED*", "specs.py::add-forward* PASSED*"])


def test_a_suite_of_nothing(project):
    result = project.run("--pallas-suite=kernels", *QUICK)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--pallas-suite=kernels: no KernelSpec is defined in" in result.stderr.str()


def test_a_suite_of_specs_that_nothing_is_asked_of(project):
    """That there are specs is not denied."""
    project.specs('name="add", kernel=add')
    result = project.run("--pallas-suite=specs", "--pallas-checks=none")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no KernelSpec is defined" not in result.stderr.str()
