"""A wrong spec is an error at collection, with its name and file; the others run."""

from __future__ import annotations

import pytest

QUICK = ("--pallas-suite=package", "--pallas-backend=tpu-sim", "--pallas-checks=forward",
         "--pallas-max-examples=1")  # fmt: skip

#: A wrong spec, and what is said of it.
WRONG = {
    "no reference": (
        'name="bad", kernel=add, reference=None',
        "reference must be a function in jnp",
    ),
    "argument count": (
        'name="bad", kernel=add, inputs=pst.arrays("m n", dims={"m": [8], "n": [128]})',
        "its inputs draw 1 positional arguments and no keywords, but these do not fit the kernel: "
        "add(x: 'Any', y: 'Any') -> 'Any' (",
    ),
    "batch axes": (
        'name="bad", kernel=add, batch_axes=(0,)',
        "batch_axes has 1 entries, but its inputs draw 2 positional arguments; give one for each",
    ),
    "reference's arguments": (
        'name="bad", kernel=add, reference=lambda x: x',
        "but these do not fit the reference: <lambda>(x) (",
    ),
    "unknown keyword": (
        'name="bad", kernel=add, inputs=pst.arguments(INPUTS, tuning={"block": 8})',
        "got an unexpected keyword argument 'block'",
    ),
    "unknown check": (
        'name="bad", kernel=add, checks=("forwards",)',
        "unknown checks ['forwards']; valid: forward, gradient, vmap",
    ),
    "unknown backend": (
        'name="bad", kernel=add, backends=("tpu-interprett",)',
        "unknown backends ['tpu-interprett']; valid: gpu",
    ),
    "unknown target": (
        'name="bad", kernel=add, backends=("tpu-sim:v7x",)',
        "unknown target 'v7x' of backend 'tpu-sim'; its targets: v4, v5e, v5p, v6e, tpu7x",
    ),
    "unknown backend in xfail": (
        'name="bad", kernel=add, xfail={"nope": ExpectedFailure(reason="#1", jax="0.12")}',
        "unknown backends ['nope']; valid: gpu",
    ),
    "strategy that raises": (
        'name="bad", kernel=add, inputs=INPUTS.map(lambda drawn: 1 / 0)',
        "the inputs strategy raised ZeroDivisionError: division by zero",
    ),
    "strategy of no tuple": (
        'name="bad", kernel=add, inputs=INPUTS.map(lambda drawn: 3)',
        "the inputs strategy drew a int; it must draw a tuple",
    ),
    "no strategy": ('name="bad", kernel=add, inputs=3', "inputs must be a hypothesis strategy"),
    "no kernel": ('name="bad", kernel={}', "kernel must map a platform of ['gpu', 'tpu']"),
    "kernel of no platform": (
        'name="bad", kernel={"cpu": add}',
        "kernel must map a platform of ['gpu', 'tpu'] to a function, but its keys are ['cpu']",
    ),
}


@pytest.fixture
def package(project):
    """A package with a right spec in one of its modules."""
    (project.path / "package").mkdir()
    (project.path / "package" / "__init__.py").touch()
    project.specs('name="good", kernel=add', name="package/right")
    return project


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_in_itself(package, kind):
    spec, message = WRONG[kind]
    package.specs(spec, name="package/wrong")
    result = package.run(*QUICK)
    result.assert_outcomes(errors=1, passed=1)
    text = result.stdout.str()
    assert "INTERNALERROR" not in text
    assert message in text
    assert "spec 'bad' in " in text
    assert "wrong.py" in text


def test_beside_right_ones_in_its_file(package):
    package.specs(
        'name="bad", kernel=add, checks=("nope",)', 'name="fine", kernel=add', name="package/mixed"
    )
    package.run(*QUICK).assert_outcomes(errors=1, passed=2)


def test_two_of_one_name(package):
    package.specs('name="twin", kernel=add', 'name="twin", kernel=add', name="package/wrong")
    result = package.run(*QUICK)
    result.assert_outcomes(errors=1, passed=1)
    text = result.stdout.str()
    assert "wrong.py defines two specs with the name 'twin'" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("code", ["1 / 0", "import nothing_of_that_name", "def ("])
def test_a_module_that_fails_to_import(package, code):
    (package.path / "package" / "wrong.py").write_text(code)
    result = package.run(*QUICK)
    result.assert_outcomes(errors=1, passed=1)
    text = result.stdout.str()
    assert "INTERNALERROR" not in text
    assert "package/wrong.py" in text


def test_the_others_run_and_the_reason_is_said(package):
    package.specs('name="bad", kernel=add, checks=("nope",)', name="package/wrong")
    result = package.run(*QUICK)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(errors=1, passed=1)
    assert "unknown checks ['nope']" in result.stdout.str()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("def (", "SyntaxError"),
        ('KernelSpec(name="bad", kernel=add, reference=None, inputs=INPUTS)', "in jnp, not None"),
    ],
)
@pytest.mark.parametrize("args", [(), ("test_alone.py",)])
def test_a_file_that_pytest_collects_as_well_is_reported_once(project, code, message, args):
    project.specs(name="test_alone")
    with (project.path / "test_alone.py").open("a") as file:
        file.write(code)
    result = project.run("--pallas-suite=test_alone", "--pallas-backend=tpu-sim", *args)
    result.assert_outcomes(errors=1)
    text = result.stdout.str()
    assert message in text
    assert text.count("ERROR collecting") == 1
    assert text.count("\nERROR ") == 1


def test_each_wrong_file_is_reported(project):
    for name in ("test_one", "test_two"):
        (project.path / f"{name}.py").write_text("1 / 0")
    result = project.run("--pallas-suite=test_one,test_two", "--pallas-backend=tpu-sim")
    result.assert_outcomes(errors=2)
