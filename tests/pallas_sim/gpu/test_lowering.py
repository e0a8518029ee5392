"""Kernels that JAX does not lower to Triton are refused, and no others."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from pallas_test_support.compile_service import compile_service

from pallas_sim.chips import GPUS, TARGETS
from pallas_sim.errors import SimulationError
from pallas_sim.simulation import simulate
from pallas_sim.tracing import tracing_for
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.registry import compiling, parse
from pytest_pallas.compile import cuda

Shape = jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A function with one small kernel, and the shape of its argument.

    Attributes:
      words: what the simulator's refusal has, or "" if JAX lowers the kernel.
    """

    function: Callable[..., Any]
    x: Any
    words: str = ""


def of(
    body: Callable[..., Any],
    x: Any,
    out: Any = None,
    words: str = "",
    **options: Any,
) -> Kernel:
    return Kernel(lambda x: pl.pallas_call(body, out_shape=out or x, **options)(x), x, words)


def mapped(change: Callable[..., Any], x: Any, out: Any = None, words: str = "") -> Kernel:
    def body(x_ref, o_ref):
        o_ref[...] = change(x_ref[...])

    return of(body, x, out, words)


def floats(*shape: int) -> Any:
    return Shape(shape, jnp.float32)


def part(start: Any, size: int) -> Callable[..., None]:
    def body(x_ref, o_ref):
        o_ref[pl.ds(start, size)] = x_ref[pl.ds(start, size)]

    return body


def masked_row(x_ref, o_ref):
    columns = jnp.arange(8)
    x = plgpu.load(x_ref.at[columns], mask=columns < 6, other=0.0)
    plgpu.store(o_ref.at[columns], x, mask=columns < 6)


def copied(x_ref, o_ref, *_scratch):
    o_ref[...] = x_ref[...]


def blocks_of(*sizes: Any, **options: Any) -> dict[str, Any]:
    spec = pl.BlockSpec(sizes, lambda i: (i,), **options)
    return {"grid": (2,), "in_specs": [spec], "out_specs": spec}


SIZE = "the size of every array in a kernel is a power of two"
LOWER = "JAX does not lower"

KERNELS = {
    "a power of two": mapped(lambda x: x * 2, floats(4, 8)),
    "not a power of two": mapped(lambda x: x * 2, floats(3, 4), None, "float32[3, 4]"),
    "padded and masked": of(masked_row, floats(6)),
    "blocks": of(copied, floats(8), **blocks_of(4)),
    "an odd block": of(copied, floats(6), None, "use float32[4]", **blocks_of(3)),
    "a part": of(part(1, 4), floats(6)),
    "an odd part": of(part(1, 3), floats(6), None, "float32[3], which has 3 elements"),
    "an odd sum": mapped(lambda x: x + jnp.sum(jnp.arange(6)), floats(8), None, "int32[6]"),
    "odd and spread": mapped(
        lambda x: jnp.sum(jnp.broadcast_to(x, (3, 8)), axis=0), floats(8), None, SIZE
    ),
    "too large": mapped(lambda x: x, floats(1 << 21), None, "2,097,152 elements"),
    "a sum": mapped(lambda x: jnp.sum(x, axis=1), floats(4, 8), floats(4)),
    "a product": mapped(
        lambda x: jnp.prod(x, axis=1), floats(4, 8), floats(4), f"{LOWER} reduce_prod"
    ),
    "sorted": mapped(jnp.sort, floats(8), None, f"{LOWER} sort of float32[8]"),
    "a slice of a value": mapped(lambda x: x[:4], floats(8), floats(4), f"{LOWER} slice"),
    "a running sum": mapped(jnp.cumsum, floats(8)),
    "a matrix product": mapped(lambda x: x @ x, floats(16, 16)),
    "a product with a vector": mapped(lambda x: x @ x[0], floats(16, 16), floats(16), f"{LOWER}"),
    "unsigned products": mapped(
        lambda x: jax.lax.dot(x, x, preferred_element_type=jnp.int32),
        Shape((16, 16), jnp.uint8),
        Shape((16, 16), jnp.int32),
        f"{LOWER} dot_general of uint8[16, 16], uint8[16, 16]",
    ),
    "scratch": of(
        copied, floats(8), None, "scratch memory", scratch_shapes=[pl.ANY((8,), jnp.float32)]
    ),
    "buffers": of(
        copied, floats(8), None, "Pipeline mode", **blocks_of(4, pipeline_mode=pl.Buffered(2))
    ),
    "64 bits": mapped(lambda x: x * 2, Shape((8,), jnp.int64)),
}


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    with jax.enable_x64(request.param == "64 bits"):
        yield KERNELS[request.param]


