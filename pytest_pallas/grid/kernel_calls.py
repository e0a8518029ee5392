"""Find the Pallas kernels of a traced function (``kernel_calls``), and read their code.

Checks and backends ask: does a kernel do more than one step, which sizes have its blocks, could it
hang, which backends cannot run it?
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim.traces import (
    FOREIGN_PRIMITIVES,
    KERNEL_PRIMITIVES,
    GridFacts,
    equations,
    equations_inside,
    grid_facts,
    is_literal,
    kernel_name,
    names_a_device,
    open_jaxpr,
    platform_of,
    semaphore_kind,
    source_line,
    sub_jaxprs,
    without_dead_code,
    written_for,
    written_inputs,
)

#: Primitives that may return before their effect is complete; a kernel with one of them can race.
ASYNCHRONOUS = frozenset(
    {
        *("dma_start", "semaphore_signal", "semaphore_wait", "emit_pipeline"),
        *("copy_gmem_to_smem", "copy_smem_to_gmem", "wgmma", "wgmma_ref", "tcgen05_mma"),
        *("async_load", "async_store_smem", "async_store_tmem", "async_copy_smem_to_tmem"),
        *("async_copy_scales_to_tmem", "async_copy_sparse_metadata_to_tmem", "try_cluster_cancel"),
        *("barrier_arrive", "barrier_arrive_and_wait", "barrier_test", "barrier_wait"),
        *("tcgen05_commit_arrive", "semaphore_signal_multicast", "semaphore_signal_parallel"),
    }
)


@dataclass(frozen=True)
class KernelCall:
    """One Pallas kernel inside a jaxpr, or one of another language that JAX calls.

    Attributes:
      name: the kernel's name, as given by ``name=`` or the body function.
      source: ``file:line`` of the call in the user's code, or "" where JAX does not know it.
      interpreted: True if its ``interpret`` parameter makes it an interpreter run.
      primitives: the names of all primitives in its body.
      path: primitives around it, outermost first, such as ``("jit", "shard_map")``.
      devices: how many devices the meshes around it have.
      eqn: the equation itself, for the other modules of this package.
    """

    name: str
    source: str
    interpreted: bool
    primitives: frozenset[str]
    path: tuple[str, ...]
    eqn: Any = field(repr=False, compare=False)
    devices: int = 1

    @property
    def asynchronous(self) -> bool:
        """Whether the kernel uses DMAs, semaphores, barriers or asynchronous copies."""
        return bool(self.primitives & ASYNCHRONOUS)

    @property
    def located_name(self) -> str:
        """The name with ``file:line`` of the call, or of the first line in it that JAX knows.

        JAX does not know that of the call of a ``plgpu.kernel``.
        """
        inside = (line for inner in equations_inside(self.eqn) if (line := source_line(inner)))
        source = self.source or next(inside, "")
        return f"{self.name} at {source}" if source else self.name

    @functools.cached_property
    def facts(self) -> GridFacts | None:
        """The grid and blocks of a ``pallas_call``; None for other kernels, which have refs."""
        return grid_facts(self.eqn) if self.eqn.primitive.name == "pallas_call" else None


def kernel_calls(jaxpr: Any) -> list[KernelCall]:
    """Return all kernels in a (closed) jaxpr, in order, also nested in jit, vmap or shard_map."""
    return list(_walk(open_jaxpr(jaxpr)[0], ()))


def live_kernel_calls(jaxpr: Any) -> list[KernelCall]:
    """Return the kernels that are left in an executable: ``kernel_calls`` without dead code."""
    return kernel_calls(without_dead_code(jaxpr))


def _walk(jaxpr: Any, path: tuple[str, ...], devices: int = 1) -> Iterator[KernelCall]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in KERNEL_PRIMITIVES | FOREIGN_PRIMITIVES:
            yield replace(kernel_call(eqn, path), devices=devices)
        else:
            mesh = eqn.params.get("mesh") if eqn.primitive.name == "shard_map" else None
            count = max(devices, getattr(mesh, "size", 1))
            for inner in sub_jaxprs(eqn):
                yield from _walk(inner, (*path, eqn.primitive.name), count)


def kernel_call(eqn: Any, path: tuple[str, ...]) -> KernelCall:
    """Describe the kernel that an equation runs, inside the primitives of ``path``."""
    return KernelCall(
        name=kernel_name(eqn),
        source=source_line(eqn) or "",
        interpreted=bool(eqn.params.get("interpret")),
        primitives=frozenset(inner.primitive.name for inner in equations_inside(eqn)),
        path=path,
        eqn=eqn,
    )


def variables(eqn: Any) -> set[Any]:
    """Return the operands of an equation that are no literals."""
    return {var for var in eqn.invars if not is_literal(var)}


def mutated_operands(call: KernelCall) -> tuple[int, ...]:
    """Return positions of a ``pallas_call``'s array operands whose refs its body writes in place.

    Operands that are aliased to an output are left out: their refs may be written. Empty for
    other primitives, whose operands are refs that the caller made.
    """
    if call.facts is None:
        return ()
    scalars = len(call.facts.scalars)
    aliased = {scalars + number for number, _ in call.facts.aliases}
    operands = range(scalars + len(call.facts.inputs))
    body, _ = open_jaxpr(call.eqn.params["jaxpr"])
    written = written_inputs(body)
    # A kernel may change its semaphores.
    arrays = [i for i in operands if semaphore_kind(body.invars[i].aval.dtype) is None]
    return tuple(i for i in arrays if i in written and i not in aliased)


# Whether the kernels of a call do more than one step, which some checks need.


def one_program(kernels: Sequence[KernelCall]) -> str | None:
    """Say why no kernel has a second program; None if one has, or is meant to have one.

    A grid of which neither body nor blocks ask for the program is meant to have one. Kernels that
    are no ``pallas_call`` are not looked at.
    """
    reasons = [_one_program(kernel) for kernel in kernels]
    return None if not reasons or None in reasons else reasons[0]


def one_step(kernels: Sequence[KernelCall]) -> str | None:
    """Say why no kernel does a second step; None if one does, or is meant to do one.

    A step is a program of the grid, or a turn of a loop that starts copies or waits for them. Only
    the copies of several steps can meet.
    """
    reasons = [_one_step(kernel) for kernel in kernels]
    return None if not reasons or None in reasons else reasons[0]


def _one_program(kernel: KernelCall) -> str | None:
    facts = kernel.facts
    if facts is None or not facts.grid or math.prod(size or 2 for size in facts.grid) != 1:
        return None
    maps = (block.index_map for block in (*facts.inputs, *facts.outputs))
    asks = "program_id" in kernel.primitives or any(map(_depends, maps))
    return f"{kernel.name} has one program: grid {facts.grid}" if asks else None


def _one_step(kernel: KernelCall) -> str | None:
    if kernel.facts is None:
        return None
    turns = [
        eqn.params.get("length")  # None if it is not known
        for eqn in equations_inside(kernel.eqn)
        if eqn.primitive.name in ("scan", "while")
        and any(inner.primitive.name in ASYNCHRONOUS for inner in equations_inside(eqn))
    ]
    if any(count != 1 for count in turns):
        return None
    program = _one_program(kernel)
    if program is None and turns and math.prod(n or 2 for n in kernel.facts.grid) == 1:
        return f"the loop of {kernel.name} over its copies has one turn"
    return program


def _depends(index_map: Any) -> bool:
    """Return whether the result of an index map depends on the grid point."""
    jaxpr, _ = open_jaxpr(index_map)
    return bool(jaxpr.eqns) or any(var in jaxpr.invars for var in jaxpr.outvars)


# The number of programs of a grid, and of those that run in any order.


def parallel_programs(eqn: Any) -> int:
    """Count the programs of a ``pallas_call`` that a TPU may run in any order; 1 for other kernels.

    It is the product of the grid's dimensions whose semantics are parallel.
    """
    mapping, semantics = eqn.params.get("grid_mapping"), _semantics(eqn)
    if mapping is None or not semantics:
        return 1
    grid = mapping.grid[len(mapping.grid) - len(semantics) :]
    pairs = zip(grid, semantics, strict=False)
    return math.prod(size for size, kind in pairs if kind == "parallel" and isinstance(size, int))


def grid_programs(eqn: Any) -> int | None:
    """Count the programs of a ``pallas_call``; None if an operand gives a size of the grid.

    It is 1 for other equations.
    """
    mapping = eqn.params.get("grid_mapping")
    sizes = [] if mapping is None else list(mapping.grid)
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def has_semantics(eqn: Any) -> bool:
    """Return whether a ``pallas_call`` names the semantics of its grid dimensions."""
    return _semantics(eqn) is not None


def has_parallel_dimension(eqn: Any) -> bool:
    """Return whether the semantics of a grid dimension, of any size, are parallel."""
    return "parallel" in (_semantics(eqn) or ())


def _semantics(eqn: Any) -> list[Any] | None:
    kinds = getattr(eqn.params.get("compiler_params"), "dimension_semantics", None)
    return None if kinds is None else [getattr(kind, "value", kind) for kind in kinds]


# The sizes of a kernel's blocks along the dims of its arguments.


#: Limit on the elements of a block along a dim: two larger ones cost too much.
MOST = 1024


def tiles_of(kernels: Iterable[KernelCall], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of blocks along each dim.

    Args:
      kernels: of one call.
      sizes: of dims of that call, all different: an axis of such a size is taken for the dim.

    Returns:
      The sizes of blocks by dim, ascending, without dims that are never cut. A kernel that copies
      by itself has no such blocks. Then it is the largest size of its scratch memory that divides
      the dim and is no dim itself.
    """
    names = {size: name for name, size in sizes.items()}
    tiles_by_dim: dict[str, set[int]] = {}
    for facts in (kernel.facts for kernel in kernels):
        pairs = [] if facts is None else list(_blocks(facts)) or list(_scratch(facts, names))
        for size, tile in pairs:
            if size in names and 1 < tile < size and tile <= MOST:
                tiles_by_dim.setdefault(names[size], set()).add(tile)
    return {name: tuple(sorted(tiles)) for name, tiles in tiles_by_dim.items()}


