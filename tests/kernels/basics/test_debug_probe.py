"""What the probes print, check, and tell the compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels.basics import debug_probe, timing_probe

X = np.full((17, 129), 3, np.float32)
X[16, 5] = -9


@pytest.fixture(params=[True, pltpu.InterpretParams()], ids=["interpret", "tpu-interpret"])
def interpreted(request: pytest.FixtureRequest) -> Iterator[None]:
    with pltpu.force_tpu_interpret_mode(request.param):
        yield
    pltpu.reset_tpu_interpret_mode_state()


@pytest.mark.usefixtures("interpreted")
class TestInterpreted:
    def test_prints_a_line_for_each_block(self, capfd: pytest.CaptureFixture[str]) -> None:
        out = jax.block_until_ready(debug_probe(X, block_rows=16))
        jax.effects_barrier()
        lines = capfd.readouterr().out.splitlines()
        wanted = ["block 0: largest magnitude 3.0", "block 1: largest magnitude 9.0"]
        assert sorted(lines) == wanted
        np.testing.assert_array_equal(out, X)

    def test_a_failed_check_does_not_stop_it(self) -> None:
        with pl.enable_debug_checks(True):
            np.testing.assert_array_equal(debug_probe(X, limit=1, block_rows=16), X)


def test_the_portable_interpreter_knows_no_delay() -> None:
    interpret: Any = True
    with (
        pltpu.force_tpu_interpret_mode(interpret),
        pytest.raises(NotImplementedError, match="'delay' not found for platform cpu"),
    ):
        timing_probe(X)


def test_checks_are_in_the_code_only_where_they_are_on(pallas_compile: Any) -> None:
    shape = jax.ShapeDtypeStruct((64, 128), "float32")
    bundles = {}
    for on in (False, True):
        with pl.enable_debug_checks(on):
            # A new function each time: what JAX has traced once it does not trace again.
            report = pallas_compile(lambda x: debug_probe(x, limit=5), shape, target="v6e")
        bundles[on] = report.bundles
    assert bundles[True] > bundles[False]


@pytest.mark.parametrize("probe", [debug_probe, timing_probe])
class TestBoth:
    def test_the_cost_is_two_operations_and_two_accesses_an_element(self, probe: Any) -> None:
        jaxpr = str(jax.make_jaxpr(probe)(X))
        pattern = r"CostEstimate\(flops=(\d+), transcendentals=0, bytes_accessed=(\d+)"
        found = re.search(pattern, jaxpr)
        assert found, jaxpr
        assert (int(found[1]), int(found[2])) == (2 * X.size, 2 * X.nbytes)

    def test_misuse(self, probe: Any) -> None:
        for call, words in (
            (lambda: probe(X[0]), "x must have the shape (m, n)"),
            (lambda: probe(X[:0]), "x must not be empty"),
            (lambda: probe(X.astype(np.int32)), "x must be of float32 or bfloat16"),
            (lambda: probe(X, block_rows=0), "block_rows must be a positive integer"),
        ):
            with pytest.raises(ValueError, match=re.escape(words)):
                call()


def test_a_delay_is_positive() -> None:
    with pytest.raises(ValueError, match="nanoseconds must be a positive integer, but it is 0"):
        timing_probe(jnp.asarray(X), nanoseconds=0)
