"""Reject kernels of the Triton route that do not run on a GPU, whatever the operands hold.

``require_lowering`` runs JAX's lowering to Triton (``jax/_src/pallas/triton/lowering.py``), which
``jaxlib`` has on every machine and which takes some milliseconds. So exactly those kernels are
refused that the installed JAX refuses for a GPU. ``require_whole_products`` rejects products that
Triton gets wrong, and ``shared_memory_findings`` reports a block that needs more shared memory than
the chip has.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.chips import GPUS, TARGETS, OperandMemory, gpu_bytes, shared_memory_excess
from pallas_sim.compat.compilers import lowering_to_triton
from pallas_sim.compat.jaxprs import equations, is_literal, open_jaxpr, sub_jaxprs
from pallas_sim.compat.source import source_line
from pallas_sim.dtypes import FLOAT32, bit_width, is_integer
from pallas_sim.eager import bind
from pallas_sim.errors import KernelError, SimulationError, one_line, refuse
from pallas_sim.evaluation import CALLS
from pallas_sim.findings import Finding, read
from pallas_sim.gpu.tensor_cores import dot_operands
from pallas_sim.pallas_calls import PreparedKernel
from pallas_sim.tracing import tracing_for

#: The chip that JAX lowers for, by the least compute capability. JAX does not know every chip
#: (``jax/_src/pallas/triton/gpu_info.py``), and its lowering depends on the capability only.
_CHIPS = {0: "a100", 9: "h100", 10: "b200"}

#: The most elements of an array in Triton (``maxTensorNumElements`` in triton/Dialect/Triton/IR).
_MOST = 1 << 20


def require_lowering(equation: Any, target: str) -> None:
    """Reject a ``pallas_call`` that JAX does not lower to Triton.

    Args:
      equation: JAX's.
      target: name of the chip.

    Raises:
      SimulationError: JAX refuses to lower it. The message has the line, and the shape of an array
        whose size Triton does not allow.
    """
    import jax

    avals = [var.aval for var in equation.invars]
    kernel = equation.replace(params={**equation.params, "interpret": False, "debug": False})
    wide = any(aval.dtype.itemsize == 8 for aval in (*avals, *(v.aval for v in kernel.outvars)))
    operands = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    chip = _CHIPS[max(least for least in _CHIPS if least <= GPUS[target].capability)]

    def call(*operands: Any) -> Any:
        # A kernel may close over references, which become arrays when JAX lowers the function.
        pairs = zip(operands, avals, strict=True)
        return bind(kernel, [jax.new_ref(x) if _is_reference(aval) else x for x, aval in pairs])

    with (
        warnings.catch_warnings(),
        tracing_for(TARGETS[chip]),
        jax.enable_x64(True) if wide else nullcontext(),
        lowering_to_triton() as lowered,
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # of the Triton route
        try:
            jax.jit(call).trace(*operands).lower(lowering_platforms=("cuda",))
        except Exception as error:  # the lowering may raise anything
            raise _refusal(equation, lowered, error) from error
    for eqn in equations(kernel.params["jaxpr"]):
        _require_wide(eqn, source_line(eqn) or source_line(equation) or "")


#: What Triton makes an instruction of LLVM of, which has no numbers of 8 bits.
_OF_WIDE = frozenset(
    {
        *("add", "sub", "mul", "rem", "max", "min", "neg", "square", "integer_pow", "exp"),
        *("lt", "le", "gt", "ge", "eq", "ne", "reduce_sum", "reduce_max", "reduce_min"),
    }
)


def _require_wide(eqn: Any, line: str) -> None:
    """Reject arithmetic of float8, which Triton lowers, and LLVM refuses: LLVM has bytes for it."""
    if not eqn.invars or not eqn.outvars:
        return
    name = eqn.primitive.name
    dtype, result = (str(getattr(var.aval, "dtype", "")) for var in (eqn.invars[0], eqn.outvars[0]))
    if not dtype.startswith("float8"):
        return
    converts = name == "convert_element_type" and result.startswith("float8") and result != dtype
    if name in _OF_WIDE or converts:
        what = f"convert {dtype} to {result}" if converts else f"compute {name} of {dtype}"
        refuse(f"Triton does not {what}: convert to float32 before, and back afterwards", line)


def _refusal(equation: Any, lowered: Sequence[Any], error: Exception) -> SimulationError:
    """Make JAX's error one with the line, and the array if its size is the reason.

    Args:
      equation: of the ``pallas_call``.
      lowered: the equations that JAX was lowering, one inside of the other; empty if there was
        none, as when it verifies the lowered kernel as a whole.
      error: that JAX raised.
    """
    lines = [line for eqn in (equation, *lowered) if (line := source_line(eqn))]
    line = lines[-1] if lines else ""
    wrong: list[tuple[str, Any]] = []
    if lowered:
        wrong = [(line, aval) for aval in _arrays(lowered[-1]) if _is_refused(aval)]
    elif equation.params["jaxpr"].eqns:
        wrong = [(at, aval) for at, aval in _all_arrays(equation, line) if _is_refused(aval)]
        wrong = [(at, aval) for at, aval in wrong if _is_named(at, str(error))] or wrong
    if wrong and not isinstance(error, NotImplementedError):
        line, aval = wrong[0]
        refusal = SimulationError(_size_refused(aval))
    else:
        what = lowered[-1] if lowered else equation
        arrays = ", ".join(map(_array, _arrays(what, what.invars) or _arrays(what)))
        refusal = SimulationError(
            f"JAX does not lower {what.primitive.name} of {arrays} to Triton, so that no GPU runs "
            f"this kernel ({one_line(error)}); use another operation, or plgpu.kernel of Mosaic GPU"
        )
    refusal.at(line, "")
    return refusal


def _size_refused(aval: Any) -> str:
    size = math.prod(aval.shape)
    if not size:
        return (
            f"Triton refuses {_array(aval)}: an array in a kernel has elements; return before the "
            "pallas_call where a size is 0"
        )
    if size > _MOST:
        return (
            f"Triton refuses {_array(aval)}, which has {size:,} elements: an array in a kernel has "
            f"at most {_MOST:,}; use smaller blocks"
        )
    padded = [1 << (dim - 1).bit_length() for dim in aval.shape]
    return (
        f"Triton refuses {_array(aval)}, which has {size:,} elements: the size of every array in a "
        f"kernel is a power of two; use {aval.dtype}{padded}, and mask what is too much "
        "(mask= of plgpu.load and plgpu.store)"
    )


def _is_reference(aval: Any) -> bool:
    return hasattr(aval, "inner_aval")


def _is_refused(aval: Any) -> bool:
    size = math.prod(aval.shape)
    return not size or bool(size & (size - 1)) or size > _MOST


def _is_named(line: str, diagnostic: str) -> bool:
    """Return whether MLIR names ``file:line`` among the locations of an operation."""
    source = read(line)
    return source is not None and f'"{source.file}":{source.line}:' in diagnostic


def _arrays(eqn: Any, among: Sequence[Any] = ()) -> list[Any]:
    """Return the arrays among an equation's results and operands, or among some of these."""
    avals = (var.aval for var in among or (*eqn.outvars, *eqn.invars))
    return [aval for aval in avals if hasattr(aval, "dtype") and not _is_reference(aval)]