def _blocks(facts: GridFacts) -> Iterator[tuple[int, int]]:
    """Yield the size of each axis that is cut, with that of a block."""
    for block in (*facts.inputs, *facts.outputs):
        for size, (_, tile, _) in zip(block.shape, block.dims, strict=True):
            if tile < size:
                yield size, tile


def _scratch(facts: GridFacts, names: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """Yield the size of each axis that copies may cut, with that of a copy."""
    axes = {size for block in (*facts.inputs, *facts.outputs) for size in block.shape} & set(names)
    for _, aval in facts.scratch:
        shape = getattr(aval, "shape", ())
        copied = [size for size in shape if size not in names]
        for size in axes - set(shape):
            tiles = [tile for tile in copied if tile > 1 and size % tile == 0]
            if tiles:
                yield size, max(tiles)


# The number of buffers that a kernel uses in turns.


#: Two buffers are used again by any draw of three blocks; of more than so many, draws would be too
#: large, and they are rather something else.
_LEAST_BUFFERS, _MOST_BUFFERS = 3, 16


def buffers_of(kernel: KernelCall, devices: Collection[int] = ()) -> int:
    """Return how many buffers a kernel seems to use in turns; 0 if it uses two or none.

    It is the largest number of semaphores or barriers in an array, of buffers of a block, by which
    a number is divided for its remainder (also of steps that a sum takes over), and in kernels that
    copy by themselves of equal scratch buffers; without arrays of semaphores, also of slots of
    scratch memory.

    Args:
      kernel: the kernel.
      devices: sizes of the mesh; so many semaphores, or one fewer, are for them.
    """
    facts = kernel.facts
    counts = [block.buffers or 0 for block in (*facts.inputs, *facts.outputs)] if facts else []
    avals = list(_scratch_of(kernel))
    arrays = [aval for aval in avals if not _is_semaphore(aval)]
    several = [n for aval in avals if _is_semaphore(aval) for n in aval.shape]
    counts += _divisors(kernel.eqn)
    if kernel.asynchronous:
        counts += Counter((tuple(aval.shape), str(aval.dtype)) for aval in arrays).values()
        if not several:
            counts += [aval.shape[0] for aval in arrays if len(aval.shape) > 2]
    of_devices = {n - less for n in devices for less in (0, 1)}
    return max(
        (
            count
            for count in (*counts, *several)
            if _LEAST_BUFFERS <= count <= _MOST_BUFFERS and count not in of_devices
        ),
        default=0,
    )


def _scratch_of(kernel: KernelCall) -> Iterator[Any]:
    """Yield the avals of a kernel's scratch memory, semaphores and barriers."""
    operands = len(kernel.eqn.invars) + len(kernel.eqn.outvars)
    for jaxpr in sub_jaxprs(kernel.eqn):
        yield from (var.aval for var in jaxpr.invars[operands:])
    for eqn in equations_inside(kernel.eqn):
        if eqn.primitive.name == "run_scoped":
            for jaxpr in sub_jaxprs(eqn):
                yield from (var.aval for var in jaxpr.invars)


def _is_semaphore(aval: Any) -> bool:
    """Return whether a reference is to semaphores or barriers."""
    import jax

    return jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended)


