"""Read the code of ``plgpu.inline_mgpu`` from MLIR into plain data (``inline_code``).

The kernel's function makes operations of MLIR. It is called in an empty module, which needs no GPU,
and the module is read into an ``InlineCode``. All later steps need no MLIR.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim.compat.places import transforms_in
from pallas_sim.dtypes import Array
from pallas_sim.transforms import Operand, RefPart


@dataclass(frozen=True)
class InlineType:
    """The type of a value.

    Attributes:
      kind: ``"scalar"``, ``"vector"``, ``"memory"``, ``"pointer"`` or ``"other"``.
      dtype: of its elements.
      shape: of a vector or of memory; sizes that are known only at run time are -1.
      strides: of memory, in elements; -1 as in ``shape``.
      text: as MLIR prints it.
    """

    kind: str
    dtype: Any = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class InlineOperation:
    """An operation.

    Attributes:
      name: ``"arith.addi"`` or the like.
      operands: the numbers of values.
      operand_types: their types.
      results: the numbers of its results.
      types: of its results.
      attributes: as plain values: numbers, text, tuples, arrays, or ``InlineType``.
      regions: of control flow.
    """

    name: str
    operands: tuple[int, ...]
    operand_types: tuple[InlineType, ...]
    results: tuple[int, ...]
    types: tuple[InlineType, ...]
    attributes: Mapping[str, Any]
    regions: tuple[InlineRegion, ...] = ()


@dataclass(frozen=True)
class InlineRegion:
    """Operations one after the other.

    Attributes:
      arguments: the numbers of its parameters.
      operations: in order; the last one ends it.
    """

    arguments: tuple[int, ...]
    operations: tuple[InlineOperation, ...]


@dataclass(frozen=True)
class Fragments:
    """The layout of an array in the registers of threads.

    Attributes:
      registers: the numbers of the values.
      elements: positions in the flat array, of shape [threads, registers, elements of a register];
        None where all elements are one value, which each thread has.
    """

    registers: tuple[int, ...]
    elements: Array | None


@dataclass(frozen=True)
class InlineRef:
    """The layout of a reference in the memory that the code accesses.

    Attributes:
      number: of the value.
      tiling: of its last axes; empty for rows one after the other.
      swizzle: bytes of a swizzled row, or 0.
    """

    number: int
    tiling: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True)
class InlineCode:
    """The function of an ``inline_mgpu``.

    Attributes:
      body: its operations.
      arguments: in the order of the operands.
      results: in the order of the results.
    """

    body: InlineRegion
    arguments: tuple[Fragments | InlineRef, ...]
    results: tuple[Fragments, ...]


# From MLIR to data.


#: Integers have no sign in MLIR: operations do.
_DTYPES: dict[str, Any] = {
    **{f"i{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "i1": np.bool_,
    "i2": ml_dtypes.uint2,
    "i4": ml_dtypes.uint4,
    "index": np.uint64,
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}


class InlineError(Exception):
    """The function needs what only a compiled kernel has, or does not return what it declares."""


class _LaunchContext:
    """Stands for JAX's, which lowers copies: these need the launch of a compiled kernel."""

    cluster_size = (1, 1, 1)

    def __getattr__(self, name: str) -> Any:
        raise InlineError(f"uses {name} of its first argument")


#: Numbers of MLIR's values, in the order in which they are looked up.
type _Numbers = defaultdict[Any, int]


def inline_places(params: Mapping[str, Any]) -> list[RefPart | None]:
    """Return the reference of each argument, by its operand's position; None for an array."""
    count, tree = params["pytree_args"].num_leaves, params["pytree_ref_transforms"]
    util = importlib.import_module("jax.tree_util")
    leaves = [Operand(count + number) for number in range(tree.num_leaves)]
    transformed = util.tree_unflatten(tree, leaves)
    return [
        RefPart(position, transforms_in(transforms)) if hasattr(kind, "transforms") else None
        for position, (kind, transforms) in enumerate(
            zip(params["flat_arg_types"], transformed, strict=True)
        )
    ]


