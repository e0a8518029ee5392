"""Shared memory of the Triton route: the estimate, the compiler's count, and who is asked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from pallas_test_support.compile_service import compile_service

from pallas_sim import simulate
from pallas_sim.chips import TARGETS
from pallas_sim.compat.jaxprs import argument_names, open_jaxpr
from pallas_sim.cores import equations
from pallas_sim.gpu.triton import SharedMemory, shared_memory
from pytest_pallas import CapacityError
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.backends.registry import compiling, parse
from pytest_pallas.backends.simulators import Simulator, gpu_sim
from pytest_pallas.compile import cuda
from pytest_pallas.mutate import mutants_of
from reference_kernels.portable import portable_flash_attention

F32, BF16, I8 = jnp.float32, jnp.bfloat16, jnp.int8


def zeros(*shape: int, dtype: Any = F32) -> Any:
    return np.zeros(shape, dtype)


@dataclass(frozen=True)
class Case:
    """A kernel, and what the compiler counts of it (jax-cuda13-pjrt 0.12.0.1).

    Attributes:
      function: what calls the kernel.
      args: of the function.
      counts: bytes of shared memory by chip.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    counts: dict[str, int]


def product(
    rows: int,
    columns: int,
    block: int,
    dtype: Any,
    stages: int | None = None,
    *,
    warps: int | None = None,
    precision: Any = None,
    steps: int = 8,
    right: Any = None,
    loop: str = "fori",
    **counts: int,
) -> Case:
    """A product of blocks; ``right`` is the dtype of the right operand, which is converted."""

    def body(order_ref: Any, x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        def step(i: Any, total: jax.Array) -> jax.Array:
            of_y = order_ref[i] if loop == "gathered" else i
            x = x_ref[:, pl.ds(i * block, block)]
            y = y_ref[pl.ds(of_y * block, block), :].astype(dtype)
            return total + jnp.dot(x, y, preferred_element_type=F32, precision=precision)

        total = jnp.zeros(o_ref.shape, F32)
        if loop == "none":
            o_ref[...] = step(0, total)
        elif loop == "while":
            last = order_ref[0]
            o_ref[...] = jax.lax.while_loop(
                lambda c: (c[0] < 8) & (c[0] < last),
                lambda c: (c[0] + 1, step(*c)),
                (jnp.int32(0), total),
            )[1]
        else:
            o_ref[...] = jax.lax.fori_loop(
                0, order_ref[0] if loop == "read" else steps, step, total
            )

    def call(order: Any, x: Any, y: Any) -> Any:
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((rows, columns), F32),
            compiler_params=plgpu.CompilerParams(num_stages=stages, num_warps=warps),
        )(order, x, y)

    x, y = (
        zeros(rows, block * steps, dtype=dtype),
        zeros(block * steps, columns, dtype=right or dtype),
    )
    return Case(call, (zeros(8, dtype=np.int32), x, y), counts)


def attend(block_q: int, block_kv: int, dtype: Any, **counts: int) -> Case:
    call = functools.partial(portable_flash_attention, block_q=block_q, block_kv=block_kv)
    args = (zeros(33, 40, dtype=dtype), zeros(129, 40, dtype=dtype), zeros(129, 128, dtype=dtype))
    return Case(call, args, counts)


def weighed(rows: int, keys: int, d: int, dtype: Any, stages: int, **counts: int) -> Case:
    """Two products in a loop, of which the second reads what comes of the first."""

    def body(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
        q = q_ref[...]

        def step(i: Any, total: jax.Array) -> jax.Array:
            here = pl.ds(i * keys, keys)
            weights = jnp.exp(jnp.dot(q, k_ref[here, :].T, preferred_element_type=F32))
            v = v_ref[here, :]
            return total + jnp.dot(weights.astype(v.dtype), v, preferred_element_type=F32)

        o_ref[...] = jax.lax.fori_loop(0, 4, step, jnp.zeros(o_ref.shape, F32))

    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((rows, d), F32),
        compiler_params=plgpu.CompilerParams(num_stages=stages),
    )
    key = zeros(4 * keys, d, dtype=dtype)
    return Case(call, (zeros(rows, d, dtype=dtype), key, key), counts)


HIGHEST = jax.lax.Precision.HIGHEST
CASES = {
    "attention in float32": attend(16, 128, F32, h100=278_528, a100=278_528),
    "attention in float32, 64 keys": attend(64, 16, F32, h100=69_888),
    "attention in bfloat16": attend(16, 128, BF16, h100=139_264),
    "attention by wgmma": attend(64, 128, BF16, h100=212_992),
    "two products": weighed(64, 64, 64, BF16, 3, h100=57_344),
    "two products of few rows": weighed(32, 32, 64, BF16, 2, h100=14_336, a100=14_336),
    "two products in tf32": weighed(128, 64, 64, F32, 3, h100=114_688),
    "three stages of mma.sync": product(16, 64, 32, BF16, h100=10_240, a100=10_240),
    "three stages of wgmma": product(64, 128, 64, BF16, h100=73_728, a100=49_152),
    "four stages": product(64, 128, 64, BF16, 4, h100=98_304, a100=73_728),
    "eight warps": product(128, 128, 64, BF16, 3, warps=8, h100=98_304),
    "two stages": product(64, 64, 32, BF16, 2, h100=16_384),
    "one stage": product(16, 64, 32, BF16, 1, h100=5120),
    "tf32": product(64, 128, 64, F32, h100=131_072, a100=98_304),
    "tf32 in one stage": product(64, 128, 64, F32, 1, h100=32_768),
    "float32": product(64, 64, 32, F32, precision=HIGHEST, h100=32_768),
    "int8 to bfloat16": product(64, 64, 64, BF16, right=I8, h100=40_960),
    "int8 to bfloat16, 32 rows": product(32, 64, 64, BF16, right=I8, h100=16_384),
    "no loop": product(16, 64, 32, BF16, loop="none", h100=5120),
    "one step": product(16, 64, 32, BF16, steps=1, h100=5120),
    "a bound that is read": product(64, 64, 64, BF16, loop="read", h100=49_152),
    "a while loop": product(64, 64, 64, BF16, loop="while", h100=16_384),
    "an index that is loaded": product(16, 64, 64, BF16, 5, loop="gathered", h100=20_488),
}
CHIPS = [(name, chip) for name, case in CASES.items() for chip in case.counts]