def _divisors(kernel: Any) -> Iterator[int]:
    """Yield the constants by which a kernel divides integers for their remainders."""
    for eqn in equations_inside(kernel):
        name = eqn.primitive.name
        if name not in ("rem", "and") or eqn.outvars[0].aval.shape:
            continue
        for operand in eqn.invars[name == "rem" :]:
            if is_literal(operand) and isinstance(operand.val, int | np.integer):
                value = int(operand.val)
                power = value & (value + 1) == 0  # i & 3 is i % 4
                yield value if name == "rem" else value + 1 if power else 0


# Parts of a traced call that may hang or end the process which executes or simulates it.


#: Primitives that call Python code, which may do anything.
CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback"})

#: Arrays of more bytes than this may take more memory than there is.
LARGE_BYTES = 2**30

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "ne"})


@functools.lru_cache(maxsize=256)
def hazards(jaxpr: Any, *, simulated: bool = False) -> tuple[str, ...]:
    """Name the hazards of a closed jaxpr.

    A kernel with semaphores, DMAs or barriers may wait for ever; a while loop that does not count
    may never end; a callback may do anything; an array of more than 1 GiB may not fit.

    Args:
      jaxpr: the traced call.
      simulated: whether the simulator runs it, which ends waits and loops.
    """
    inner, _ = open_jaxpr(jaxpr)
    eqns = list(equations(inner))
    variables = [*inner.invars, *(var for eqn in eqns for var in eqn.outvars)]
    loops = [eqn for eqn in eqns if eqn.primitive.name == "while"]
    hazard = {
        "semaphores, DMAs or barriers": not simulated
        and any(kernel.asynchronous for kernel in kernel_calls(jaxpr)),
        "a while loop without a bound": not simulated and not all(map(_counts, loops)),
        "a callback": any(eqn.primitive.name in CALLBACKS for eqn in eqns),
        "an array of more than 1 GiB": any(_bytes(var.aval) > LARGE_BYTES for var in variables),
    }
    return tuple(name for name, present in hazard.items() if present)


