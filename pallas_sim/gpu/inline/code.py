"""The code of ``plgpu.inline_mgpu`` as plain data, and how it is read from MLIR.

JAX's function makes operations of MLIR: it is called in an empty module, which needs no GPU, and
the module is read into an ``InlineCode``. What follows needs no MLIR.
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
      arguments: the numbers of the values that it is given.
      operations: in order; the last one ends it.
    """

    arguments: tuple[int, ...]
    operations: tuple[InlineOperation, ...]


@dataclass(frozen=True)
class Fragments:
    """Which thread has which element of an array in which register.

    Attributes:
      registers: the numbers of the values.
      elements: positions in the flat array, of shape [threads, registers, elements of a register];
        None where each thread has the one value that all elements are.
    """

    registers: tuple[int, ...]
    elements: Array | None


@dataclass(frozen=True)
class InlineRef:
    """How a reference is laid out in the memory that the code sees.

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
    """What the function of an ``inline_mgpu`` consists of.

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
    "i1": np.bool_,
    "i2": ml_dtypes.uint2,
    "i4": ml_dtypes.uint4,
    "i8": np.uint8,
    "i16": np.uint16,
    "i32": np.uint32,
    "i64": np.uint64,
    "index": np.uint64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}


class InlineError(Exception):
    """The function needs what only a compiled kernel has, or does not return what it declares."""


class _LaunchContext:
    """Stands for JAX's, which knows how to lower copies."""

    cluster_size = (1, 1, 1)

    def __getattr__(self, name: str) -> Any:
        raise InlineError(f"uses {name} of its first argument")


#: The number of each of MLIR's values, given when it is asked for.
type _Numbers = defaultdict[Any, int]


