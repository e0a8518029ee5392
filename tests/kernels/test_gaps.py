"""What JAX's own interpreters lack, which is why some kernels do not claim them."""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.operands import i32

from pallas_sim.chips import TARGETS
from pallas_sim.errors import PallasError
from pytest_pallas.backends.devices import make_mesh
from pytest_pallas.backends.interpreters import Interpreter, interpret, tpu_interpret
from pytest_pallas.backends.protocol import RunSettings
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.forward import forward
from pytest_pallas.draw.arrays import draw_several
from pytest_pallas.draw.meshes import sizes_of
from pytest_pallas.judge.tolerance import Tolerance
from pytest_pallas.run.collection import suite
from pytest_pallas.spec import KernelSpec
from reference_kernels._gaps import GAPS, KNOWN_LATE, REACHING, SCALAR_CORES, Gap
from reference_kernels.refs import add_one_to_first

#: Some calls need nothing that is missing: an empty mask, or a single block.
_CALLS = 8

#: Those of an interpreter that lacks nothing.
_FEW_CALLS = 2

_MAKERS = {"interpret": interpret, "tpu-interpret": tpu_interpret}


@pytest.fixture(scope="module")
def specs() -> dict[str, KernelSpec]:
    return {spec.name: spec for spec in suite("reference_kernels").specs()}


def interpreter(name: str, spec: KernelSpec) -> Interpreter:
    """An interpreter for a chip that the kernel runs on."""
    chips = [chip for each, _, chip in map(split, spec.claimed) if each == "tpu-sim" and chip]
    return _MAKERS[name](TARGETS[chips[0]] if chips else None)


def split(label: str) -> tuple[str, str, str]:
    return label.partition(":")


def runs(spec: KernelSpec, name: str, calls: int = _CALLS) -> bool:
    """Whether an interpreter runs every one of a few calls of a kernel, and is right."""
    backend = interpreter(name, spec)
    kernel, reference, inputs = spec.kernel_for(backend.platform), spec.reference, spec.inputs
    devices = 1
    if spec.meshes:
        several = [sizes for axes in spec.mesh_axes for sizes in sizes_of(axes)]
        four = next(sizes for sizes in several if math.prod(sizes.values()) == 4)
        mesh = make_mesh(four, "cpu")
        kernel, reference = (functools.partial(each, mesh=mesh) for each in (kernel, reference))
        inputs, devices = inputs(mesh), mesh.size
    for arguments in draw_several(inputs, calls):
        context = CheckContext(
            kernel=kernel,
            reference=reference,
            arguments=arguments,
            backend=backend,
            exact=spec.exact,
            tolerance=spec.tolerance or Tolerance(),
            settings=RunSettings(devices=devices, timeout=20),
        )
        try:
            if forward(context).failed:
                return False
        except PallasError:
            return False
    return True


CASES = [(gap, name) for gap in GAPS for name in gap.interpreters]


@pytest.mark.parametrize(
    ("gap", "name"), CASES, ids=[f"{gap.shown_by}-{name}" for gap, name in CASES]
)
def test_the_gap_is_there(specs: dict[str, KernelSpec], gap: Gap, name: str) -> None:
    if gap.shown_by not in specs:
        pytest.skip("its kernel needs a newer JAX")
    spec = specs[gap.shown_by]
    assert not spec.claims(name)
    assert not runs(spec, name), (
        f"{name} can {gap.reason} in this JAX. Let the kernels that say so claim it again, or name "
        "the versions that cannot"
    )


@pytest.mark.parametrize("gap", [REACHING, SCALAR_CORES, KNOWN_LATE], ids=lambda gap: gap.shown_by)
def test_the_other_interpreter_runs_it(specs: dict[str, KernelSpec], gap: Gap) -> None:
    """So it is no mistake of how these tests ask."""
    assert gap.interpreters == ("interpret",)
    assert runs(specs[gap.shown_by], "tpu-interpret", _FEW_CALLS)


@pytest.mark.xfail(reason="JAX 0.12.0.1: masked stores of more rows than columns", strict=True)
def test_more_rows_than_columns_under_the_tpu_interpreter() -> None:
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        out = add_one_to_first(i32(5, 4), jnp.array([5], jnp.int32))
        np.testing.assert_array_equal(out, 1)