def simulated(kernel: Kernel, target: str = "h100", **options: Any) -> Any:
    return simulate(
        kernel.function, np.ones(kernel.x.shape, kernel.x.dtype), target=target, **options
    )


def test_it_is_refused_with_its_line_and_shape(kernel: Kernel) -> None:
    if not kernel.words:
        simulated(kernel)
        return
    with pytest.raises(SimulationError) as refusal:
        simulated(kernel)
    text = str(refusal.value)
    assert kernel.words in text
    assert refusal.value.line.partition(":")[0] == __file__
    assert text.endswith(refusal.value.line)


def test_jax_lowers_it_or_not(kernel: Kernel) -> None:
    """What is too large is refused only when XLA reads what JAX made of it."""
    with tracing_for(TARGETS["h100"]), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = jax.jit(kernel.function).trace(kernel.x)
        if kernel.words and "2,097,152" not in kernel.words:
            with pytest.raises(Exception):  # noqa: B017 (of any type)
                traced.lower(lowering_platforms=("cuda",))
        else:
            traced.lower(lowering_platforms=("cuda",))


@pytest.mark.skipif(cuda.missing() is not None, reason=str(cuda.missing()))
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "64 bits"])
def test_compilers_refuse_the_same(name: str) -> None:
    families = {family.name: family for family in compiling(compile_service)}
    [backend] = parse("gpu-compile:h100", families)
    kernel = KERNELS[name]
    outcome = backend.run(Call(function=kernel.function, args=(kernel.x,)))
    assert (outcome.error is not None) == bool(kernel.words)


def test_on_every_chip() -> None:
    for target in ("a100", "h100", "h200", "b200"):
        simulated(KERNELS["a power of two"], target)
        with pytest.raises(SimulationError, match="power of two"):
            simulated(KERNELS["not a power of two"], target)


def test_on_a_chip_that_jax_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    other = dataclasses.replace(GPUS["b200"], device_kind="NVIDIA X1", capability=13)
    monkeypatch.setitem(GPUS, "x1", other)
    monkeypatch.setitem(TARGETS, "x1", dataclasses.replace(TARGETS["b200"], name="x1"))
    simulated(KERNELS["a power of two"], "x1")
    with pytest.raises(SimulationError, match="power of two"):
        simulated(KERNELS["not a power of two"], "x1")


def test_on_a_tpu_it_is_allowed() -> None:
    found = simulated(KERNELS["not a power of two"], "v6e")
    np.testing.assert_array_equal(found.values, np.full((3, 4), 2))


def test_without_jit() -> None:
    with pytest.raises(SimulationError, match="power of two"):
        simulated(KERNELS["not a power of two"], jit=False)
    simulated(KERNELS["a power of two"], jit=False)


def test_a_kernel_that_closes_over_a_reference() -> None:
    def adding(x: Any, rows: int) -> Any:
        total = jax.new_ref(jnp.zeros((rows, 8), x.dtype))

        def body(x_ref, o_ref):
            total[...] += x_ref[...]
            o_ref[...] = x_ref[...]

        pl.pallas_call(body, out_shape=x)(x)
        return jax.freeze(total)

    ones = np.ones((4, 8), np.float32)
    np.testing.assert_array_equal(simulate(adding, ones, rows=4, target="h100").values, ones)
    with pytest.raises(SimulationError, match=r"float32\[3, 8\]"):
        simulate(adding, ones[:3], rows=3, target="h100")


def test_a_kernel_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from pallas_sim.gpu import triton as lowering

    asked: list[str] = []
    monkeypatch.setattr(lowering, "require_lowering", lambda _, target: asked.append(target))

    def function(x: Any) -> Any:
        def again(_: Any, y: Any) -> Any:
            return KERNELS["a power of two"].function(y)

        return jax.lax.fori_loop(0, 5, again, x)

    simulate(function, np.ones((4, 8), np.float32), target="h100")
    assert asked == ["h100"]
