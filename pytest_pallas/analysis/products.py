"""The precision that a program asks for products of float32, and how its products are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim.chips import Accumulation, Accumulations
from pallas_sim.compat.grids import written_for
from pallas_sim.compat.jaxprs import KERNEL_PRIMITIVES, sub_jaxprs, without_dead_code
from pytest_pallas.analysis.kernel_calls import kernel_calls
from pytest_pallas.numerics.precision import FLOAT32_BITS, ProductPrecision

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


def is_product(eqn: Any) -> bool:
    """Whether an equation multiplies arrays of float32 and adds the products up."""
    return eqn.primitive.name in _PRODUCTS and all(
        atom.aval.dtype == np.float32 for atom in eqn.invars[:2]
    )


def lowest_precision(jaxpr: Any) -> ProductPrecision | None:
    """The lowest precision that a program asks of a GPU for its products of float32.

    Dead code asks for nothing.

    Triton multiplies float32 as tf32 unless the precision is ``HIGHEST`` or names an algorithm
    (``_dot_general_lowering`` in ``jax/_src/pallas/triton/lowering.py``, JAX 0.11.2 and 0.12.0.1).
    ``jax.lax.Precision`` documents the same of products outside of kernels. Kernels for Mosaic GPU
    and for TPUs are left out.

    Args:
      jaxpr: what JAX traced, open or closed.

    Returns:
      None if no product has less than float32.
    """
    asked = (_asked(eqn.params) for eqn in _products(without_dead_code(jaxpr)))
    return min((each for each in asked if each is not None), key=_bits, default=None)


def kept_bits(params: Mapping[str, Any], default: ProductPrecision) -> int:
    """The fractional bits that a product keeps of an operand, at least those of ``default``.

    Args:
      params: of the equation.
      default: the precision of a product that asks for none.
    """
    asked = default if _is_default(params["precision"]) else _asked(params)
    return max(_bits(asked), default.bits)


#: The instructions of tensor cores by the primitives of kernels.
_INSTRUCTIONS = {
    "dot_general": "dot",
    "mma": "mma",
    "wgmma_ref": "wgmma",
    "tcgen05_mma": "tcgen05_mma",
}


def coarsest_sums(jaxpr: Any, accumulations: Accumulations) -> ProductSums | None:
    """How the kernels of a program add products: of several ways, that with the fewest bits.

    Args:
      jaxpr: what JAX traced, open or closed.
      accumulations: how the chip adds.

    Returns:
      None if all sums are those of float32, as far as that is known.
    """
    found = [
        ProductSums(accumulations[key], int(ml_dtypes.finfo(dtype).minexp))
        for kernel in kernel_calls(without_dead_code(jaxpr))
        for body in sub_jaxprs(kernel.eqn)
        for key, dtype in _operands(body)
        if key in accumulations
    ]
    return min(found, key=lambda sums: sums.accumulation.fraction_bits, default=None)


def _operands(jaxpr: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """The instruction and the dtype of each operand of a product."""
    for eqn in jaxpr.eqns:
        instruction = _INSTRUCTIONS.get(eqn.primitive.name)
        if instruction is not None:
            dtypes = [getattr(atom.aval, "dtype", None) for atom in eqn.invars]
            for dtype in dict.fromkeys(dtypes):
                if not isinstance(dtype, np.dtype):
                    continue  # of a barrier
                name = "tf32" if instruction == "dot" and dtype == np.float32 else dtype.name
                yield (instruction, name), dtype
        for inner in sub_jaxprs(eqn):
            yield from _operands(inner)


def _products(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if is_product(eqn):
            yield eqn
        elif eqn.primitive.name not in KERNEL_PRIMITIVES or written_for(eqn) in ("", "Triton"):
            for inner in sub_jaxprs(eqn):
                yield from _products(inner)


def _asked(params: Mapping[str, Any]) -> ProductPrecision | None:
    """The precision of a product of float32 on a GPU; None for float32."""
    asked = params["precision"]
    if _is_default(asked):
        return _TF32
    if isinstance(asked, tuple):
        names = {getattr(each, "name", "") for each in asked}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return None if names == {"HIGHEST"} else _TF32
    return _ALGORITHMS.get(getattr(asked, "name", ""))


def _is_default(asked: Any) -> bool:
    parts: Any = asked if isinstance(asked, tuple) else (asked,)
    return all(each is None or getattr(each, "name", "") == "DEFAULT" for each in parts)


def _bits(precision: ProductPrecision | None) -> int:
    return FLOAT32_BITS if precision is None else precision.bits
