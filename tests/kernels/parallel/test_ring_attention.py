"""Ring attention: misuses, schedules that its spec does not draw, and that the copies overlap."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from pallas_test_support.compile_service import compile_service
from pallas_test_support.operands import f32, refuses

from pallas_sim.chips import TARGETS
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.compile.backends import Compiler, Lowering
from reference_kernels.parallel import ring_attention_on_mesh
from reference_kernels.parallel.ring_attention import reference


def abstract_mesh(**axes: int) -> AbstractMesh:
    """A mesh of v5e, to trace for."""
    chip = AbstractDevice(device_kind=TARGETS["v5e"].device_kind, num_cores=1, platform="tpu")
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh((*axes.values(),), (*axes,), axis_types=kinds, abstract_device=chip)


MESH = abstract_mesh(x=2, y=4)


def call(q: Any, k: Any, v: Any, axis_name: str = "y", **settings: Any) -> Any:
    return jax.eval_shape(
        functools.partial(ring_attention_on_mesh, mesh=MESH, axis_name=axis_name, **settings),
        *(q, k, v),
    )


def test_mesh() -> None:
    x = f32(8, 2, 3, 4)
    refuses(lambda: call(x, x, x, "z"), "mesh must have an axis 'z'", "('x', 'y')")
    refuses(lambda: call(x, f32(4, 2, 3, 4), x), "k must have one shard for each", "(4, 2, 3, 4)")


def test_operands() -> None:
    x = f32(8, 2, 3, 4)
    refuses(lambda: call(x, f32(8, 3, 4), x), "k must have the shape (g, kv_len, d)", "(3, 4)")
    refuses(lambda: call(x, f32(8, 2, 3, 5), x), "k must have the same d as q, 4", "is 5")
    refuses(lambda: call(x, x, f32(8, 2, 5, 4)), "v must have the same kv_len as k, 3", "is 5")
    refuses(lambda: call(x, x, f32(8, 2, 0, 4)), "v must not be empty")
    refuses(lambda: call(x, x, x.astype(np.float16)), "v must have the dtype of q", "float16")
    integers = x.astype(np.int32)
    refuses(lambda: call(*3 * (integers,)), "q must have a floating dtype", "int32")


def test_heads_and_lengths() -> None:
    x, three, longer = f32(8, 2, 3, 4), f32(8, 3, 3, 4), f32(8, 2, 5, 4)
    refuses(lambda: call(x, three, three), "k must have a number of heads g that divides", "is 3")
    refuses(lambda: call(x, longer, longer, causal=True), "k must have the same length as q, 3")
    assert call(x, longer, longer).shape == x.shape


@pytest.mark.parametrize("name", ["block_q", "block_kv"])
def test_blocks(name: str) -> None:
    x = f32(8, 2, 3, 4)
    refuses(lambda: call(x, x, x, **{name: 0}), f"{name} must be a positive integer, but it is 0")


def operands(devices: int, n: int) -> tuple[Any, ...]:
    rng = np.random.default_rng((devices, n))
    return tuple(rng.normal(size=(devices, 1, n, 8)).astype(np.float32) for _ in range(3))


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize(
    ("axes", "axis_name", "causal"),
    [
        ({"x": 1}, "x", True),
        ({"x": 8}, "x", True),
        ({"x": 2, "y": 2}, "x", False),
        ({"x": 2, "y": 2}, "y", True),
    ],
)
def test_other_meshes(
    pallas_run: Any, pallas_mesh: Any, axes: dict[str, int], axis_name: str, causal: bool
) -> None:
    settings = {"mesh": pallas_mesh(**axes), "axis_name": axis_name, "causal": causal}
    args = operands(settings["mesh"].size, 3)
    out = pallas_run(ring_attention_on_mesh, *args, **settings)
    np.testing.assert_allclose(out, reference(*args, **settings), rtol=1e-5, atol=1e-6)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_calls_that_follow_each_other(pallas_run: Any, pallas_mesh: Any) -> None:
    settings = {"mesh": pallas_mesh(x=4), "axis_name": "x"}

    def thrice(attend: Callable[..., Any], q: Any, k: Any, v: Any) -> Any:
        q = attend(q, k, v, **settings)
        return jax.lax.fori_loop(0, 2, lambda _, q: attend(q, k, v, **settings), q)

    args = operands(4, 3)
    out = pallas_run(functools.partial(thrice, ring_attention_on_mesh), *args)
    np.testing.assert_allclose(out, thrice(reference, *args), rtol=1e-5, atol=1e-6)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_gradients_with_a_causal_mask_and_shared_keys(pallas_run: Any, pallas_mesh: Any) -> None:
    settings = {"mesh": pallas_mesh(x=3), "axis_name": "x", "causal": True}
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.normal(size=(3, h, 5, 8)).astype(np.float32) for h in (2, 1, 1, 2))

    def gradients(attend: Callable[..., Any], *args: Any) -> Any:
        return jax.vjp(lambda *args: attend(*args, **settings), *args)[1](do)

    found = pallas_run(functools.partial(gradients, ring_attention_on_mesh), q, k, v)
    for ours, theirs in zip(found, gradients(reference, q, k, v), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def events(jaxpr: Any) -> Iterator[str]:
    """Copies to other devices, waits for them, and products, in the order of the program."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield "product"
        elif eqn.primitive.name in ("dma_start", "dma_wait"):
            *_, device = jax.tree.unflatten(eqn.params["tree"], eqn.invars)
            if device is not None:
                yield eqn.primitive.name
        else:
            values = jax.tree.leaves([*eqn.params.values()], is_leaf=lambda x: hasattr(x, "eqns"))
            for value in values:
                if hasattr(value, "eqns"):
                    yield from events(getattr(value, "jaxpr", value))