def inline_code(
    params: Mapping[str, Any],
    arguments: Sequence[tuple[tuple[int, ...], Any, bool]],
    capability: tuple[int, int],
    *,
    one_warp: bool,
) -> InlineCode:
    """Read the operations of an ``inline_mgpu``.

    Args:
      params: of the equation.
      arguments: shape and dtype of each argument, and whether it is in shared memory.
      capability: of the chip: major and minor.
      one_warp: whether a single warp runs it.

    Raises:
      InlineError: it uses what only a compiled kernel has, or returns what it does not declare.
    """
    ir = importlib.import_module("jax.extend.mlir.ir")
    func = importlib.import_module("jax.extend.mlir.dialects.func")
    mlir = importlib.import_module("jax.interpreters.mlir")
    mgpu = importlib.import_module("jax.experimental.mosaic.gpu")
    tree = importlib.import_module("jax.tree_util")
    context = mlir.make_ir_context()
    mgpu.dialect.register_dialect(context)
    numbers: _Numbers = defaultdict(itertools.count().__next__)
    with context, ir.Location.unknown():
        module = ir.Module.create()
        # JAX's functions choose instructions by these attributes of the module.
        word = ir.IntegerType.get_signless(32)
        for name, value in zip(("major", "minor"), capability, strict=True):
            key = f"mosaic_gpu.arch_{name}"
            module.operation.attributes[key] = ir.IntegerAttr.get(word, value)
        kinds = list(zip(params["flat_arg_types"], arguments, strict=True))
        types = [type_ for kind, facts in kinds for type_ in _types_of(mgpu, ir, kind, *facts)]
        with ir.InsertionPoint(module.body):
            block = func.FuncOp("inlined", ir.FunctionType.get(types, [])).add_entry_block()
        values = iter(block.arguments)
        inputs: list[Any] = []  # of JAX's function
        layouts: list[Fragments | InlineRef] = []
        for kind, (shape, dtype, _) in kinds:
            if hasattr(kind, "transforms"):
                inputs.append(next(values))
                layouts.append(InlineRef(numbers[inputs[-1]], *_layout_of(kind)))
                continue
            layout, signed = kind.to_mgpu(), mgpu.utils.is_signed(dtype)
            registers = np.empty(layout.registers_shape(shape), dtype=object)
            for at in np.ndindex(*registers.shape):
                registers[at] = next(values)
            array = mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=signed)
            inputs.append(array)
            layouts.append(_fragments(registers, layout, shape, numbers))
        args = tree.tree_unflatten(params["pytree_args"], inputs)
        with ir.InsertionPoint(block):
            try:
                returned = params["mgpu_fn"](_LaunchContext(), *args)
            except InlineError:
                raise
            except Exception as error:  # JAX may raise anything
                raise InlineError(f"raises {type(error).__name__}: {error}") from error
            func.return_([])
        leaves = tree.tree_leaves(
            returned, is_leaf=lambda leaf: isinstance(leaf, mgpu.FragmentedArray)
        )
        results = _results(params["flat_ret_ty"], leaves, mgpu, numbers, one_warp=one_warp)
        return InlineCode(_region(block, numbers, ir), tuple(layouts), results)


def _types_of(
    mgpu: Any, ir: Any, kind: Any, shape: tuple[int, ...], dtype: Any, shared: bool
) -> list[Any]:
    element = mgpu.utils.dtype_to_ir_type(dtype)
    if not hasattr(kind, "transforms"):
        layout = kind.to_mgpu()
        count = math.prod(layout.registers_shape(shape))
        return [layout.registers_element_type(element)] * count
    tiling, _ = _layout_of(kind)
    if np.dtype(dtype) == np.bool_:
        element = ir.IntegerType.get_signless(8)
    space = mgpu.utils.smem() if shared else None
    return [ir.MemRefType.get(tiled_shape(shape, tiling), element, memory_space=space)]


