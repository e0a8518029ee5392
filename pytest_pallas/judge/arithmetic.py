"""What of a kernel has less precision than float32: its products, their sums, and its functions.

``lowest_precision``, ``kept_precision`` and ``arithmetic_of`` read it off a trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim import functions_alike, passes_of
from pallas_sim.chips import Accumulation, Accumulations
from pallas_sim.traces import (
    KERNEL_PRIMITIVES,
    equations,
    equations_inside,
    sub_jaxprs,
    without_dead_code,
    written_for,
)
from pytest_pallas.grid.kernel_calls import kernel_calls
from pytest_pallas.judge.tolerance import FLOAT32_BITS, ProductPrecision

_TF32 = ProductPrecision("tf32", 10)

#: The algorithms of JAX that keep less than float32 of an operand, by name. ``X3`` adds up three
#: products of parts of the operands, which have 11 significant bits in tf32 and 8 in bfloat16.
_ALGORITHMS = {
    "TF32_TF32_F32": _TF32,
    "TF32_TF32_F32_X3": ProductPrecision("3 tf32", 21),
    "F16_F16_F16": ProductPrecision("float16", 10),
    "F16_F16_F32": ProductPrecision("float16", 10),
    "BF16_BF16_BF16": ProductPrecision("bfloat16", 7),
    "BF16_BF16_F32": ProductPrecision("bfloat16", 7),
    "BF16_BF16_F32_X3": ProductPrecision("3 bfloat16", 15),
}

#: What TPUs keep, by their passes. With three, the product of what both operands have beyond the
#: upper 16 bits is missing; with six, products of less than 2^-22.
_PASSES = {
    1: ProductPrecision("bfloat16", 7, 1),
    3: ProductPrecision("3 passes of bfloat16", 15, 3),
    6: ProductPrecision("6 passes of bfloat16", 22, 6),
}

_PRODUCTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})


@dataclass(frozen=True)
class ProductSums:
    """How a kernel's products are added.

    Attributes:
      accumulation: of the instruction.
      least: the smallest exponent of the format of its operands.
    """

    accumulation: Accumulation
    least: int


@dataclass(frozen=True)
class ChipArithmetic:
    """What of a kernel has errors that the chip makes, beyond those of float32.

    Attributes:
      sums: how its products are added; None if as in float32.
      functions: the primitives that are functions of the chip, or mean the same ones.
      approximate: those of them that the kernel asks to be approximate.
    """

    sums: ProductSums | None = None
    functions: frozenset[str] = frozenset()
    approximate: frozenset[str] = frozenset()


def is_product(eqn: Any) -> bool:
    """Return whether an equation multiplies arrays of float32 and adds the products up."""
    return eqn.primitive.name in _PRODUCTS and all(
        atom.aval.dtype == np.float32 for atom in eqn.invars[:2]
    )


def lowest_precision(jaxpr: Any, platform: str = "gpu") -> ProductPrecision | None:
    """Return the lowest precision that a program asks of a chip for its products of float32.

    Dead code asks for nothing.

    Triton multiplies float32 as tf32 unless the precision is ``HIGHEST`` or names an algorithm
    (``_dot_general_lowering`` in ``jax/_src/pallas/triton/lowering.py``, JAX 0.11.2 and 0.12.0.1).
    ``jax.lax.Precision`` documents the same of products outside of kernels. Kernels for Mosaic GPU
    are left out. TPUs multiply in passes, in kernels and outside.

    Args:
      jaxpr: what JAX traced, open or closed.
      platform: ``"gpu"`` or ``"tpu"``.

    Returns:
      None if no product has less than float32.
    """
    written = ("", "TPUs") if platform == "tpu" else ("", "Triton")
    precisions = (
        _precision_of(eqn.params, platform) for eqn in _products(without_dead_code(jaxpr), written)
    )
    return min(
        (precision for precision in precisions if precision is not None), key=_bits, default=None
    )


def kept_precision(params: Mapping[str, Any], default: ProductPrecision) -> ProductPrecision | None:
    """Return the precision of a product, at least that of ``default``; None for float32.

    Args:
      params: of the equation.
      default: the precision of a product that asks for none.
    """
    if _is_default(params["precision"]):
        return default
    precision = _precision_of(params, "tpu" if default.passes else "gpu")
    return max(precision, default, key=_bits)


#: The instructions of tensor cores by the primitives of kernels.
_INSTRUCTIONS = {
    "dot_general": "dot",
    "mma": "mma",
    "wgmma_ref": "wgmma",
    "tcgen05_mma": "tcgen05_mma",
}


def coarsest_sums(jaxpr: Any, accumulations: Accumulations) -> ProductSums | None:
    """Find how the kernels of a program add products: the way with the fewest bits.

    Args:
      jaxpr: what JAX traced, open or closed.
      accumulations: how the chip adds.

    Returns:
      None if all sums are those of float32, as far as that is known.
    """
    sums_of_kernels = [
        ProductSums(accumulations[key], int(ml_dtypes.finfo(dtype).minexp))
        for kernel in kernel_calls(without_dead_code(jaxpr))
        for body in sub_jaxprs(kernel.eqn)
        for key, dtype in _operands(body)
        if key in accumulations
    ]
    return min(sums_of_kernels, key=lambda sums: sums.accumulation.fraction_bits, default=None)


def arithmetic_of(jaxpr: Any, accumulations: Accumulations) -> ChipArithmetic:
    """Find what the kernels of a program compute with errors of the chip.

    Args:
      jaxpr: what JAX traced, open or closed.
      accumulations: how the chip adds.
    """
    functions, approximate = set[str](), set[str]()
    for kernel in kernel_calls(without_dead_code(jaxpr)):
        inside = equations_inside(kernel.eqn)
        names = {eqn.primitive.name for eqn in inside if _is_of_float32(eqn)}
        functions |= names
        if getattr(kernel.eqn.params.get("compiler_params"), "approx_math", False):
            approximate |= names
    return ChipArithmetic(
        coarsest_sums(jaxpr, accumulations),
        functions_alike(functions),
        functions_alike(approximate),
    )


def _is_of_float32(eqn: Any) -> bool:
    return all(getattr(var.aval, "dtype", None) == np.float32 for var in eqn.outvars)


def _operands(jaxpr: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield the instruction and the dtype of each factor of a product."""
    for eqn in equations(jaxpr):
        instruction = _INSTRUCTIONS.get(eqn.primitive.name)
        if instruction is not None:
            first = 0 if instruction == "dot" else 1  # behind the sums
            for dtype in dict.fromkeys(atom.aval.dtype for atom in eqn.invars[first : first + 2]):
                name = "tf32" if instruction == "dot" and dtype == np.float32 else dtype.name
                yield (instruction, name), dtype


def _products(jaxpr: Any, written: Collection[str]) -> Iterator[Any]:
    """Yield the products of float32, also of kernels that are written for these."""

    def into(eqn: Any) -> bool:
        return eqn.primitive.name not in KERNEL_PRIMITIVES or written_for(eqn) in written

    return filter(is_product, equations(jaxpr, into=into))


def _precision_of(params: Mapping[str, Any], platform: str) -> ProductPrecision | None:
    """Return the precision of a product of float32 on a GPU or TPU; None for float32."""
    precision = params["precision"]
    if platform == "tpu":
        return _PASSES.get(passes_of(precision))
    if _is_default(precision):
        return _TF32
    if isinstance(precision, tuple):
        names = {getattr(operand, "name", "") for operand in precision}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return None if names == {"HIGHEST"} else _TF32
    return _ALGORITHMS.get(getattr(precision, "name", ""))


def _is_default(precision: Any) -> bool:
    parts: Any = precision if isinstance(precision, tuple) else (precision,)
    return all(part is None or getattr(part, "name", "") == "DEFAULT" for part in parts)


def _bits(precision: ProductPrecision | None) -> int:
    return FLOAT32_BITS if precision is None else precision.bits
