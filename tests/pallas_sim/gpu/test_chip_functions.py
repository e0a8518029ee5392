"""Functions of float32 in kernels of GPUs: what an H200 gave lies within the simulator's bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chip_record
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_sim import Limits, simulate
from pallas_sim.functions import hashed_errors

Array = np.ndarray[Any, Any]

#: A part of the 73,472 operands of an H200 (JAX 0.11.2, driver 580): those with the largest errors,
#: and others. ``ROUTE.NAME`` is float32; other routes have the same bits.
with np.load(Path(__file__).with_name("h200_functions.npz")) as file:
    RECORD: dict[str, Array] = dict(file)

X = RECORD.pop("x")


def name_of(entry: str) -> str:
    """The call of ``scripts/chip_record.py``."""
    route, _, function = entry.partition(".")
    return f"{route}.float32.{function}"


@pytest.mark.parametrize("entry", sorted(RECORD))
def test_the_bounds_hold_and_are_tight(entry: str) -> None:
    assert chip_record.outside(name_of(entry), X, RECORD[entry]) == 0
    assert chip_record.outside(name_of(entry), X, RECORD[entry], part=0.5) > 0


def test_a_result_outside_of_the_bounds_is_counted() -> None:
    chip = RECORD["mosaic.exp"].copy()
    chip[np.flatnonzero(np.isfinite(chip) & (chip > 1))[:3]] *= np.float32(1 + 2.0**-20)
    assert chip_record.outside("mosaic.float32.exp", X, chip) == 3


def test_the_record_is_whole() -> None:
    """Twelve functions of Mosaic GPU, eight approximate ones, and two that only Triton has."""
    routes = [name.partition(".")[0] for name in RECORD]
    assert [routes.count(route) for route in ("mosaic", "mosaic_approx", "triton")] == [12, 8, 2]
    assert Path(__file__).with_name("h200_functions.npz").stat().st_size < 200_000


@pytest.mark.parametrize("route", ["mosaic", "mosaic_approx", "triton"])
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "tanh", "sin", "logistic", "rsqrt"])
def test_kernels_stay_within_the_bounds(name: str, route: str) -> None:
    """Each route by its own kernel, on both sides of the exact value."""
    kernel = chip_record.elementwise(
        chip_record._FUNCTIONS[name], mosaic=route != "triton", approx=route == "mosaic_approx"
    )
    x = X[:1024]
    values = np.asarray(simulate(kernel, x, target="h200").values)
    assert chip_record.outside(f"{route}.float32.{name}", x, values) == 0
    exact = np.asarray(simulate(kernel, x, target="h200", arithmetic="float32").values)
    assert (values < exact).any()
    assert (values > exact).any()


def test_errors_depend_on_operand_and_seed_only() -> None:
    """A chip gives the same bits again; another seed stands for another error within the bound."""
    kernel = chip_record.elementwise(jnp.exp, mosaic=True)
    x = np.linspace(-5, 5, 1024, dtype=np.float32)
    first, again, reverse, other = (
        np.asarray(simulate(kernel, operand, target="h200", seed=seed).values)
        for operand, seed in ((x, 1), (x, 1), (x[::-1].copy(), 1), (x, 2))
    )
    assert (first == again).all()
    assert (first == reverse[::-1]).all()
    assert 0.2 < (first != other).mean() < 0.9


def test_errors_are_spread_evenly() -> None:
    errors = hashed_errors(3)(np.linspace(1, 2, 10_000, dtype=np.float32))
    assert (np.histogram(errors, 10, (-1, 1))[0] > 900).all()
    assert np.abs(errors).max() <= 1


def test_what_the_chip_flushes() -> None:
    """Subnormal results of approximate exponentials, and subnormal operands of logarithms."""
    x = np.full(128, -88.0, np.float32)
    small = np.full(128, 1e-39, np.float32)
    exact, approximate = (
        {
            name: chip_record.elementwise(getattr(jnp, name), mosaic=True, approx=approx)
            for name in ("exp", "log")
        }
        for approx in (False, True)
    )

    def run(kernel: Any, operand: Array) -> float:
        return float(np.asarray(simulate(kernel, operand, target="h100").values)[0])

    assert 0 < run(exact["exp"], x) < 2.0**-126
    assert run(approximate["exp"], x) == 0
    assert run(exact["log"], small) == pytest.approx(np.log(1e-39), rel=1e-6)
    assert run(approximate["log"], small) == -np.inf


@pytest.mark.parametrize("name", ["exp2", "sqrt", "rsqrt", "log2"])
def test_exact_results_stay_exact(name: str) -> None:
    """As on the chip: of powers of four, and of integers."""
    x = np.arange(128, dtype=np.float32) - 64
    operand = x if name == "exp2" else np.exp2(2 * np.rint(x / 2)).astype(np.float32)
    kernel = chip_record.elementwise(getattr(jax.lax, name, getattr(jnp, name, None)), mosaic=False)
    values, plain = (
        np.asarray(simulate(kernel, operand, target="h200", arithmetic=arithmetic).values)
        for arithmetic in ("chip", "float32")
    )
    assert (values == plain).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_functions_stay(dtype: str) -> None:
    kernel = chip_record.elementwise(jnp.tanh, mosaic=True)
    x = np.linspace(-3, 3, 1024).astype(jnp.dtype(dtype))
    chip, plain = (
        np.asarray(simulate(kernel, x, target="h200", arithmetic=arithmetic).values)
        for arithmetic in ("chip", "float32")
    )
    assert (chip == plain).all()


def test_outside_of_kernels_and_on_tpus() -> None:
    """These are numpy's."""
    x = np.linspace(-3, 3, 1024, dtype=np.float32)
    kernel = chip_record.elementwise(jnp.exp, mosaic=False)
    for function, target in ((jnp.exp, "h200"), (kernel, "v6e")):
        assert (np.asarray(simulate(function, x, target=target).values) == np.exp(x)).all()


def test_a_load_beyond_an_edge_that_nothing_keeps() -> None:
    """A function of what it loads only computes, so that the load is still a dropped one."""

    def body(x: Any, o: Any) -> None:
        i = pl.program_id(0)
        loaded = x[i + 1]
        o[i] = jnp.where(i < 7, jnp.exp(loaded) / jnp.sqrt(loaded * loaded + 1), 0.0)

    call = pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8,), jnp.float32), grid=(8,))
    result = simulate(
        call, np.ones(8, np.float32), target="h200", limits=Limits(out_of_bounds="fill")
    )
    assert [finding.dropped for finding in result.findings] == [True]