def _bytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or not all(isinstance(size, int) for size in shape):
        return 0
    return math.prod(shape) * getattr(dtype, "itemsize", 1)


def _counts(eqn: Any) -> bool:
    """Return whether a ``while`` counts to a bound, as ``fori_loop`` makes it.

    Its condition compares one carried value with another that no iteration changes, and the body
    adds a constant to the first one.
    """
    condition, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    first = eqn.params["cond_nconsts"]
    carried = body.invars[eqn.params["body_nconsts"] :]
    test = _made_by(condition, condition.outvars[0])
    if test is None or test.primitive.name not in _COMPARISONS:
        return False
    changing: list[int] = []
    for operand in test.invars:
        var = _converted(condition, operand)
        if hasattr(var, "val"):
            continue
        if var not in condition.invars:
            return False
        number = condition.invars.index(var) - first
        if number >= 0 and _converted(body, body.outvars[number]) is not carried[number]:
            changing.append(number)
    return len(changing) == 1 and _steps(body, carried[changing[0]], body.outvars[changing[0]])


def _steps(body: Any, before: Any, after: Any) -> bool:
    """Return whether ``after`` is ``before`` plus or minus a constant that is not 0."""
    eqn = _made_by(body, _converted(body, after))
    if eqn is None or eqn.primitive.name not in ("add", "sub"):
        return False
    first, second = (_converted(body, var) for var in eqn.invars)
    if eqn.primitive.name == "add" and second is before:
        first, second = second, first
    return first is before and hasattr(second, "val") and bool(second.val != 0)


