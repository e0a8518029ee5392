"""The matmul of one device on many: ``o = x @ y`` with one dimension divided over a mesh.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``, whole arrays. Dtypes: float32 or bfloat16, the
same for both. ``jax.shard_map`` gives every device its part, ``reference_kernels.matmul.matmul``
multiplies parts, and what is divided decides what is communicated:

========  =================  =================  ====================  ==========================
parallel  x                  y                  o                     communication
========  =================  =================  ====================  ==========================
rows      rows divided       whole              rows divided          none (data parallel)
columns   whole              columns divided    columns divided       none (tensor parallel)
sums      columns divided    rows divided       whole, or rows        sum over the devices
========  =================  =================  ====================  ==========================

With sums divided, each device has a part of the terms: ``o = sum_d x_d @ y_d``. They are added by
``jax.lax.psum`` or the ring of ``all_reduce``, after which every device has all of ``o``, or by
``reduce_scatter``, after which each has some rows. Two matrices one after the other, as in a block
of a transformer, need no communication between them if the first is divided by columns and the
second by sums: ``columns`` ends as ``sums`` begins.

Partial products of bfloat16 are rounded before they are added, once on every device. To add them in
float32, see ``matmul_reduce_scatter``, which also hides the communication behind the products.

Gradients go the other way. What was whole on every device gets a sum over the devices, which
``shard_map`` adds by itself: ``rows`` communicates in the backward pass, for the gradient of ``y``.
The rings cannot be differentiated, ``psum`` can.

Source: Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
parallelism", 2019 (arXiv:1909.08053).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import jax
from jax.sharding import PartitionSpec as P

from reference_kernels import _mesh, _require
from reference_kernels.collectives.all_reduce import all_reduce
from reference_kernels.collectives.reduce_scatter import reduce_scatter
from reference_kernels.matmul.matmul import matmul
from reference_kernels.matmul.matmul import reference as matmul_reference

Parallel = Literal["rows", "columns", "sums"]
Reduction = Literal["psum", "all_reduce", "reduce_scatter"]

_REDUCTIONS: dict[str, Callable[..., jax.Array]] = {
    "psum": jax.lax.psum,
    "all_reduce": all_reduce,
    "reduce_scatter": functools.partial(reduce_scatter, tiled=True),
}


def sharded_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    parallel: Parallel,
    reduction: Reduction = "psum",
    **blocks: int | None,
) -> jax.Array:
    """``x @ y`` on the devices along an axis of a mesh.

    It can be differentiated by both operands, but not with a ring for the reduction.

    Args:
      x: ``(m, k)``, float32 or bfloat16.
      y: ``(k, n)``, of the dtype of ``x``.
      mesh: any mesh; what is divided over one axis is the same along the others.
      axis_name: the axis.
      parallel: what is divided over it: ``"rows"`` of ``x`` (m), ``"columns"`` of ``y`` (n), or the
        ``"sums"`` (k).
      reduction: how sums are added: ``"psum"``, ``"all_reduce"`` or ``"reduce_scatter"``.
      **blocks: sizes of blocks, as for ``matmul``.

    Returns:
      ``(m, n)``, of the dtype of ``x``; divided as the table above says.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, the mesh no such axis, ``parallel`` or
        ``reduction`` is none of the words above, or the axis does not divide the dimension.
    """
    devices = _mesh.axis_size(mesh, axis_name)
    m, k, n = _require.product(x, y)
    _one_of("parallel", parallel, ("rows", "columns", "sums"))
    _one_of("reduction", reduction, tuple(_REDUCTIONS))
    name, size = {"rows": ("m", m), "columns": ("n", n), "sums": ("k", k)}[parallel]
    _divides(devices, axis_name, name, size)
    if parallel == "sums" and reduction == "reduce_scatter":
        _divides(devices, axis_name, "m", m)

    def one_device(x: jax.Array, y: jax.Array) -> jax.Array:
        product = matmul(x, y, **blocks)
        return _REDUCTIONS[reduction](product, axis_name) if parallel == "sums" else product

    by_rows, by_columns = P(axis_name, None), P(None, axis_name)
    x_spec, y_spec, o_spec = {
        "rows": (by_rows, P(), by_rows),
        "columns": (P(), by_columns, by_columns),
        "sums": (by_columns, by_rows, by_rows if reduction == "reduce_scatter" else P()),
    }[parallel]
    # A pallas_call does not say over which mesh axes its output varies, so the check is off.
    return jax.shard_map(
        one_device, mesh=mesh, in_specs=(x_spec, y_spec), out_specs=o_spec, check_vma=False
    )(x, y)


def _one_of(name: str, word: str, words: tuple[str, ...]) -> None:
    if word not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}, but it is {word!r}")


def _divides(devices: int, axis_name: str, name: str, size: int) -> None:
    if size % devices:
        raise ValueError(
            f"{name} must be a multiple of the {devices} devices of the axis {axis_name!r}, but it "
            f"is {size}"
        )


def reference(
    x: jax.Array,
    y: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    parallel: Parallel,
    reduction: Reduction = "psum",
) -> jax.Array:
    """``x @ y``."""
    del mesh, axis_name, parallel, reduction
    return matmul_reference(x, y)
