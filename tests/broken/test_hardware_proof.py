"""The proof that a kernel is in the executable, on modules lowered for chips that are not here."""

from __future__ import annotations

import dataclasses
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import table
from jax.sharding import AbstractDevice, AbstractMesh
from wrong_kernels import contracts

from pallas_sim.chips import TARGETS
from pytest_pallas import NoPallasCallError
from pytest_pallas.backends.hardware import prove
from pytest_pallas.compile import cuda
from pytest_pallas.grid.kernel_calls import KernelCall, kernel_calls
from pytest_pallas.run.standalone import check
from pytest_pallas.spec import KernelSpec
from reference_kernels.mosaic_gpu.tma_copy_add import tma_copy_add

LOWERED_FOR = {"tpu": ("v6e", "tpu"), "gpu": ("h100", "cuda")}


def lowered(function: Callable[..., Any], platform: str) -> tuple[list[KernelCall], str]:
    """The kernels of a call, and the text of its module lowered for ``platform``."""
    chip, lowering = LOWERED_FOR[platform]
    target = TARGETS[chip]
    device = AbstractDevice(device_kind=target.device_kind, num_cores=1, platform=target.platform)
    x = jnp.ones((8, 128), jnp.float32)
    mesh = AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the Triton route
        traced = jax.jit(function).trace(x)
        text = traced.lower(lowering_platforms=(lowering,)).as_text()
    return kernel_calls(traced.jaxpr), text


@pytest.mark.parametrize(
    ("function", "platform", "custom_call"),
    [
        pytest.param(contracts.right, "tpu", "tpu_custom_call", id="mosaic-tpu"),
        pytest.param(contracts.right, "gpu", "triton", id="triton"),
        pytest.param(tma_copy_add, "gpu", "mosaic_gpu", id="mosaic-gpu"),
    ],
)
def test_right_kernels_are_proven(
    function: Callable[..., Any], platform: str, custom_call: str
) -> None:
    kernels, text = lowered(function, platform)
    assert len(kernels) == 1
    assert custom_call in text
    prove(kernels, text, platform)


@pytest.mark.parametrize("platform", LOWERED_FOR)
def test_hard_coded_interpret_is_named_by_file_and_line(platform: str) -> None:
    lines, first = inspect.getsourcelines(contracts.hard_coded_interpret)
    line = first + next(i for i, text in enumerate(lines) if "the line to be named" in text)
    kernels, text = lowered(contracts.hard_coded_interpret, platform)
    with pytest.raises(NoPallasCallError, match="hard-coded interpret=True") as caught:
        prove(kernels, text, platform)
    assert re.search(rf"body at .*contracts\.py:{line}\b", str(caught.value))
    assert f"instead of the {platform}" in str(caught.value)


@pytest.mark.parametrize("platform", LOWERED_FOR)
def test_an_executable_without_the_kernel_is_no_proof(platform: str) -> None:
    kernels, _ = lowered(contracts.right, platform)
    _, text = lowered(contracts.hard_coded_interpret, platform)
    with pytest.raises(NoPallasCallError, match=r"has none of .* although body was traced"):
        prove(kernels, text, platform)


#: The right kernels that GPUs run, each with a chip that has what it needs.
RIGHT_ON_GPUS = {
    name: (spec, "b200" if "gpu-sim:b200" in spec.backends else "h100")
    for name, spec in table.specs().items()
    if table.is_right(name) and spec.backends and "gpu-sim" in str(spec.backends)
}


@pytest.mark.skipif(cuda.missing() is not None, reason=str(cuda.missing()))
@pytest.mark.parametrize(("spec", "chip"), RIGHT_ON_GPUS.values(), ids=RIGHT_ON_GPUS)
def test_right_kernels_of_gpus_compile_for_one(spec: KernelSpec, chip: str) -> None:
    compiling = dataclasses.replace(spec, backends=(f"gpu-compile:{chip}",))
    check(compiling, backend=f"gpu-compile:{chip}", max_examples=1)


def test_there_are_right_kernels_of_both_routes() -> None:
    families = {table.family_of(spec) for spec, _ in RIGHT_ON_GPUS.values()}
    assert families >= {"grids of a GPU", "Mosaic GPU"}