def _converted(jaxpr: Any, var: Any) -> Any:
    """Return the variable that another one is a conversion of, or the variable itself."""
    eqn = _made_by(jaxpr, var)
    while eqn is not None and eqn.primitive.name == "convert_element_type":
        var = eqn.invars[0]
        eqn = _made_by(jaxpr, var)
    return var


def _made_by(jaxpr: Any, var: Any) -> Any:
    """Return the equation that a variable is the result of, or None."""
    return next((eqn for eqn in jaxpr.eqns if any(var is out for out in eqn.outvars)), None)


# Kernels that a backend cannot run.


def is_for_gpus(kernel: KernelCall) -> bool:
    """Return whether a kernel is for GPUs: of Mosaic GPU, or with the parameters of Triton."""
    return platform_of(kernel.eqn) == "gpu"


def is_mosaic_gpu(kernel: KernelCall) -> bool:
    """Return whether a kernel is for Mosaic GPU: ``plgpu.kernel``, or memory spaces of it."""
    return written_for(kernel.eqn) == "Mosaic GPU"


def reaches_devices(kernel: KernelCall) -> bool:
    """Return whether a kernel copies to other devices, signals them, or uses their barrier."""
    return "get_barrier_semaphore" in kernel.primitives or any(
        map(names_a_device, equations_inside(kernel.eqn))
    )


def on_two_devices(kernels: Sequence[KernelCall]) -> str | None:
    """Say that a kernel met other devices on a mesh of two; None if none did."""
    for kernel in kernels:
        if kernel.devices == 2 and reaches_devices(kernel):
            return (
                f"{kernel.name} ran on 2 devices, where one neighbour is everybody: that a barrier "
                "hears from one only shows on 3 and more; run it on 3, 4 and 6 devices, too, as a "
                'KernelSpec with meshes="x" does'
            )
    return None


def _has_empty_operands(kernel: KernelCall) -> bool:
    """Return whether an operand or an output of a kernel has no elements."""
    atoms = (*kernel.eqn.invars, *kernel.eqn.outvars)
    return any(0 in getattr(atom.aval, "shape", ()) for atom in atoms)


