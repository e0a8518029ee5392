"""The examples of docs/adding-a-rule.md: a rule for a primitive that JAX does not have."""

import pytest
from pallas_test_support.forked_python import run_python

PAGE = "docs/adding-a-rule.md"


@pytest.fixture
def project(blocks, tmp_path):
    for name, block in blocks(PAGE):
        (tmp_path / name).write_text(block)
    return tmp_path


def python(project, *arguments):
    """A process of its own: a rule is registered for as long as its process lives."""
    return run_python(*arguments, cwd=project)


def test_without_a_rule_jax_evaluates_the_primitive(project):
    done = python(project, "before.py")
    assert done.returncode == 0, done.stderr


def test_with_its_rule_it_is_evaluated_like_any_other(project):
    done = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_cube.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("x * x * x * dtype", "x * x * dtype"), ('eqn.params["scale"]', "1")],
)
def test_its_test_fails_if_the_rule_is_wrong(project, right, wrong):
    rules = project / "rules_of_cube.py"
    text = rules.read_text()
    assert right in text
    rules.write_text(text.replace(right, wrong))
    done = python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_cube.py")
    assert done.returncode == 1, done.stdout


def test_two_rules_for_a_primitive_are_an_error(project):
    code = "import rules_of_cube\nfrom pallas_sim import rule\nrule('cube')(lambda eqn: None)\n"
    done = python(project, "-c", code)
    assert "ValueError: there are two rules for the primitive 'cube'" in done.stderr
