"""Private names of JAX: the tiles that Mosaic GPU chooses for shared memory.

Under ``LoweringSemantics.Warpgroup``, the default, JAX infers how shared memory is tiled where a
kernel does not say it. That is part of its lowering, which needs no GPU and takes tenths of a
second. Seen in JAX 0.11.2 and 0.12.0.1. It can go when kernels say their tiles. Probe:
``tests/unit/compat/test_tiles.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

#: Names a copy: the identities of the trees of its transforms, which its equation keeps.
type CopyKey = tuple[int, int]

_COPIES = ("copy_gmem_to_smem_p", "copy_smem_to_gmem_p")
_OPERATIONS = ("mosaic_gpu.async_load", "mosaic_gpu.async_store")
_NUMBER = "pytest_pallas.copy"


def key_of(params: Mapping[str, Any]) -> CopyKey:
    """Names the copy with these parameters, as long as its equation lives."""
    return id(params["src_transforms_treedef"]), id(params["dst_transforms_treedef"])


def infers_tiles(compiler_params: Any) -> bool:
    """Whether JAX infers the tiles of shared memory for a kernel with these parameters."""
    semantics = getattr(compiler_params, "lowering_semantics", None)
    return compiler_params is None or getattr(semantics, "name", "") == "Warpgroup"


class _InferredError(Exception):
    """Ends a lowering whose tiles are known."""


def inferred_tiles(
    params: Mapping[str, Any], avals: Sequence[Any], axes: Mapping[str, int]
) -> dict[CopyKey, tuple[int, ...]]:
    """The tiles that JAX infers for the shared memory of each copy of a ``plgpu.kernel``.

    Args:
      params: of its ``mpmd_map``.
      avals: of its operands.
      axes: sizes of the mesh's axes that it is mapped over.

    Returns:
      For each copy by TMA the tiles of the part of shared memory along its last axes, () for none.

    Raises:
      Exception: JAX cannot lower the kernel.
    """
    lowering: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.lowering")
    inference: Any = importlib.import_module("jax.experimental.mosaic.gpu.layout_inference")
    primitives: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.primitives")
    keys: list[CopyKey] = []
    tiles: dict[CopyKey, tuple[int, ...]] = {}
    infer = inference.infer_layout

    def read(module: Any, *args: Any, **options: Any) -> None:
        infer(module, *args, **options)
        for number, found in _tiles_in(module.operation):
            tiles[keys[number]] = found
        raise _InferredError

    with ExitStack() as stack:
        for rules in lowering.mosaic_lowering_rules.values():
            changed = {
                primitive: _numbered(rules[primitive], keys)
                for primitive in (getattr(primitives, name) for name in _COPIES)
                if primitive in rules
            }
            stack.enter_context(patch.dict(rules, changed))
        stack.enter_context(patch.object(inference, "infer_layout", read))
        with suppress(_InferredError):
            _lower(params, avals, axes)
    return tiles


def _numbered(rule: Callable[..., Any], keys: list[CopyKey]) -> Callable[..., Any]:
    """The lowering rule of a copy, which notes the copy and gives its operation its number."""
    from jax.extend.mlir import ir

    def lower(context: Any, *args: Any, **params: Any) -> Any:
        results = rule(context, *args, **params)
        operation = list(ir.InsertionPoint.current.block.operations)[-1].operation
        if operation.name in _OPERATIONS:
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(keys))
            operation.attributes[_NUMBER] = number
            keys.append(key_of(params))
        return results

    return lower


def _tiles_in(operation: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The number and the tiles of each numbered copy inside of an operation."""
    from jax.extend.mlir import ir

    mosaic: Any = importlib.import_module("jax.experimental.mosaic.gpu")
    kind = mosaic.dialect.TileTransformAttr
    for region in operation.regions:
        for block in region:
            for op in block:
                inner = op.operation
                if _NUMBER in inner.attributes:
                    number = ir.IntegerAttr(inner.attributes[_NUMBER]).value
                    transforms: Any = ir.ArrayAttr(inner.attributes["in_transforms"])[0]
                    tiled = [each for each in transforms if isinstance(each, kind)]
                    yield number, tuple(map(int, tiled[0].tiling)) if tiled else ()
                yield from _tiles_in(inner)


def _lower(params: Mapping[str, Any], avals: Sequence[Any], axes: Mapping[str, int]) -> None:
    """Lower a kernel for CUDA, with an array for each operand."""
    import jax
    from jax.sharding import AbstractMesh, AxisType, PartitionSpec

    from pytest_pallas.compat.avals import is_reference

    mpmd: Any = importlib.import_module("jax._src.pallas.mpmd")
    in_memory = [is_reference(aval) for aval in avals]

    def launch(*arrays: Any) -> Any:
        given = [
            jax.new_ref(array) if wrapped else array
            for array, wrapped in zip(arrays, in_memory, strict=True)
        ]
        return mpmd.mpmd_map_p.bind(*given, **params)

    whole: Any = launch
    if axes:
        types = (AxisType.Auto,) * len(axes)
        mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types)
        whole = jax.shard_map(
            launch, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
        )
    arrays = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    jax.jit(whole).trace(*arrays).lower(lowering_platforms=("cuda",))