def tiled_shape(shape: tuple[int, ...], tiling: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of memory whose last axes are divided into tiles."""
    front = len(shape) - len(tiling)
    counts = (size // tile for size, tile in zip(shape[front:], tiling, strict=True))
    return (*shape[:front], *counts, *tiling)


def in_tiles(array: Array, tiling: Sequence[int]) -> Array:
    """Divide the last axes of an array into tiles, which are its last axes then."""
    front, count = array.ndim - len(tiling), len(tiling)
    pairs = ((size // tile, tile) for size, tile in zip(array.shape[front:], tiling, strict=True))
    parts = array.reshape(*array.shape[:front], *itertools.chain(*pairs))
    tiles, elements = (range(first, front + 2 * count, 2) for first in (front, front + 1))
    return parts.transpose(*range(front), *tiles, *elements)


def _layout_of(kind: Any) -> tuple[tuple[int, ...], int]:
    """Return tiling and swizzle of a reference."""
    tiling: tuple[int, ...] = ()
    swizzle = 0
    for transform in kind.transforms:
        if hasattr(transform, "tiling") and not tiling:
            tiling = tuple(transform.tiling)
        elif hasattr(transform, "swizzle"):
            swizzle = int(transform.swizzle)
        else:
            raise InlineError(f"takes a reference with {transform}")
    return tiling, swizzle


def _fragments(
    registers: Array, layout: Any, shape: tuple[int, ...], numbers: _Numbers
) -> Fragments:
    values = tuple(numbers[value] for value in registers.flat)
    if hasattr(layout, "tiling"):
        return Fragments(values, _tiled_elements(layout, shape))
    if hasattr(layout, "vec_size"):
        count = math.prod(shape)
        elements = np.arange(count).reshape(-1, 128, layout.vec_size)
        return Fragments(values, elements.transpose(1, 0, 2))
    return Fragments(values, None)


def _tiled_elements(layout: Any, shape: tuple[int, ...]) -> Array:
    """Return the positions [threads, registers, elements] of an array in a ``TiledLayout``."""
    if getattr(layout, "unreduced_operation", None) is not None:
        raise InlineError("takes or gives an array in parts that are to be reduced")
    flat = np.arange(math.prod(shape)).reshape(shape)
    for tile in layout.tiling.tiles:
        flat = in_tiles(flat, tile)
    threads = (*layout.warp_dims, *layout.lane_dims)
    dims = [flat.ndim + dim for dim in threads if isinstance(dim, int)]
    vector = flat.ndim + layout.vector_dim
    others = [axis for axis in range(flat.ndim) if axis not in dims and axis != vector]
    moved = flat.transpose(*dims, *others, vector)
    for axis, dim in enumerate(threads):
        if not isinstance(dim, int):  # so many threads have the same elements
            moved = np.repeat(np.expand_dims(moved, axis), dim.times, axis=axis)
    return moved.reshape(128, -1, flat.shape[layout.vector_dim])


def _results(
    types: Sequence[Any], leaves: Sequence[Any], mgpu: Any, numbers: _Numbers, *, one_warp: bool
) -> tuple[Fragments, ...]:
    if len(leaves) != len(types):
        raise InlineError(f"returns {len(leaves)} values, and declares {len(types)}")
    results: list[Fragments] = []
    for kind, value in zip(types, leaves, strict=True):
        if not isinstance(value, mgpu.FragmentedArray):
            raise InlineError(f"returns a {type(value).__name__}, not a FragmentedArray")
        dtype = mgpu.utils.dtype_to_ir_type(kind.dtype)
        for what, declared, actual in (
            ("shape", tuple(kind.shape), tuple(value.shape)),
            ("dtype", dtype, value.mlir_dtype),
            ("layout", kind.layout.to_mgpu(), value.layout),
        ):
            if declared != actual:
                raise InlineError(f"returns the {what} {actual}, and declares {declared}")
        if one_warp and kind.shape:
            raise InlineError(f"returns an array of {list(kind.shape)} in one warp")
        results.append(_fragments(value.registers, value.layout, tuple(value.shape), numbers))
    return tuple(results)


def _region(block: Any, numbers: _Numbers, ir: Any) -> InlineRegion:
    arguments = tuple(map(numbers.__getitem__, block.arguments))
    return InlineRegion(
        arguments, tuple(_operation(op.operation, numbers, ir) for op in block.operations)
    )


def _operation(operation: Any, numbers: _Numbers, ir: Any) -> InlineOperation:
    attributes: dict[str, Any] = {}
    for key in operation.attributes:
        name = key if isinstance(key, str) else key.name
        attributes[name] = _plain(operation.attributes[name], ir)
    return InlineOperation(
        name=operation.name,
        operands=tuple(map(numbers.__getitem__, operation.operands)),
        operand_types=tuple(_type(operand.type, ir) for operand in operation.operands),
        results=tuple(map(numbers.__getitem__, operation.results)),
        types=tuple(_type(result.type, ir) for result in operation.results),
        attributes=attributes,
        regions=tuple(
            _region(block, numbers, ir) for region in operation.regions for block in region.blocks
        ),
    )


def _type(type_: Any, ir: Any) -> InlineType:
    text = str(type_)
    dtype = _DTYPES.get(str(getattr(type_, "element_type", type_)))
    dtype = None if dtype is None else np.dtype(dtype)
    if dtype is not None and text in _DTYPES:
        return InlineType("scalar", dtype, text=text)
    if dtype is not None and isinstance(type_, ir.VectorType):
        return InlineType("vector", dtype, tuple(type_.shape), text=text)
    if dtype is not None and isinstance(type_, ir.MemRefType):
        unknown = ir.ShapedType.get_dynamic_stride_or_offset()
        strides, _ = type_.get_strides_and_offset()
        shape = tuple(max(size, -1) for size in type_.shape)
        strides = tuple(-1 if stride == unknown else stride for stride in strides)
        return InlineType("memory", dtype, shape, strides, text)
    return InlineType("pointer" if text.startswith("!llvm.ptr") else "other", text=text)


def _plain(attribute: Any, ir: Any) -> Any:
    if isinstance(attribute, ir.IntegerAttr | ir.FloatAttr | ir.BoolAttr | ir.StringAttr):
        return attribute.value
    if isinstance(attribute, ir.TypeAttr):
        return _type(attribute.value, ir)
    if isinstance(attribute, ir.DenseElementsAttr):
        return _dense(attribute, ir)
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(_plain(element, ir) for element in attribute)
    if hasattr(attribute, "__len__") and hasattr(attribute, "__getitem__"):
        return tuple(attribute[at] for at in range(len(attribute)))
    return str(attribute)


def _dense(attribute: Any, ir: Any) -> Any:
    shape = tuple(ir.ShapedType(attribute.type).shape)
    if attribute.is_splat:
        return np.full(shape, _plain(attribute.get_splat_value(), ir), dtype=object)
    values = [attribute[at] for at in range(math.prod(shape))]
    return np.array(values, dtype=object).reshape(shape)