def estimated(case: Case, target: str) -> SharedMemory:
    jaxpr = open_jaxpr(jax.make_jaxpr(case.function)(*case.args))[0]
    (kernel,) = (eqn for eqn in equations(jaxpr) if eqn.primitive.name == "pallas_call")
    body = open_jaxpr(kernel.params["jaxpr"])[0]
    names = argument_names(body)
    return shared_memory(body, names, kernel.params["compiler_params"], target)


@pytest.mark.parametrize(("name", "chip"), CHIPS)
def test_the_estimate_agrees_with_the_compiler(name: str, chip: str) -> None:
    found, count = estimated(CASES[name], chip), CASES[name].counts[chip]
    assert 0.99 * count <= found.estimate <= count <= found.most
    assert sum(size for _, size in found.parts) == found.estimate


@pytest.mark.skipif(cuda.missing() is not None, reason=str(cuda.missing()))
@pytest.mark.parametrize(
    "name", ["attention in float32", "attention by wgmma", "tf32", "an index that is loaded"]
)
def test_the_compiler_counts_as_it_is_written_here(name: str) -> None:
    families = {family.name: family for family in compiling(compile_service)}
    compiler: Any = parse("gpu-compile:h100", families)[0]
    case = CASES[name]
    jaxpr = open_jaxpr(jax.make_jaxpr(case.function)(*case.args))[0]
    (kernel,) = (eqn for eqn in equations(jaxpr) if eqn.primitive.name == "pallas_call")
    assert compiler.shared_bytes(kernel, 120.0) == case.counts["h100"]


@dataclass
class Counting:
    """A compiler that says a number, and notes how often it is asked."""

    says: int | None
    missing: str | None = None
    asked: int = 0

    def available(self) -> str | None:
        return self.missing

    def shared_bytes(self, kernel: Any, timeout: float) -> int | None:
        del timeout
        assert kernel.primitive.name == "pallas_call"
        self.asked += 1
        return self.says


def simulator(compiler: Any) -> Simulator:
    return dataclasses.replace(gpu_sim(TARGETS["h100"]), compiler=compiler)


def run(case: Case, compiler: Counting | None, mutant: Any = None) -> Exception | None:
    gpu = simulator(compiler)
    call = Call(function=case.function, args=case.args, settings=RunSettings(rewriting=mutant))
    return gpu.run(call).error


def near() -> Case:
    """By the estimate, too much by little."""
    return product(64, 128, 128, BF16, 5, steps=2)


def test_the_compilers_count_is_taken() -> None:
    compiler = Counting(240_000)
    for _ in range(2):
        error = run(near(), compiler)
        assert isinstance(error, CapacityError)
        assert "a block takes 240,000 bytes of shared memory, and a block of h100" in str(error)
        assert "y_ref 160.0 KiB, x_ref 80.0 KiB" in str(error)
    assert run(near(), Counting(200_000)) is None


def test_it_is_asked_once_and_only_where_a_block_may_take_too_much() -> None:
    compiler, case = Counting(200_000), near()
    for seed in range(3):
        gpu = simulator(compiler)
        y = np.full_like(case.args[2], seed)
        assert gpu.run(Call(function=case.function, args=(*case.args[:2], y))).error is None
    assert compiler.asked == 1
    few = Counting(200_000)
    assert run(product(64, 128, 64, BF16, steps=2), few) is None
    assert few.asked == 0


@pytest.mark.parametrize(
    "compiler", [None, Counting(None), Counting(0, missing="ptxas is missing")]
)
def test_an_estimate_says_that_it_is_one(compiler: Counting | None) -> None:
    error = run(near(), compiler)
    assert isinstance(error, CapacityError)
    assert str(error).startswith(
        "a block takes 245,760 bytes of shared memory by an estimate, as no compiler for GPUs has "
        "counted it, and a block of h100 can have 232,448: y_ref 160.0 KiB, x_ref 80.0 KiB. Choose "
        "smaller blocks, or fewer stages."
    )


def test_simulate_estimates() -> None:
    case = near()
    (finding,) = simulate(case.function, *case.args, target="h100").findings
    assert (finding.kind, finding.ref) == ("capacity", "y_ref")
    assert "test_shared_memory.py" in finding.line


def test_mutants_are_not_counted() -> None:
    case, compiler = near(), Counting(300_000)
    jaxpr = jax.make_jaxpr(case.function)(*case.args)
    mutant = mutants_of(jaxpr)[0]
    error = run(case, compiler, mutant)
    assert not isinstance(error, CapacityError)
    assert compiler.asked == 0
