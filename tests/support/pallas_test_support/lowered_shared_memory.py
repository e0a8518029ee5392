"""The shared memory of Mosaic GPU kernels: what JAX's lowering asks for, and what is counted."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any, cast

import jax
from jax import export
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim.chips import TARGETS, Label
from pallas_sim.compat.compilers import requested_shared_bytes
from pallas_sim.compat.jaxprs import open_jaxpr
from pallas_sim.cores import equations
from pallas_test_support.several_devices import mesh_of
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.tracing import abstract
from pytest_pallas.compile.backends import Lowered, Lowering
from pytest_pallas.draw.arrays import draw_several
from pytest_pallas.draw.meshes import sizes_of
from pytest_pallas.spec import KernelSpec

_REFUSED = re.compile(r"smem_bytes=(\d+) > ")

#: One for all, which keeps what it has lowered.
_LOWERING = Lowering("gpu")


def counted_and_lowered(call: Call, target: str) -> tuple[list[int | None], list[int]]:
    """Bytes of shared memory of each Mosaic GPU kernel of a call, as counted and as lowered.

    No compiler is needed. Of a kernel that takes too much, JAX's error says how much.

    Args:
      call: what launches the kernels.
      target: name of the chip.
    """
    static, arrays = abstract(call)
    lowered = Lowered()
    try:
        _LOWERING.lower(call, static, arrays, TARGETS[target], into=lowered)
    except ValueError as error:
        refused = _REFUSED.search(str(error))
        if refused is None:
            raise
        return counted(lowered.jaxpr), [int(refused[1])]
    return counted(lowered.jaxpr), _launched(lowered.module)


def tunings(spec: KernelSpec, most: int) -> list[tuple[Call, str]]:
    """Calls of a kernel for GPUs, each with another tuning or other dtypes, and a chip of it.

    Args:
      spec: of the kernel.
      most: how many examples are drawn.
    """
    targets = [each.target for each in map(Label.of, spec.backends or ()) if each.name == "gpu-sim"]
    kernel, inputs = spec.kernel_for("gpu"), spec.inputs
    if spec.meshes:
        mesh = mesh_of(**sizes_of(spec.mesh_axes[0])[0])
        kernel, inputs = functools.partial(kernel, mesh=mesh), cast("Any", inputs)(mesh)
    calls: dict[str, tuple[Call, str]] = {}
    for drawn in draw_several(inputs, most) if targets else ():
        dtypes = [each.dtype.name for each in jax.tree.leaves(drawn.args)]
        options = {**drawn.options, **drawn.tuning}
        call = Call(function=kernel, args=drawn.args, options=options)
        calls.setdefault(f"{sorted(drawn.tuning.items())} {dtypes}", (call, targets[0]))
    return list(calls.values())


def counted(jaxpr: Any) -> list[int | None]:
    """Bytes of each kernel of a traced function, as the simulator counts."""
    inner = open_jaxpr(jaxpr)[0]
    return [
        requested_shared_bytes(
            eqn.params["jaxprs"][0], eqn.params["meshes"][0], eqn.params["compiler_params"]
        )
        for eqn in equations(inner)
        if eqn.primitive.name == "mpmd_map" and isinstance(eqn.params["meshes"][0], plgpu.Mesh)
    ]


def _launched(module: bytes) -> list[int]:
    """What each ``gpu.launch`` of an exported program asks for, in its order."""
    kernels = _read(
        export.deserialize(bytearray(module)).mlir_module(),
        "stablehlo.custom_call",
        lambda call: (
            call.attributes["mhlo.backend_config"]["module"].value_bytes
            if "mosaic_gpu_v2" in str(call.attributes["call_target_name"])
            else None
        ),
    )
    return [size for kernel in kernels for size in _read(kernel, "gpu.launch", _asked)]


def _asked(launch: Any) -> int:
    # Its operands are a token, sizes of the grid, of a block and of a cluster, and these bytes.
    sizes = list(launch.attributes["operandSegmentSizes"])
    return launch.operands[sum(sizes[:10])].owner.attributes["value"].value


def _read(module: Any, name: str, read: Callable[[Any], Any]) -> list[Any]:
    """What ``read`` gives of the operations of a module whose name ends with ``name``."""
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    ir: Any = importlib.import_module("jaxlib.mlir.ir")
    dialect: Any = importlib.import_module("jax.experimental.mosaic.gpu").dialect
    context = mlir.make_ir_context()
    context.allow_unregistered_dialects = True
    dialect.register_dialect(context)
    found: list[Any] = []

    def visit(operation: Any) -> Any:
        if operation.operation.name.endswith(name):
            found.append(read(operation.operation))
        return ir.WalkResult.ADVANCE

    with context, ir.Location.unknown():
        ir.Module.parse(module).operation.walk(visit)
    return [each for each in found if each is not None]
