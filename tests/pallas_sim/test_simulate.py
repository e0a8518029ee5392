"""``simulate``: what its caller sees, with the wrong inputs too."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as pltriton
from jax.extend.core import Primitive

from pallas_sim import Limits, simulate
from pallas_sim.errors import MissingRuleError, OptionError, SimulationError, SimulationLimitError

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def kernel(body: Any, x: Any) -> Any:
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_it_needs_neither_pytest_nor_hypothesis():
    code = (
        "import sys, numpy as np; from pallas_sim import simulate; "
        "simulate(lambda x: x + 1, np.ones(3)); "
        "print([name for name in ('pytest', 'hypothesis') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


RULES_OF_GPUS = """
import sys

from pallas_sim import registry, rule, simulate


def rules():
    return sorted(name for name in sys.modules if "rules.mosaic_" in name)


simulate(lambda x: x + 1, 1.0)
assert rules() == [], rules()
%s
"""


@pytest.mark.parametrize(
    "code",
    [
        'assert registry.find_rule("wgmma_ref").threaded and rules()',
        'assert registry.find_rule("atomic_rmw").threaded',
        'assert registry.find_rule("of nobody") is None',
        """
try:
    rule("wgmma_ref")(lambda eqn: None)
except ValueError as error:
    assert str(error) == "there are two rules for the primitive 'wgmma_ref'"
else:
    raise AssertionError("a rule of this package was replaced")
""",
    ],
    ids=["of Mosaic GPU", "of Triton", "of nobody", "of a project"],
)
def test_rules_of_gpus_are_imported_when_a_primitive_needs_one(code):
    command = [sys.executable, "-c", RULES_OF_GPUS % code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_arguments_and_results_are_pytrees():
    def function(pair, scale, *, offset):
        return {"sum": pair[0] + pair[1] * scale, "first": pair[0] + offset}

    found = simulate(function, (X, X), 3, offset=1.0)
    np.testing.assert_array_equal(found.values["sum"], X + X * 3)
    np.testing.assert_array_equal(found.values["first"], X + 1)
    assert found.findings == ()


def test_arguments_are_left_alone():
    def body(x_ref, o_ref):
        x_ref[...] = x_ref[...] * 0
        o_ref[...] = x_ref[...]

    x = X.copy()
    simulate(lambda x: kernel(body, x), x)
    np.testing.assert_array_equal(x, X)


def test_a_primitive_without_a_rule_is_evaluated_by_jax_and_counted():
    thrice = Primitive("thrice")
    thrice.def_impl(lambda x: 3 * x)
    thrice.def_abstract_eval(lambda x: x)
    found = simulate(lambda x: thrice.bind(x + 1), X)
    np.testing.assert_array_equal(found.values, 3 * (X + 1))
    assert found.fallbacks == {"thrice": 1}


def test_a_primitive_that_runs_a_program_and_has_no_rule_is_an_error_with_its_line():
    twice = Primitive("run_twice")
    twice.def_impl(lambda x, jaxpr: x)
    twice.def_abstract_eval(lambda x, jaxpr: x)
    jaxpr = jax.make_jaxpr(lambda x: x + 1)(1.0)

    with pytest.raises(MissingRuleError, match=rf"no rule for .*run_twice.*{__file__}"):
        simulate(lambda x: twice.bind(x, jaxpr=jaxpr), X)


def test_an_unknown_target_is_an_error_with_the_valid_ones():
    with pytest.raises(
        OptionError, match=r"unknown target 'v7'; valid: v4, v5e, .*, a100, h100, h200, b200"
    ):
        simulate(lambda x: x, X, target="v7")


def test_kernels_may_ask_for_the_chip():
    from jax.experimental.pallas import tpu as pltpu

    seen = []

    def function(x):
        seen.append(pltpu.get_tpu_info().chip_version)
        return x

    simulate(function, X, target="v5p")
    simulate(function, X)
    assert [str(getattr(each, "value", each)) for each in seen] == ["v5p", "v6e"]


def of_triton(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    parameters = pltriton.CompilerParams(num_warps=4)
    return pl.pallas_call(body, out_shape=x, compiler_params=parameters)(x)


def of_mosaic(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def that_asks_for_a_gpu(x):
    import jax.experimental.mosaic.gpu as mgpu

    assert mgpu.utils._infer_arch() >= (9, 0)
    return of_mosaic(x)


@pytest.mark.parametrize("kernel", [of_triton, of_mosaic, that_asks_for_a_gpu])
def test_a_kernel_for_gpus_needs_no_target(kernel):
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(simulate(kernel, x).values, 2 * x)
    with pytest.raises(SimulationError, match="v6e"):
        simulate(kernel, x, target="v6e")


def test_what_a_function_raises_for_every_chip():
    def function(x):
        raise ValueError("not so")

    with pytest.raises(ValueError, match="not so"):
        simulate(function, X)


@pytest.mark.parametrize("busy", [True, False])
def test_a_loop_without_end_meets_the_limit_of_steps_with_its_line(busy):
    def body(x_ref, o_ref):
        def step(n):
            return n + 1 if busy else n

        n = lax.while_loop(lambda n: n >= 0, step, 0)
        o_ref[...] = x_ref[...] + n

    with pytest.raises(SimulationLimitError) as caught:
        simulate(lambda x: kernel(body, x), X, limits=Limits(steps=2000))
    assert "stopped after 2,000 equations" in str(caught.value)
    assert f"at {__file__}" in str(caught.value)


def test_an_array_that_does_not_fit_is_refused_before_it_is_made_with_bytes_and_line():
    def function(x):
        return jnp.sum(jnp.broadcast_to(x[0, 0], (1 << 20, 1 << 10)) + x[0, 0])

    with pytest.raises(SimulationLimitError) as caught:
        simulate(function, X, limits=Limits(bytes=1 << 30))
    message = str(caught.value)
    assert "needs 4,294,967,296 bytes, and the simulated memory has 1,073,741,824" in message
    assert f"at {__file__}" in message


def test_large_intermediate_values_are_freed_after_their_last_use():
    def function(x):
        for _ in range(200):
            x = x + 1
        return x

    import tracemalloc

    x = np.zeros(1 << 18, np.float32)
    tracemalloc.start()
    simulate(function, x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * x.nbytes


def test_the_error_of_a_function_is_raised_as_it_is():
    def wrong(x):
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        simulate(wrong, X)


def test_float64_arrays_are_float32_without_x64():
    assert simulate(lambda x: x + 1, X.astype(np.float64)).values.dtype == np.float32
    with jax.enable_x64(True):
        assert simulate(lambda x: x + 1, X.astype(np.float64)).values.dtype == np.float64
