"""Hypothesis strategies for the inputs of kernels.

::

    from pytest_pallas import strategies as pst

    @given(args=pst.arrays("m k, k n", dtype=pst.floats(), around=128))

Importing this imports hypothesis, numpy and ml_dtypes, and never jax.
"""

from pytest_pallas.strategies.arguments import Arguments, Drawn, arguments, as_arguments
from pytest_pallas.strategies.arrays import arrays
from pytest_pallas.strategies.domain.blocks import block_sizes, grids
from pytest_pallas.strategies.domain.indices import indices, page_tables, permutations
from pytest_pallas.strategies.domain.masks import masks
from pytest_pallas.strategies.domain.meshes import device_meshes
from pytest_pallas.strategies.domain.ragged import cu_seqlens, group_sizes, lengths, segment_ids
from pytest_pallas.strategies.dtypes import dtype_pairs, dtypes, floats, ints
from pytest_pallas.strategies.elements import elements
from pytest_pallas.strategies.shaped import shaped
from pytest_pallas.strategies.signatures import from_signature, kernel_args
from pytest_pallas.strategies.sizes.dims import dims
from pytest_pallas.strategies.sizes.shapes import ShapeSpec, parse
from pytest_pallas.strategies.values import ValueRequest, value_class

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
