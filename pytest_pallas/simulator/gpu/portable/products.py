"""Products of the Triton route that have fewer terms than an instruction of the tensor core.

``mma.m16n8k16`` adds up 16 products of bfloat16, float16 and (after a conversion) float8, ``k8``
8 of tf32, and ``k32`` 32 of int8. Triton's own language refuses fewer, Pallas does not. Of half as
many, Triton gives the instruction each register twice, so that the result is twice the product.
That is so in the PTX that XLA makes for an A100, an H100 and a B200, whatever the rows and columns
(JAX 0.12.0.1; 0.11.2 for an H100). Of fewer, the compiler of JAX 0.12.0.1 ends with "Invalid bases
passed to LinearLayout", and that of 0.11.2 repeats registers, too. Products of float32 in the
highest precision use no tensor core.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from pytest_pallas.compat.jaxprs import sub_jaxprs
from pytest_pallas.compat.source import source_line
from pytest_pallas.sim_errors import KernelError
from pytest_pallas.simulator.arithmetic.dtypes import bit_width, is_integer
from pytest_pallas.simulator.gpu.tensor_cores.products import dot_operands
from pytest_pallas.simulator.grids.kernels import PreparedKernel

#: The error of a kernel, or None, by its jaxpr.
_KNOWN = weakref.WeakKeyDictionary[Any, str | None]()


def require_whole_products(kernel: PreparedKernel) -> None:
    """Reject a kernel with a product that Triton gets wrong, or cannot compile.

    Raises:
      KernelError: a product has fewer terms than an instruction of the tensor core.
    """
    body = kernel.equation.params["jaxpr"]
    if body not in _KNOWN:
        _KNOWN[body] = next(filter(None, map(_problem, _products(body))), None)
    problem = _KNOWN[body]
    if problem is not None:
        raise KernelError(problem)


def _products(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield eqn
        for inner in sub_jaxprs(eqn):
            yield from _products(inner)


def _problem(eqn: Any) -> str | None:
    """What is wrong with a product, or None."""
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
    """How many terms an instruction of the tensor core adds up; 0 if it uses none."""
    operands, exact = dot_operands(dtype, precision)
    if exact:
        return 0
    if operands is None:  # several products of TF32 or bfloat16 for one of float32
        return 8 if "TF32" in precision.name else 16
    if is_integer(operands):
        return 32 if bit_width(operands) == 8 else 0
    return {32: 8, 16: 16, 8: 16}.get(bit_width(operands), 0)
