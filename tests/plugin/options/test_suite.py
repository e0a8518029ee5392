"""``--pallas-suite``."""

from __future__ import annotations

import pytest

QUICK = ("--pallas-backend=tpu-sim", "--pallas-checks=forward", "--pallas-max-examples=1")


def test_a_module_is_a_suite(project):
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


class TestSpecsBesideAKernel:
    """Specs in ``<module>_spec.py``."""

    @pytest.fixture
    def beside(self, project):
        """A package of a kernel with a spec beside it, and of another spec."""
        (project.path / "package").mkdir()
        (project.path / "package" / "__init__.py").touch()
        (project.path / "package" / "kernel.py").write_text("")
        project.specs('name="one", kernel=add', name="package/kernel_spec")
        project.specs('name="two", kernel=add', name="package/other")
        return project

    def test_the_kernels_module_stands_for_them(self, beside):
        result = beside.run("--pallas-suite=package.kernel", *QUICK, "-v")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["package/kernel_spec.py::one-forward[[]tpu-sim[]] PASSED*"])

    def test_their_own_module_too(self, beside):
        beside.run("--pallas-suite=package.kernel_spec", *QUICK).assert_outcomes(passed=1)

    def test_they_are_collected_once(self, beside):
        beside.run("--pallas-suite=package", *QUICK).assert_outcomes(passed=2)
        both = "--pallas-suite=package.kernel,package.kernel_spec"
        beside.run(both, *QUICK).assert_outcomes(passed=1)

    def test_specs_in_both_are_found(self, beside):
        beside.specs('name="three", kernel=add', name="package/kernel")
        result = beside.run("--pallas-suite=package.kernel", *QUICK, "-v")
        result.assert_outcomes(passed=2)
        result.stdout.fnmatch_lines(["package/kernel.py::three-*", "package/kernel_spec.py::one-*"])

    def test_beside_a_package(self, beside):
        beside.specs('name="three", kernel=add', name="package_spec")
        beside.run("--pallas-suite=package", *QUICK).assert_outcomes(passed=3)

    def test_the_kernels_file_as_an_argument(self, beside):
        result = beside.run("--pallas-suite=package", *QUICK, "package/kernel.py")
        result.assert_outcomes(passed=1)

    def test_node_ids_name_the_file_of_the_spec(self, beside):
        node = "package/kernel_spec.py::one-forward[tpu-sim]"
        beside.run("--pallas-suite=package.kernel", *QUICK, node).assert_outcomes(passed=1)

    def test_neither_has_a_spec(self, beside):
        (beside.path / "package" / "kernel_spec.py").write_text("")
        result = beside.run("--pallas-suite=package.kernel", *QUICK)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "no KernelSpec is defined in" in result.stderr.str()
        assert "or of matmul_spec beside it" in result.stderr.str()


def test_several_modules_make_one_run(project):
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


@pytest.mark.parametrize("paths", [{"testpaths": "tests"}, {}])
def test_an_ini_value_comes_in_addition_to_tests(project, paths):
    project.ini(pallas_suite="specs", **paths)
    (project.path / "tests").mkdir()
    (project.path / "tests" / "test_a.py").write_text("def test_a(): pass")
    project.specs('name="add", kernel=add')
    project.run(*QUICK).assert_outcomes(passed=2)
    project.run(*QUICK, "--pallas-suite=specs").assert_outcomes(passed=1)


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