def _array(aval: Any) -> str:
    return f"{aval.dtype}{list(aval.shape)}"


def _all_arrays(equation: Any, around: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays inside of an equation, each with the ``file:line`` of its operation."""
    for jaxpr in sub_jaxprs(equation):
        for eqn in jaxpr.eqns:
            line = source_line(eqn) or around
            yield from ((line, aval) for aval in _arrays(eqn))
            yield from _all_arrays(eqn, line)


# Products that have fewer terms than an instruction of the tensor core.
#
# ``mma.m16n8k16`` adds up 16 products of bfloat16, float16 and (after a conversion) float8, ``k8``
# 8 of tf32, and ``k32`` 32 of int8. Triton's own language refuses fewer, Pallas does not. With half
# as many, Triton passes each register twice to the instruction, and the result is twice the
# product. So does the PTX that XLA makes for an A100, an H100 and a B200, whatever the rows and
# columns (JAX 0.12.0.1; 0.11.2 for an H100). With fewer, the compiler of JAX 0.12.0.1 ends with
# "Invalid bases passed to LinearLayout", and that of 0.11.2 repeats registers, too. Products of
# float32 in the highest precision use no tensor core.


#: The error of a kernel, or None, by its jaxpr.
_PROBLEMS = weakref.WeakKeyDictionary[Any, str | None]()


def require_whole_products(kernel: PreparedKernel) -> None:
    """Reject a kernel with a product that Triton gets wrong, or cannot compile.

    Raises:
      KernelError: a product has fewer terms than an instruction of the tensor core.
    """
    body = kernel.equation.params["jaxpr"]
    if body not in _PROBLEMS:
        products = (eqn for eqn in equations(body) if eqn.primitive.name == "dot_general")
        _PROBLEMS[body] = next(filter(None, map(_problem, products)), None)
    problem = _PROBLEMS[body]
    if problem is not None:
        raise KernelError(problem)


def _problem(eqn: Any) -> str | None:
    """Say what is wrong with a product, or None."""
    lhs, rhs = (atom.aval for atom in eqn.invars)
    (axes, _), _ = eqn.params["dimension_numbers"]
    if len(axes) != 1 or lhs.dtype != rhs.dtype:
        return None
    terms, least = lhs.shape[axes[0]], _terms(lhs.dtype, eqn.params["precision"])
    if terms >= least:
        return None
    what = f"the product of {lhs.dtype}{list(lhs.shape)} and {rhs.dtype}{list(rhs.shape)}"
    line = source_line(eqn)
    fate = "Triton cannot compile it, or adds them up several times"
    if 2 * terms == least:
        fate = "Triton gives it each of them twice, and the result is twice the product"
    return (
        f"{what}{f' at {line}' if line else ''} has {terms} terms, and an instruction of the "
        f"tensor core adds up {least}: {fate}. Use blocks of {least}, or pad with zeros."
    )


def _terms(dtype: Any, precision: Any) -> int:
    """Return how many terms an instruction of the tensor core adds up; 0 without tensor core."""
    operands, exact = dot_operands(dtype, precision)
    if exact:
        return 0
    if operands is None:  # several products of TF32 or bfloat16 for one of float32
        return 8 if "TF32" in precision.name else 16
    if is_integer(operands):
        return 32 if bit_width(operands) == 8 else 0
    return {32: 8, 16: 16, 8: 16}.get(bit_width(operands), 0)


# Shared memory of a block of the Triton route: an estimate, if no compiler counts it.
#
# Triton keeps operands of products there (docs/compiling.md has the formula, and how well it agrees
# with the compiler):
#
# - In a loop, the blocks that are loaded for a product, for the next ``num_stages - 1`` steps. If
#   ``wgmma`` or ``tcgen05.mma`` reads them from there, for one step more, because these still run
#   when the next block arrives. If the index of a block is loaded in the loop, too, the steps are
#   divided among the two loads (``TritonGPU/Transforms/Pipeliner`` in Triton).
# - Other operands of products, unless the instruction takes them from registers: the left one of
#   ``wgmma``; for ``mma.sync`` what is loaded and then converted, and the left one if each warp has
#   rows of its own. Those that the loop makes follow each other in one place.
#
# Memory in which values change their layout, and that of reductions, is not counted: it is small,
# or shares its place with blocks. On Blackwell, operands that are rounded to tf32 are not counted,
# either, because some of them share a place.


#: Defaults of JAX's lowering to Triton.
_STAGES, _WARPS = 3, 4

_LOADS = frozenset({"get", "masked_load"})

#: Primitives that leave a block where it is in shared memory.
_VIEWS = frozenset({"transpose", "reshape", "squeeze", "expand_dims", "copy"})

#: Beginnings of the names of primitives that move elements between threads.
_MOVING = ("dot", "transpose", "reshape", "reduce", "cum", "arg", "sort", "gather", "concatenate")

#: Rows of ``wgmma``, and warps that issue it together; rows of ``mma.sync``.
_ROWS, _WARPGROUP, _WARP_ROWS = 64, 4, 16


@dataclass(frozen=True)
class SharedMemory:
    """The shared memory that a block takes.

    Attributes:
      estimate: bytes.
      most: bytes that it does not exceed, with the largest value that moves between threads.
      parts: names and bytes of the parts of the estimate.
    """

    estimate: int
    most: int
    parts: tuple[tuple[str, int], ...]


def shared_memory(jaxpr: Any, names: Sequence[str], params: Any, target: str) -> SharedMemory:
    """Estimate the shared memory of a block.

    Args:
      jaxpr: body of the kernel.
      names: of its parameters.
      params: its compiler parameters, or None.
      target: name of the chip.
    """
    inner, _ = open_jaxpr(jaxpr)
    walk = _Walk(
        capability=GPUS[target].capability,
        stages=getattr(params, "num_stages", None) or _STAGES,
        warps=getattr(params, "num_warps", None) or _WARPS,
        names=dict(zip(inner.invars, names, strict=False)),
    )
    region = _Region(steps=1)
    walk.run(inner, [_ValueOrigin()] * len(inner.invars), region)
    parts = walk.parts(region)
    estimate = _total(parts)
    return SharedMemory(estimate, estimate + walk.unsure + walk.largest, tuple(parts))


def shared_memory_findings(
    kernel: PreparedKernel, target: str, count: Callable[[Any], int | None] | None
) -> Iterator[Finding]:
    """Find a kernel whose block needs more shared memory than a chip has.

    Args:
      kernel: the kernel.
      target: name of the chip.
      count: returns a compiler's count of a kernel, by its equation, or None. It takes time, so it
        is called only if the kernel may need too much.
    """
    memory = shared_memory(
        kernel.equation.params["jaxpr"], kernel.names, kernel.facts.params, target
    )
    too_much = memory.most > GPUS[target].shared_per_block
    counted = count(kernel.equation) if count is not None and too_much else None
    needed = memory.estimate if counted is None else counted
    parts = [OperandMemory(*part) for part in memory.parts]
    excess = shared_memory_excess(parts, target, needed, estimated=counted is None)
    if excess is not None:
        yield excess.finding(kernel.name, kernel.line)


_Parts = list[tuple[str, int]]


def _total(parts: _Parts) -> int:
    return sum(size for _, size in parts)


@dataclass(frozen=True, eq=False)
class _Load:
    """A load from global memory.

    Attributes:
      name: of the operand.
      size: in bytes.
      depth: 1, or more if its index depends on other loads of the loop.
    """

    name: str
    size: int
    depth: int


@dataclass(frozen=True)
class _ValueOrigin:
    """Where a value comes from.

    Attributes:
      loads: the loads of the same loop that it depends on.
      view: the load that it is, apart from its layout.
      inside: whether the loop makes it.
      computed: whether a product or a reduction is in it.
    """

    loads: frozenset[_Load] = frozenset()
    view: _Load | None = None
    inside: bool = False
    computed: bool = False

    @property
    def name(self) -> str:
        """For messages."""
        names = {load.name for load in self.loads}
        return names.pop() if len(names) == 1 else "an operand of a product"


@dataclass
class _Region:
    """The body of a kernel, or of a loop in it.

    Attributes:
      steps: how many steps of the loop Triton overlaps; 1 for none.
      staged: the loads for products, and whether the products read them while the loop goes on.
      kept: the operands that the loop does not make.
      made: those that it makes.
      apart: parts of products that are not overlapped, and of loops inside.
    """

    steps: int
    staged: dict[_Load, bool] = field(default_factory=dict[_Load, bool])
    kept: dict[Any, tuple[str, int]] = field(default_factory=dict[Any, tuple[str, int]])
    made: _Parts = field(default_factory=_Parts)
    apart: list[_Parts] = field(default_factory=list[_Parts])


@dataclass
class _Walk:
    """Follows values through the body of a kernel.

    Attributes:
      capability: of the chip.
      stages: ``num_stages`` of the compiler parameters.
      warps: ``num_warps`` likewise.
      names: of the references, by variable.
      largest: bytes of the largest value so far that moves between threads.
      unsure: bytes of the largest operand that may be in shared memory and is not counted.
    """

    capability: int
    stages: int
    warps: int
    names: dict[Any, str]
    largest: int = 0
    unsure: int = 0

    def run(self, jaxpr: Any, ins: Sequence[_ValueOrigin], region: _Region) -> list[_ValueOrigin]:
        """Return the origins of a jaxpr's results for those of its inputs."""
        values = dict(zip(jaxpr.invars, ins, strict=True))

        def of(atom: Any) -> _ValueOrigin:
            return _ValueOrigin() if is_literal(atom) else values.get(atom, _ValueOrigin())

        for eqn in jaxpr.eqns:
            if eqn.primitive.name.startswith(_MOVING):
                atoms = (*eqn.invars, *eqn.outvars)
                self.largest = max([self.largest, *(_size(atom.aval) for atom in atoms)])
            outs = self._results(eqn, list(map(of, eqn.invars)), region)
            values.update(zip(eqn.outvars, outs, strict=False))
        return list(map(of, jaxpr.outvars))

    def parts(self, region: _Region) -> _Parts:
        """Return the parts of a region at the time when it takes the most."""
        # A block is loaded so many steps ahead of its use, and its index as many before that.
        depth = max((load.depth for load in region.staged), default=1)
        ahead = max(1, (region.steps - 1) // depth)
        parts = [
            (load.name, load.size * (ahead + running)) for load, running in region.staged.items()
        ]
        parts += [*region.kept.values(), *sorted(region.made, key=lambda part: -part[1])[:1]]
        return max([parts, *region.apart], key=_total)

    def _results(
        self, eqn: Any, ins: Sequence[_ValueOrigin], region: _Region
    ) -> Sequence[_ValueOrigin]:
        name, count = eqn.primitive.name, len(eqn.outvars)
        if name in _LOADS:
            indices = frozenset[_Load]().union(*(value.loads for value in ins))
            depth = 1 + max((load.depth for load in indices), default=0)
            operand = self.names.get(eqn.invars[0], "a block")
            load = _Load(operand, _size(eqn.outvars[0].aval), depth)
            return [_ValueOrigin(frozenset({load}), load, inside=True)]
        if name in ("scan", "while"):
            self._loop(eqn, region)
            return [_ValueOrigin(inside=True, computed=True)] * count
        bodies = [open_jaxpr(body)[0] for body in sub_jaxprs(eqn)]
        if name == "cond":
            for body in bodies:
                self._pass_names(eqn.invars[1:], body)
                self.run(body, ins[1:], region)
            return [_joined(ins[1:], computed=True)] * count
        if name in CALLS and len(bodies) == 1 and len(bodies[0].invars) == len(ins):
            self._pass_names(eqn.invars, bodies[0])
            return self.run(bodies[0], ins, region)
        if name in _VIEWS and len(ins) == count == 1:
            return ins
        if name == "dot_general":
            self._product(eqn, ins, region)
        computed = name == "dot_general" or name.startswith(("reduce", "cum", "arg"))
        return [_joined(ins, computed=computed)] * count

    def _pass_names(self, operands: Sequence[Any], body: Any) -> None:
        for outer, inner in zip(operands, body.invars, strict=False):
            if not is_literal(outer) and outer in self.names:
                self.names[inner] = self.names[outer]

    def _loop(self, eqn: Any, region: _Region) -> None:
        is_while = eqn.primitive.name == "while"
        body, _ = open_jaxpr(eqn.params["body_jaxpr" if is_while else "jaxpr"])
        self._pass_names(eqn.invars[eqn.params["cond_nconsts"] if is_while else 0 :], body)
        overlaps = _counts(eqn) if is_while else eqn.params["length"] != 1
        inner = _Region(self.stages if overlaps else 1)
        self.run(body, [_ValueOrigin()] * len(body.invars), inner)
        region.apart.append(self.parts(inner))

    def _product(self, eqn: Any, ins: Sequence[_ValueOrigin], region: _Region) -> None:
        parts = [
            (value.name, _size(atom.aval)) for atom, value in zip(eqn.invars, ins, strict=True)
        ]
        rows, dtype = _rows(eqn), np.dtype(eqn.invars[0].aval.dtype)
        takes_tf32 = dot_operands(dtype, eqn.params.get("precision")) == (FLOAT32, False)
        rounded = dtype == FLOAT32 and takes_tf32
        tensor_core = rounded or dtype.itemsize <= 2
        engine = tensor_core and self._has_engine(rows, dtype.itemsize)
        if region.steps == 1:
            # Operands that are rounded take the same place one after the other.
            region.apart.append([max(parts, key=lambda part: part[1])] if rounded else parts)
            return
        for side, (atom, value) in enumerate(zip(eqn.invars, ins, strict=True)):
            in_place = value.view is not None and not rounded
            for load in value.loads:
                running = engine and in_place
                region.staged[load] = region.staged.get(load, False) or running
            apart = side == 0 and rows >= _WARP_ROWS * self.warps
            in_registers = side == 0 if engine else tensor_core and (apart or not value.computed)
            if not value.inside:
                region.kept[atom] = parts[side]
            elif in_place or in_registers:
                continue
            elif engine and rounded and self.capability >= 10:
                self.unsure = max(self.unsure, parts[side][1])
            else:
                region.made.append(parts[side])

    def _has_engine(self, rows: int, itemsize: int) -> bool:
        """Return whether ``wgmma`` or ``tcgen05.mma`` computes a product of the tensor core.

        Triton's ``wgmma`` takes no float8 operand from where it was loaded.
        """
        if self.capability < 9 or (self.capability == 9 and itemsize == 1):
            return False
        return rows > 0 and rows % _ROWS == 0 and self.warps % _WARPGROUP == 0


def _rows(eqn: Any) -> int:
    """The rows of the left operand of a product."""
    shape = eqn.invars[0].aval.shape
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return math.prod(shape) // max(1, shape[contracted[0]])


def _counts(eqn: Any) -> bool:
    """Return whether a ``while`` counts up to a bound, as that of ``fori_loop``.

    JAX's lowering makes such a loop an ``scf.for``, and Triton overlaps the steps of no other.
    """
    cond = open_jaxpr(eqn.params["cond_jaxpr"])[0]
    names = [inner.primitive.name for inner in cond.eqns]
    return eqn.params["cond_nconsts"] == 0 and names == ["lt"]


def _joined(values: Sequence[_ValueOrigin], *, computed: bool) -> _ValueOrigin:
    return _ValueOrigin(
        frozenset[_Load]().union(*(value.loads for value in values)),
        inside=any(value.inside for value in values),
        computed=computed or any(value.computed for value in values),
    )


def _size(aval: Any) -> int:
    """Return the bytes of a value; 0 for a reference and whatever else is no array."""
    return gpu_bytes(aval) if hasattr(aval, "dtype") and not _is_reference(aval) else 0