def traced(mesh: AbstractMesh, **settings: Any) -> list[str]:
    """The events of a kernel, each once however often it follows itself."""
    x = jax.ShapeDtypeStruct((mesh.size, 2, 64, 8), np.float32)
    attend = functools.partial(ring_attention_on_mesh, mesh=mesh, axis_name="x", **settings)
    found = events(jax.make_jaxpr(attend)(x, x, x).jaxpr)
    return [event for event, _ in itertools.groupby(found)]


@pytest.mark.parametrize("causal", [False, True])
def test_a_copy_starts_before_the_round_and_is_waited_for_after_it(causal: bool) -> None:
    found = traced(abstract_mesh(x=4), causal=causal)
    own = ["dma_start", "product", "dma_wait"]
    # In the body of the loop, what arrives is waited for first, which groupby does not show.
    later = ["dma_start", "product", "dma_wait"]
    assert found == own + later


def test_a_single_device_sends_nothing() -> None:
    assert traced(abstract_mesh(x=1)) == ["product"]


def machine_code(folder: Path, function: Callable[..., Any], *args: Any) -> str:
    """The final bundles of the Pallas kernel of a program, for a v5e."""
    lowering = Lowering("tpu")
    compiler = Compiler("tpu-compile", "tpu", compile_service, lambda: lowering, TARGETS["v5e"])
    missing = compiler.available()
    if missing is not None:
        pytest.skip(f"v5e cannot be compiled for: {missing}")
    outcome = compiler.run(
        Call(function=function, args=args, settings=RunSettings(dump=str(folder), timeout=300.0))
    )
    assert outcome.error is None
    files = [path.read_text() for path in folder.rglob("*[0-9]-final_bundles.txt")]
    [code] = {text for text in files if "dma.general" in text and "vmatmul" in text}
    return code


@pytest.mark.pallas(backends=["tpu-sim"])
def test_a_copy_overlaps_the_products_in_the_code_of_a_chip(
    tmp_path: Path, pallas_mesh: Any
) -> None:
    mesh = pallas_mesh(x=4)
    x = jax.ShapeDtypeStruct((4, 8, 1024, 128), "bfloat16")
    attend = functools.partial(ring_attention_on_mesh, mesh=mesh, axis_name="x")
    code = machine_code(tmp_path, attend, x, x, x)
    # A DMA counts granules of 32 bytes: 65,536 of them are the keys, or the values, of a device.
    words = re.findall(r"= (dma)\.general|= (vmatmul)|\.(done\.wait)[^\n]*, 65536 ", code)
    found = [kind for kind, _ in itertools.groupby(word for each in words for word in each if word)]
    own = ["dma", "vmatmul", "done.wait"]
    later = ["dma", "vmatmul", "done.wait"]  # after the wait for what arrives
    assert found == own + later