def unsupported(
    kernels: Sequence[KernelCall], name: str, platform: str, *, interpreting: bool = False
) -> str | None:
    """Say why a backend cannot run some kernels, as far as their code shows it; None if it can.

    Args:
      kernels: the traced kernels.
      name: of the backend, without its target.
      platform: of the backend: ``"tpu"``, ``"gpu"`` or ``"any"``.
      interpreting: whether it is an interpreter of JAX. These divide by the sizes of blocks.
    """
    for kernel in kernels:
        if interpreting and _has_empty_operands(kernel):
            return (
                f"needs a simulator such as tpu-sim: {name} cannot run {kernel.name} on arrays "
                "without elements"
            )
        if platform != "gpu" and is_mosaic_gpu(kernel):
            return f"needs a GPU backend such as gpu-sim: {kernel.name} is a Mosaic GPU kernel"
        if name == "interpret" and reaches_devices(kernel):
            return (
                "needs tpu-sim or tpu-interpret: interpret cannot run the signals and copies of "
                f"{kernel.name} to other devices"
            )
    return None


# Functions whose kernels only move numbers.

#: Primitives of kernels that compute nothing: they move, choose or convert, or order what does.
_MOVES = frozenset(
    {
        *("broadcast_in_dim", "broadcasted_iota", "concatenate", "convert_element_type", "copy"),
        *("dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "get", "iota", "load"),
        *("masked_load", "masked_swap", "multiple_of", "pad", "reshape", "rev", "scatter"),
        *("select_n", "slice", "split", "squeeze", "store", "swap", "transpose"),
    }
)

#: Primitives outside of kernels that compute from many numbers, or functions of one.
_WORK = frozenset(
    {
        *("add", "conv_general_dilated", "cumsum", "div", "dot_general", "erf", "exp", "exp2"),
        *("integer_pow", "log", "logistic", "max", "min", "mul", "pow", "ragged_dot_general"),
        *("reduce_max", "reduce_min", "reduce_sum", "rsqrt", "sqrt", "square", "sub", "tanh"),
    }
)

#: Operations that change nothing for this number as their second operand.
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "integer_pow": 1}


def only_copies(call: KernelCall) -> bool:
    """Return whether a kernel stores numbers only that it has loaded: it computes none.

    Arithmetic with indices is no computation, nor is adding 0 or multiplying by 1.
    """
    outputs = [getattr(aval, "dtype", None) for aval in call.eqn.params.get("out_avals", ())]
    integers = not outputs or any(getattr(dtype, "kind", "i") in "iub" for dtype in outputs)
    return not any(_computes(eqn, integers=integers) for eqn in equations_inside(call.eqn))


def _computes(eqn: Any, *, integers: bool) -> bool:
    """Return whether an equation makes other numbers, in an array."""
    name = eqn.primitive.name
    if name == "addupdate" or "mma" in name:
        return True
    if name in _MOVES or any(sub_jaxprs(eqn)):
        return False
    dtypes = [var.aval.dtype for var in eqn.outvars if getattr(var.aval, "shape", ())]
    kinds = {getattr(dtype, "kind", "") for dtype in dtypes} - {"b", *("" if integers else "iu")}
    if not kinds:
        return False
    neutral = _NEUTRAL.get(name)
    return neutral is None or not _is_number(eqn.invars[-1], neutral)


def _is_number(atom: Any, number: int) -> bool:
    return is_literal(atom) and np.ndim(atom.val) == 0 and bool(atom.val == number)


def work_outside(jaxpr: Any) -> list[Any]:
    """List the equations outside of all kernels that compute arrays of floats, products first."""
    kernels = KERNEL_PRIMITIVES | FOREIGN_PRIMITIVES
    work = [
        eqn
        for eqn in equations(jaxpr, into=lambda eqn: eqn.primitive.name not in kernels)
        if eqn.primitive.name in _WORK and _computes(eqn, integers=False)
    ]
    return sorted(work, key=lambda eqn: eqn.primitive.name not in _PRODUCTS)


_PRODUCTS = frozenset({"conv_general_dilated", "dot_general", "ragged_dot_general"})
