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
from typing import Any, Literal

import jax
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted
from pytest_pallas.spec import KernelSpec
from reference_kernels import _mesh
from reference_kernels._gaps import REACHING, without
from reference_kernels.collectives.all_reduce import all_reduce
from reference_kernels.collectives.reduce_scatter import reduce_scatter
from reference_kernels.matmul import _operands
from reference_kernels.matmul.matmul import matmul

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
    m, k, n = _operands.check_operands(x, y)
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
    return _operands.reference(x, y)


def _inputs(mesh: jax.sharding.Mesh, cases: tuple[dict[str, str], ...]) -> Any:
    def call(axis_name: str, case: dict[str, str]) -> Any:
        devices = mesh.shape[axis_name]
        free = {"m": [1, 17, 33], "k": [1, 129], "n": [1, 129]}
        divided = {"rows": "m", "columns": "n", "sums": "mk"}[case["parallel"]]
        dims = {
            name: [devices * size for size in sizes] if name in divided else sizes
            for name, sizes in free.items()
        }
        return pst.arguments(
            pst.arrays("m k, k n", dtype=pst.floats("bfloat16", "float32"), dims=dims),
            options={"axis_name": axis_name, **case},
            tuning={"block_m": 16, "block_n": 128, "block_k": 128},
        )

    return st.one_of([call(axis_name, case) for axis_name in mesh.axis_names for case in cases])


def _typical(mesh: jax.sharding.Mesh, cases: tuple[dict[str, str], ...]) -> Any:
    dims = {"m": 4096, "k": 4096, "n": 4096}
    return [
        pst.shaped(
            "m k, k n",
            dtype="bfloat16",
            dims=dims,
            options={"axis_name": mesh.axis_names[-1], **case},
        )
        for case in cases
    ]


_PERMUTED = (Permuted({0: 1, 1: 0}), Permuted({0: 0}, output=0), Permuted({1: 1}, output=1))


def _spec(name: str, cases: tuple[dict[str, str], ...], **more: Any) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel=sharded_matmul,
        reference=reference,
        inputs=functools.partial(_inputs, cases=cases),
        # Not exact: every device rounds its sums of bfloat16 before they are added.
        relations=(Linear(0), Linear(1), *_PERMUTED),
        vmappable=False,
        typical=functools.partial(_typical, cases=cases),
        file=__file__,
        family="collective_matmul",
        **more,
    )


SPEC = _spec(
    "sharded_matmul",
    ({"parallel": "rows"}, {"parallel": "columns"}, {"parallel": "sums"}),
    meshes=({"x": 1}, {"x": 2, "y": 2}),
    differentiable=(0, 1),
)

SPEC_RINGS = _spec(
    "sharded_matmul_rings",
    (
        {"parallel": "sums", "reduction": "all_reduce"},
        {"parallel": "sums", "reduction": "reduce_scatter"},
    ),
    meshes=({"x": 4},),
    backends=without(REACHING),
)
