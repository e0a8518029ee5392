"""A ``plgpu.kernel``, prepared: its grid, its body, and what it needs of a chip."""

from __future__ import annotations

import ast
import functools
import linecache
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.jaxprs import open_jaxpr, written_inputs
from pytest_pallas.compat.source import home_of
from pytest_pallas.compat.tiles import CopyKey, inferred_tiles, infers_tiles
from pytest_pallas.devices.absent import AbsentChip, present
from pytest_pallas.devices.gpus import GPUS, attributes
from pytest_pallas.simulator.concurrency.launches import equations
from pytest_pallas.simulator.gpu.launches.block_meshes import BlockMesh, block_mesh
from pytest_pallas.simulator.gpu.launches.registers import registers_at_launch
from pytest_pallas.simulator.gpu.launches.scopes import ScopedRef, semaphores_in, smem_bytes
from pytest_pallas.simulator.gpu.layouts import makes_paired_memory
from pytest_pallas.simulator.gpu.peers import reaches_devices
from pytest_pallas.simulator.gpu.tensor_cores.tensor_memory import allocated_columns
from pytest_pallas.simulator.program import Program, prepare
from pytest_pallas.simulator.registry import Equation
from pytest_pallas.simulator.thread import Thread


def body_of(jaxpr: Any) -> tuple[str, tuple[str, ...]]:
    """The name of the body of a ``plgpu.kernel``, and those of its positional parameters.

    JAX wraps the body in a function of ``*refs``, which runs it in a scope; the scope says where
    its function is defined. ("", ()) if that is not known.
    """
    name, file, line = home_of(jaxpr)
    if not line:
        return name, ()
    return name, _parameters(file).get(line, ())


@functools.cache
def _parameters(file: str) -> Mapping[int, tuple[str, ...]]:
    """The positional parameters of each function of a file, by its first line and that of def."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            names = tuple(each.arg for each in (*node.args.posonlyargs, *node.args.args))
            decorators = getattr(node, "decorator_list", [])
            for line in (min([node.lineno, *(each.lineno for each in decorators)]), node.lineno):
                found.setdefault(line, names)
    return found


#: What orders blocks of different clusters, or devices.
_ORDERING = frozenset(
    {
        *("semaphore_signal", "semaphore_wait", "semaphore_read", "semaphore_signal_parallel"),
        *("semaphore_signal_multicast", "multimem_store", "multimem_load_reduce"),
    }
)


@dataclass(frozen=True)
class GpuKernel:
    """A Mosaic GPU kernel, prepared.

    Attributes:
      name: of its body.
      mesh: its grid.
      program: its body.
      names: of the parameters of the body.
      written: the parameters that it writes.
      aliases: for an output, the input whose memory it is.
      outputs: shapes and dtypes.
      semaphores: that it makes.
      paired: whether pairs of blocks share tensor memory.
      smem: bytes of shared memory that a block takes, as they are kept here.
      tmem: columns of tensor memory that a block takes, by the name of each reference.
      ordered: whether something orders clusters, so that they run at the same time.
      dynamic: whether clusters take over the work of others.
      remote: whether it reaches other devices.
      registers: that a thread has at least when it begins.
      early: whether it may begin before the kernel ahead of it has ended.
      params: compiler parameters.
      equation: JAX's.
      line: ``file:line`` of the call.
    """

    name: str
    mesh: BlockMesh
    program: Program
    names: tuple[str, ...]
    written: frozenset[int]
    aliases: Mapping[int, int]
    outputs: tuple[Any, ...]
    semaphores: tuple[ScopedRef, ...]
    paired: bool
    smem: int
    tmem: Sequence[tuple[str, int]]
    ordered: bool
    dynamic: bool
    remote: bool
    registers: int
    early: bool
    params: Any
    equation: Any
    line: str


def kernel_inputs(eqn: Equation) -> Sequence[Any]:
    """Abstract values of the parameters of the body."""
    inner, _ = open_jaxpr(eqn.params["jaxprs"][0])
    return [var.aval for var in inner.invars]


def kernel_of(eqn: Equation) -> GpuKernel:
    """The kernel of a ``mpmd_map``, prepared."""
    mesh = block_mesh(eqn.params["meshes"])
    assert mesh is not None
    (jaxpr,) = eqn.params["jaxprs"]
    inner, _ = open_jaxpr(jaxpr)
    inside = list(equations(jaxpr))
    names = {each.primitive.name for each in inside}
    remote = any(map(reaches_devices, inside))
    count = len(eqn.ins)
    aliases = {at: number for number, at in dict(eqn.params["input_output_aliases"]).items()}
    name, parameters = _body(jaxpr)
    own = [f"operand {number}" for number in range(count)]
    own += [f"output {number}" for number in range(len(inner.invars) - count)]
    return GpuKernel(
        name=name or eqn.params["name"] or "kernel",
        mesh=mesh,
        program=prepare(jaxpr),
        names=(*parameters[: len(own)], *own[len(parameters) :]),
        written=written_inputs(inner),
        aliases=aliases,
        outputs=tuple(eqn.params["out_avals"]),
        paired=any(map(makes_paired_memory, inside)),
        semaphores=tuple(semaphores_in(jaxpr)),
        smem=smem_bytes(jaxpr),
        tmem=allocated_columns(jaxpr),
        ordered=remote or not names.isdisjoint(_ORDERING),
        dynamic="try_cluster_cancel" in names,
        remote=remote,
        registers=registers_at_launch(jaxpr),
        # JAX launches a kernel so if it waits for the one ahead (``PdlEffect``).
        early="griddepcontrol_wait" in names,
        params=eqn.params["compiler_params"],
        equation=eqn.origin or eqn,
        line=eqn.line,
    )


def _body(jaxpr: Any) -> tuple[str, tuple[str, ...]]:
    """Name and parameters of the user's body, which JAX wraps."""
    for each in equations(jaxpr):
        if each.primitive.name == "run_scoped":
            return body_of(open_jaxpr(each.params["jaxpr"])[0])
    return body_of(open_jaxpr(jaxpr)[0])


def tiles_of_copies(
    kernel: GpuKernel, eqn: Equation, thread: Thread
) -> Mapping[CopyKey, tuple[int, ...]]:
    """The tiles that JAX chooses for the shared memory of each copy of a kernel.

    JAX lowers the kernel for that, as it does for the chip. A note says if it cannot.

    Args:
      kernel: whose copies.
      eqn: its ``mpmd_map``.
      thread: the device that runs it.
    """
    if not infers_tiles(kernel.params):
        return {}
    target = thread.machine.target
    chip = AbsentChip(GPUS[target].device_kind, "gpu", attributes(target))
    try:
        with warnings.catch_warnings(), present(chip):
            warnings.simplefilter("ignore")
            return inferred_tiles(eqn.params, eqn.ins, thread.sizes)
    except Exception as error:  # whatever its lowering raises
        thread.machine.note(
            f"{kernel.name} is not lowered ({type(error).__name__}), so it is not known how JAX "
            "tiles its shared memory, and whether it drops the index of a copy that starts outside"
        )
        return {}
