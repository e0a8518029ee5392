"""The operands of a kernel under the names that its body gives them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pallas_sim.compat.jaxprs import space_of, sub_jaxprs
from pytest_pallas.analysis.kernel_calls import KernelCall


@dataclass(frozen=True)
class NamedOperand:
    """What one parameter of a kernel's body refers to.

    Attributes:
      name: of the parameter.
      dtype: as numpy spells it, or "" for a semaphore.
      shape: of the block, window or scratch buffer.
      space: memory space in small letters, such as ``"vmem"``.
      nbytes: its size, of one buffer.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    space: str
    nbytes: int

    def __str__(self) -> str:
        """As ``x_ref f32[8,128]``, with the memory space where it is not the ordinary one."""
        dtype = _short_dtype(self.dtype, "i") if self.dtype else "semaphore"
        shape = f"[{','.join(map(str, self.shape))}]" if self.dtype else ""
        ordinary = self.space in ("", "vmem", "gmem", "default", "none")
        return f"{self.name} {dtype}{shape}" + ("" if ordinary else f" in {self.space.upper()}")


@dataclass(frozen=True)
class NamedOperands:
    """All operands of a kernel in the order of its body's parameters.

    Attributes:
      all: scalars that are prefetched, inputs, outputs and scratch.
      inputs: how many are scalars or inputs.
      outputs: how many are outputs; 0 where the outputs are not known.
    """

    all: tuple[NamedOperand, ...]
    inputs: int
    outputs: int

    def input(self, position: int) -> str:
        """Name of an input, counted with the scalars before it; "" if there is none."""
        return self.all[position].name if position < self.inputs else ""

    def output(self, position: int) -> str:
        """Name of an output, or ""."""
        return self.all[self.inputs + position].name if position < self.outputs else ""

    def scratch(self, dtype: str, shape: tuple[int, ...]) -> str:
        """Name of the only scratch buffer of that type, ``dtype`` as XLA spells it; else ""."""
        names = [
            operand.name
            for operand in self.all[self.inputs + self.outputs :]
            if operand.shape == shape and _short_dtype(operand.dtype, "s") == dtype
        ]
        return names[0] if len(names) == 1 else ""


NONE = NamedOperands((), 0, 0)


def operands_of(call: KernelCall) -> NamedOperands:
    """The operands of a kernel, or ``NONE`` where JAX does not keep their names.

    ``grid_mapping`` and ``debug_info.arg_names`` were seen in JAX 0.11.2 and 0.12.0.1.
    """
    body: Any = next(sub_jaxprs(call.eqn), None)
    if body is None or not _parameters(body):
        return NONE
    found = (*_parameters(body), *_scoped(body))
    mapping = call.eqn.params.get("grid_mapping")
    if mapping is None or getattr(mapping, "num_dynamic_grid_bounds", 0):
        return NamedOperands(found, 0, 0)
    return NamedOperands(
        found, mapping.num_index_operands + mapping.num_inputs, int(mapping.num_outputs)
    )


def with_names(text: str, operands: NamedOperands) -> str:
    """A message with the names of parameters behind ``args[0]``, ``outputs`` and the like."""

    def named(match: re.Match[str]) -> str:
        position = int(match["position"] or match["number"] or 0)
        kind = match["kind"] or match["word"]
        one = operands.output if kind.startswith("output") else operands.input
        if kind == "outputs" and not match["position"] and operands.outputs != 1:
            return match[0]
        name = one(position)
        return f"{match[0]} ({name})" if name else match[0]

    return re.sub(
        r"\b(?P<kind>args|outputs)(?:\[(?P<position>\d+)\]|(?= in pallas_call))"
        r"|\b(?P<word>input|output) (?P<number>\d+)\b",
        named,
        text,
    )


def _parameters(jaxpr: Any) -> tuple[NamedOperand, ...]:
    names = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None)
    if names is None or len(names) != len(jaxpr.invars):
        return ()
    return tuple(_operand(str(n), v.aval) for n, v in zip(names, jaxpr.invars, strict=True))


def _scoped(jaxpr: Any) -> tuple[NamedOperand, ...]:
    """What ``pl.run_scoped`` allocates; ``plgpu.kernel`` makes its scratch buffers so."""
    return tuple(
        operand
        for eqn in jaxpr.eqns
        for inner in sub_jaxprs(eqn)
        for operand in (
            *(_parameters(inner) if eqn.primitive.name == "run_scoped" else ()),
            *_scoped(inner),
        )
    )


def _operand(name: str, aval: Any) -> NamedOperand:
    inner = getattr(aval, "inner_aval", aval)
    space = space_of(aval)
    shape = tuple(d for d in getattr(inner, "shape", ()) if isinstance(d, int))
    dtype = getattr(inner, "dtype", None)
    size = getattr(dtype, "itemsize", 0)
    return NamedOperand(
        name=name,
        dtype="" if dtype is None else str(dtype),
        shape=shape,
        space=space,
        nbytes=size * math.prod(shape) if isinstance(size, int) else 0,
    )


def _short_dtype(dtype: str, signed: str) -> str:
    """``f32`` for ``float32``; ``int8`` is ``i8`` to JAX and ``s8`` to XLA."""
    letters = (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", signed), ("complex", "c"))
    return next((new + dtype[len(old) :] for old, new in letters if dtype.startswith(old)), dtype)
