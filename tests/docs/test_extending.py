"""The examples of docs/extending.md."""

import pytest
from _pytest.pytester import LineMatcher
from pallas_test_support.forked_python import run_python

KERNELS = """
import jax
from jax.experimental import pallas as pl
from pytest_pallas import KernelSpec, strategies as pst

def double(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def spec(name, **rest):
    return KernelSpec(name=name, kernel=double, reference=lambda x: x * 2,
                      inputs=pst.arrays("m n", max_dim=8), **rest)

SPECS = [spec("double", family="elementwise", backends=%s)]
"""

OF_A_CHIP = KERNELS.replace("* 2", "* len(jax.devices()[0].device_kind)", 1).replace("* 2", "* 10")
OF_A_CHIP = OF_A_CHIP.replace("kernel=double", 'kernel={"gpu": double}')
OF_A_CHIP = OF_A_CHIP.replace("max_dim=8", 'dims={"m": [1, 4], "n": 8}, values="ramp"') % ("None",)


@pytest.fixture
def page(blocks, pytester):
    """The conftest of one example, beside a module with a spec."""

    def make(number, backends=("interpret", "tpu-interpret")):
        name, block = blocks("docs/extending.md")[number]
        assert name == "conftest.py"
        pytester.makeconftest(block)
        pytester.makepyfile(mykernels=KERNELS % (backends,))
        pytester.syspathinsert()

    return make


def test_a_check(page, pytester):
    page(0)
    result = pytester.runpytest("--pallas-suite=mykernels", "--pallas-checks=flat", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*double-flat[[]interpret]*PASSED*"])


def test_a_backend(page, pytester):
    page(1, backends=("tpu-zeroed",))
    result = pytester.runpytest(
        "--pallas-suite=mykernels", "--pallas-backend=tpu-zeroed", "--pallas-checks=forward", "-v"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*double-forward[[]tpu-zeroed]*PASSED*"])


def test_an_operator(page, pytester):
    page(2, backends=("tpu-sim",))
    result = pytester.runpytest(
        "--pallas-suite=mykernels", "--pallas-backend=tpu-sim", "--pallas-checks=forward",
        "--pallas-mutate=all", "--pallas-mutate-operators=factor", "--pallas-isolate=never",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["score 100.0 %: 1 mutants, 1 killed"])


def test_a_section_a_chip_and_a_value_class(blocks, pytester):
    """In a process of their own: chips and value classes are known for as long as it lives."""
    pytester.makeconftest("\n".join(text for _, text in blocks("docs/extending.md")[3:6]))
    pytester.makepyfile(mykernels=OF_A_CHIP)
    done = run_python(
        *("-m", "pytest", "--pallas-suite=mykernels", "--pallas-backend=gpu-sim:h20", "-v"),
        *("--pallas-checks=forward", "--pallas-results=results.json"),
        cwd=pytester.path,
    )
    assert done.returncode == 0, done.stdout
    LineMatcher(done.stdout.splitlines()).fnmatch_lines(
        ["*double-forward[[]gpu-sim:h20]*PASSED*", "slowest: double forward on gpu-sim:h20"]
    )
    assert " 1 passed" in done.stdout
    assert '"ramp"' in (pytester.path / "results.json").read_text()


def test_a_tolerance(page, pytester):
    page(6)
    pytester.makepyfile(
        """
        import jax.numpy as jnp
        from mykernels import double

        def test_double(pallas_check):
            pallas_check(double, jnp.ones((8, 128)), reference=lambda x: x * 2)
        """
    )
    pytester.runpytest("--pallas-backend=interpret").assert_outcomes(passed=1)


def test_specs_and_records(page, pytester):
    page(7)
    result = pytester.runpytest("--pallas-backend=interpret", "--pallas-checks=forward", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*double-forward[[]interpret]*PASSED*"])