def inline_places(params: Mapping[str, Any]) -> list[RefPart | None]:
    """Of each argument the reference, by its position among the operands; None of an array."""
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
    """The operations of an ``inline_mgpu``.

    Args:
      params: of the equation.
      arguments: shape and dtype of each argument, and whether it is in shared memory.
      capability: of the chip: major and minor.
      one_warp: whether a single warp runs it.

    Raises:
      InlineError: what it uses is not here, or what it returns is not what it says.
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
        word = ir.IntegerType.get_signless(32)
        for name, value in zip(("major", "minor"), capability, strict=True):
            key = f"mosaic_gpu.arch_{name}"
            module.operation.attributes[key] = ir.IntegerAttr.get(word, value)
        kinds = params["flat_arg_types"]
        types = [
            kind_type
            for kind, argument in zip(kinds, arguments, strict=True)
            for kind_type in _types_of(mgpu, ir, kind, *argument)
        ]
        with ir.InsertionPoint(module.body):
            made = func.FuncOp("inlined", ir.FunctionType.get(types, []))
            block = made.add_entry_block()
        values = iter(block.arguments)
        given: list[Any] = []
        laid_out: list[Fragments | InlineRef] = []
        for kind, (shape, dtype, _) in zip(kinds, arguments, strict=True):
            if hasattr(kind, "transforms"):
                given.append(next(values))
                laid_out.append(InlineRef(numbers[given[-1]], *_layout_of(kind)))
                continue
            layout, signed = kind.to_mgpu(), mgpu.utils.is_signed(dtype)
            registers = np.empty(layout.registers_shape(shape), dtype=object)
            for at in np.ndindex(*registers.shape):
                registers[at] = next(values)
            given.append(
                mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=signed)
            )
            laid_out.append(_fragments(registers, layout, shape, numbers))
        with ir.InsertionPoint(block):
            try:
                answer = params["mgpu_fn"](
                    _LaunchContext(), *tree.tree_unflatten(params["pytree_args"], given)
                )
            except InlineError:
                raise
            except Exception as error:  # whatever JAX raises
                raise InlineError(f"raises {type(error).__name__}: {error}") from error
            leaves = tree.tree_leaves(
                answer, is_leaf=lambda each: isinstance(each, mgpu.FragmentedArray)
            )
            func.return_([])
        results = _results(params["flat_ret_ty"], leaves, mgpu, numbers, one_warp=one_warp)
        return InlineCode(_region(block, numbers, ir), tuple(laid_out), results)


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


def tiled_shape(shape: tuple[int, ...], tiling: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of memory of which the last axes are divided into tiles."""
    if not tiling:
        return shape
    rest, last = shape[: -len(tiling)], shape[-len(tiling) :]
    return (*rest, *(size // tile for size, tile in zip(last, tiling, strict=True)), *tiling)


def _layout_of(kind: Any) -> tuple[tuple[int, ...], int]:
    """Tiling and swizzle of a reference."""
    tiling: tuple[int, ...] = ()
    swizzle = 0
    for each in kind.transforms:
        if hasattr(each, "tiling") and not tiling:
            tiling = tuple(each.tiling)
        elif hasattr(each, "swizzle"):
            swizzle = int(each.swizzle)
        else:
            raise InlineError(f"takes a reference with {each}")
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
    """Positions [threads, registers, elements] of an array in a ``TiledLayout``."""
    if getattr(layout, "unreduced_operation", None) is not None:
        raise InlineError("takes or gives an array in parts that are to be reduced")
    flat = np.arange(math.prod(shape)).reshape(shape)
    for tile in layout.tiling.tiles:
        rest, last = flat.shape[: -len(tile)], flat.shape[-len(tile) :]
        divided = [(size // part, part) for size, part in zip(last, tile, strict=True)]
        flat = flat.reshape(*rest, *(each for pair in divided for each in pair))
        front, count = len(rest), len(tile)
        order = [*range(front), *range(front, front + 2 * count, 2)]
        flat = flat.transpose(*order, *range(front + 1, front + 2 * count, 2))
    dims: list[int] = []
    spread: list[Any] = []
    for each in (*layout.warp_dims, *layout.lane_dims):
        if isinstance(each, int):
            dims.append(flat.ndim + each)
            spread.append(flat.shape[each])
        else:  # several threads have the same elements
            spread.append(None)
    vector = flat.ndim + layout.vector_dim
    others = [axis for axis in range(flat.ndim) if axis not in dims and axis != vector]
    moved = flat.transpose(*dims, *others, vector)
    copies = [
        each.times for each in (*layout.warp_dims, *layout.lane_dims) if not isinstance(each, int)
    ]
    for place, size in enumerate(spread):
        if size is None:
            moved = np.repeat(np.expand_dims(moved, place), copies.pop(0), axis=place)
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
        declared = (
            tuple(kind.shape),
            mgpu.utils.dtype_to_ir_type(kind.dtype),
            kind.layout.to_mgpu(),
        )
        is_what = (tuple(value.shape), value.mlir_dtype, value.layout)
        for what, one, other in zip(("shape", "dtype", "layout"), declared, is_what, strict=True):
            if one != other:
                raise InlineError(f"returns the {what} {other}, and declares {one}")
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
    for each in operation.attributes:
        name = each if isinstance(each, str) else each.name
        attributes[name] = _plain(operation.attributes[name], ir)
    return InlineOperation(
        name=operation.name,
        operands=tuple(map(numbers.__getitem__, operation.operands)),
        operand_types=tuple(_type(each.type, ir) for each in operation.operands),
        results=tuple(map(numbers.__getitem__, operation.results)),
        types=tuple(_type(each.type, ir) for each in operation.results),
        attributes=attributes,
        regions=tuple(
            _region(block, numbers, ir) for region in operation.regions for block in region.blocks
        ),
    )


def _type(given: Any, ir: Any) -> InlineType:
    text = str(given)
    if text in _DTYPES:
        return InlineType("scalar", np.dtype(_DTYPES[text]), text=text)
    if isinstance(given, ir.VectorType) and str(given.element_type) in _DTYPES:
        dtype = np.dtype(_DTYPES[str(given.element_type)])
        return InlineType("vector", dtype, tuple(given.shape), text=text)
    if isinstance(given, ir.MemRefType) and str(given.element_type) in _DTYPES:
        unknown = ir.ShapedType.get_dynamic_stride_or_offset()
        strides, _ = given.get_strides_and_offset()
        dtype = np.dtype(_DTYPES[str(given.element_type)])
        return InlineType(
            "memory",
            dtype,
            tuple(max(size, -1) for size in given.shape),
            tuple(-1 if each == unknown else each for each in strides),
            text=text,
        )
    return InlineType("pointer" if text.startswith("!llvm.ptr") else "other", text=text)


def _plain(attribute: Any, ir: Any) -> Any:
    if isinstance(attribute, ir.IntegerAttr | ir.FloatAttr | ir.BoolAttr | ir.StringAttr):
        return attribute.value
    if isinstance(attribute, ir.TypeAttr):
        return _type(attribute.value, ir)
    if isinstance(attribute, ir.DenseElementsAttr):
        return _dense(attribute, ir)
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(_plain(each, ir) for each in attribute)
    if hasattr(attribute, "__len__") and hasattr(attribute, "__getitem__"):
        return tuple(attribute[at] for at in range(len(attribute)))
    return str(attribute)


def _dense(attribute: Any, ir: Any) -> Any:
    shape = tuple(ir.ShapedType(attribute.type).shape)
    if attribute.is_splat:
        return np.full(shape, _plain(attribute.get_splat_value(), ir), dtype=object)
    values = [attribute[at] for at in range(math.prod(shape))]
    return np.array(values, dtype=object).reshape(shape)
