"""Hypothesis strategies for the inputs of kernels.

::

    from pytest_pallas import strategies as pst

    @given(args=pst.arrays("m k, k n", dtype=pst.floats(), around=128))

Importing this imports hypothesis, numpy and ml_dtypes, and never jax.
"""

from __future__ import annotations

from pytest_pallas.draw.arguments import Arguments, Drawn, arguments, as_arguments
from pytest_pallas.draw.arrays import arrays, shaped
from pytest_pallas.draw.blocks import block_sizes, device_meshes, grids
from pytest_pallas.draw.dims import dims
from pytest_pallas.draw.dtypes import dtype_pairs, dtypes, floats, ints
from pytest_pallas.draw.indices import (
    cu_seqlens,
    group_sizes,
    indices,
    lengths,
    page_tables,
    permutations,
    segment_ids,
)
from pytest_pallas.draw.masks import masks
from pytest_pallas.draw.signatures import from_signature, kernel_args
from pytest_pallas.draw.sizes import ShapeSpec, parse
from pytest_pallas.draw.values import ValueRequest, elements, value_class

__all__ = [
    "Arguments",
    "Drawn",
    "ShapeSpec",
    "ValueRequest",
    "arguments",
    "arrays",
    "as_arguments",
    "block_sizes",
    "cu_seqlens",
    "device_meshes",
    "dims",
    "dtype_pairs",
    "dtypes",
    "elements",
    "floats",
    "from_signature",
    "grids",
    "group_sizes",
    "indices",
    "ints",
    "kernel_args",
    "lengths",
    "masks",
    "page_tables",
    "parse",
    "permutations",
    "segment_ids",
    "shaped",
    "value_class",
]
