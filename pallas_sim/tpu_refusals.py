"""What no TPU runs of the primitives that JAX has a rule for.

First what the TensorCore has no instruction for, by dtype, as libtpu and JAX's rules for the
primitives say; then loads, stores and copies, and the blocks of a ``pallas_call``. Only what is
refused always is here: see ``refusals``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.compat.grids import BlockFacts, GridFacts
from pallas_sim.compat.jaxprs import (
    is_dropped,
    is_literal,
    is_reference,
    open_jaxpr,
    scan_parts,
    space_of,
)
from pallas_sim.compat.places import copy_parts, transforms_in, transforms_of
from pallas_sim.dtypes import bit_width, is_integer
from pallas_sim.errors import refuse
from pallas_sim.transforms import (
    AxisSlice,
    Bitcast,
    Indexed,
    Listed,
    Operand,
    RefPart,
    Transform,
)


@dataclass(frozen=True)
class Constants:
    """The variables of a kernel whose elements are all one number that is known.

    Attributes:
      values: the number, by variable.
    """

    values: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def of(self, atom: Any) -> Any:
        """Return the number, or None."""
        return atom.val if is_literal(atom) else self.values.get(atom)

    def follow(self, eqn: Any) -> None:
        """Note what an equation makes of constants, and what it passes on to a function."""
        name, params = eqn.primitive.name, eqn.params
        pairs: Sequence[tuple[Any, Any]] = ()
        if name in ("broadcast_in_dim", "convert_element_type", "reshape", "copy"):
            pairs = [(eqn.outvars[0], eqn.invars[0])]
        elif name in ("jit", "pjit", "closed_call", "custom_jvp_call"):
            inner = params.get("jaxpr") or params.get("call_jaxpr")
            pairs = list(zip(open_jaxpr(inner)[0].invars, eqn.invars, strict=False))
        for var, atom in pairs:
            value = self.of(atom)
            if value is None or np.shape(value):
                self.values.pop(var, None)
            else:
                self.values[var] = value


# What Mosaic refuses for a dtype, or JAX's rule for the primitive (libtpu 0.0.50 and 0.0.51, JAX
# 0.11.2 and 0.12.0.1; v4, v5e, v5p, v6e and tpu7x).

_NARROW = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2"})
_UNSIGNED = frozenset({"uint32", "uint16", "uint8", "uint4", "uint2"})
_SHORT = frozenset({"int16", "bool"}) | _NARROW
_FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"})
_UNEVEN = frozenset({"bfloat16", "float16"}) | _SHORT | _FLOAT8  # not 32 bits

#: Dtypes of the first operand, by primitive, that no TPU computes.
_REFUSED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("add", "sub", "mul", "neg", "square", "integer_pow"), _NARROW | _FLOAT8),
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne", "pow"), _FLOAT8),
    **dict.fromkeys(("exp", "exp2", "log", "log1p", "sqrt", "rsqrt", "logistic", "erf"), _FLOAT8),
    **dict.fromkeys(("sin", "cos", "tan", "tanh", "floor", "ceil", "round"), _FLOAT8),
    "div": _FLOAT8 | {"int16", "int8", "int4", "uint4"},
    "rem": _FLOAT8 | {"bfloat16", "int16", "int8", "int4", "uint4"},
    **dict.fromkeys(("max", "min", "clamp"), _FLOAT8 | _UNSIGNED | _SHORT),
    "abs": _FLOAT8 | {"int8"},
    "sign": frozenset({"int8", "int4"}),
    **dict.fromkeys(("is_finite", "erf_inv", "atan2", "nextafter"), _FLOAT8 | {"bfloat16"}),
    **dict.fromkeys(("population_count", "clz"), _SHORT - {"bool"}),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min"), _FLOAT8 | _UNSIGNED | _SHORT),
    **dict.fromkeys(("reduce_and", "reduce_or"), _UNSIGNED | _SHORT - {"bool"} | {"int32"}),
    **dict.fromkeys(("argmax", "argmin"), _FLOAT8 | _UNSIGNED | _SHORT | {"int32"}),
    "dot_general": frozenset({"int32", "int16"}) | _UNSIGNED,
}

#: Dtypes that no operand has: Mosaic knows other floats, and JAX no integers of two bits.
_UNKNOWN = frozenset(
    {"float16", "float8_e4m3", "float8_e3m4", "float8_e5m2fnuz", "float8_e4m3fnuz", "int2", "uint2"}
)

#: Functions of each element.
POINTWISE = frozenset(
    {
        *("add", "sub", "mul", "div", "rem", "max", "min", "and", "or", "xor", "not", "neg", "abs"),
        *("shift_left", "shift_right_logical", "shift_right_arithmetic", "sign", "pow", "square"),
        *("lt", "le", "gt", "ge", "eq", "ne", "exp", "exp2", "log", "log1p", "sqrt", "rsqrt"),
        *("sin", "cos", "tan", "tanh", "logistic", "erf", "floor", "ceil", "round", "is_finite"),
        *("clamp", "integer_pow", "atan2"),
    }
)

#: Functions that only vectors have.
_OF_VECTORS = frozenset({"pow", "logistic", "population_count"})


#: Gives the shapes that a vector may have, by dtype.
type VectorShapes = Callable[[Any], Sequence[tuple[int, ...]]]


def require_equation(
    eqn: Any,
    kind: str,
    constants: Constants,
    line: str,
    vectors: VectorShapes | None = None,
) -> None:
    """Reject an equation of a kernel that no TPU computes, although JAX has a rule for it.

    Args:
      eqn: the equation.
      kind: of the cores: ``"tc"``, ``"sc_scalar_subcore"``, ``"sc_vector_subcore"``.
      constants: what is known of the values in the kernel.
      line: ``file:line`` of the equation.
      vectors: of a subcore, where libtpu does not divide arrays; or None.

    Raises:
      SimulationError: the message has what is wrong, and the line.
    """
    if eqn.primitive.name == "dma_start":
        _require_copy(eqn, kind, line)
    access = access_of(eqn)
    if access is not None and kind == "tc":
        _require_access(access, line)
    elif access is not None:
        _require_access_of_subcore(access, line, vectors)
    unused = bool(eqn.outvars) and all(map(is_dropped, eqn.outvars))
    if kind == "tc" and (access is not None or not unused):
        _require_value(eqn, constants, line)


def _require_value(eqn: Any, constants: Constants, line: str) -> None:
    """Reject an equation that no TensorCore computes because of dtypes, shapes or parameters."""
    name = eqn.primitive.name
    values = [var.aval for var in eqn.invars if not is_reference(var.aval)]
    out = eqn.outvars[0].aval if eqn.outvars else None
    dtype = str(getattr(values[0], "dtype", "")) if values else ""
    results = str(getattr(out, "dtype", ""))
    is_scalar = bool(values) and getattr(values[0], "shape", None) == ()
    if dtype == "float16" or (results == "float16" and not is_scalar):
        refuse("no TPU computes with float16: use bfloat16, or convert before the kernel", line)
    if is_folded(eqn, name, constants):
        return
    if dtype in _REFUSED.get(name, ()):
        refuse(f"no TPU computes {name} of {dtype}: convert to 32 bits before", line)
    if is_scalar and getattr(out, "shape", None) == ():
        if name in POINTWISE and dtype in _UNEVEN - {"bool"}:
            refuse(
                f"no TPU computes {name} of scalars of {dtype}: a scalar has 32 bits; convert it "
                "before",
                line,
            )
        if name in _OF_VECTORS:
            refuse(f"no TPU computes {name} of scalars: use it on an array", line)
    to_scalar = name.startswith("reduce_") and getattr(out, "shape", None) == ()
    if to_scalar and results in _UNEVEN - {"bool"}:
        refuse(f"{name} to a scalar of {results}: convert to 32 bits before", line)
    if eqn.params.get("accuracy") is not None:
        refuse(f"{name} with accuracy=: a TensorCore has one accuracy; leave it out", line)
    _require_parameters(eqn, name, values, out, line)


def is_folded(eqn: Any, name: str, constants: Constants) -> bool:
    """Return whether MLIR knows the result, or that it is an operand, before Mosaic sees it."""
    known = [constants.of(var) for var in eqn.invars]
    if known and all(value is not None for value in known[name == "select_n" :]):
        return True
    if name not in POINTWISE or len(known) != 2:
        return False
    dtype = np.dtype(eqn.invars[0].aval.dtype)
    if eqn.invars[0] is eqn.invars[1] and (is_integer(dtype) or name in ("max", "min")):
        return name not in ("add", "mul")
    if name in ("max", "min") and dtype.kind == "u":
        return (0 if name == "max" else np.iinfo(dtype).max) in known
    return name in ("div", "rem") and known[1] is not None and known[1] == 1


def _require_parameters(eqn: Any, name: str, values: Sequence[Any], out: Any, line: str) -> None:
    """Reject what JAX does not lower for a TensorCore, or Mosaic, of some primitives."""
    results = str(getattr(out, "dtype", ""))
    dtype = str(getattr(values[0], "dtype", "")) if values else ""
    if name == "dot_general":
        if getattr(getattr(out, "dtype", None), "itemsize", 4) != 4:
            refuse(
                f"a product with sums of {results}: a TPU adds in 32 bits; say "
                "preferred_element_type=jnp.float32 (or jnp.int32), and convert the result",
                line,
            )
        precision = eqn.params["precision"]
        if precision is not None and not (
            isinstance(precision, tuple) and precision[0] == precision[1]
        ):
            refuse(
                f"a product with precision={precision}: a TensorCore has jax.lax.Precision, the "
                "same for both operands",
                line,
            )
    if name == "slice" and any(stride != 1 for stride in eqn.params["strides"] or ()):
        refuse("a slice of a value with a stride: load it so, with pl.ds(..., stride=...)", line)
    if name in ("squeeze", "reshape") and dtype in _UNEVEN and _is_element(eqn):
        refuse(f"an element of {dtype} as a scalar: convert to 32 bits before", line)
    if name == "scan" and has_rows(eqn):
        refuse("a scan over the rows of arrays: loop over indices, and load the rows", line)
    if name == "gather":
        indices = eqn.invars[1].aval
        if indices.shape[:-1] != out.shape or indices.shape[-1:] != (1,):
            refuse(
                "an index that is an array: a TensorCore gathers as jnp.take_along_axis only; "
                "load rows in a loop, or multiply by a matrix of zeros and ones",
                line,
            )
        axis = (*eqn.params["dimension_numbers"].start_index_map, 0)[0]
        several = values[0].shape[axis] > 1  # else there is nothing to choose
        if several and values[0].dtype.itemsize != indices.dtype.itemsize:
            refuse(
                f"a gather of {dtype} by {indices.dtype}: elements and indices have the same size; "
                "convert to 32 bits before",
                line,
            )
    if name == "convert_element_type" and {dtype, results} <= _FLOAT8 and dtype != results:
        refuse(f"no TPU converts {dtype} to {results}: go by float32", line)
    if name == "select_n" and results == "bool" and eqn.invars[0].aval.shape:
        refuse(
            "a choice between arrays of bools: use (c & a) | (~c & b), or choose between numbers "
            "and compare",
            line,
        )
    if name in ("while", "scan") and _carries_bools(eqn, name):
        refuse(
            "a loop that carries an array of bools: carry numbers, such as m.astype(jnp.int32), "
            "and compare in the body",
            line,
        )


def _is_element(eqn: Any) -> bool:
    """Return whether an equation makes a scalar of an array of one element."""
    return eqn.outvars[0].aval.shape == () != eqn.invars[0].aval.shape


def has_rows(eqn: Any) -> bool:
    """Return whether a scan takes rows of arrays, or gives some."""
    _, carried, scanned = scan_parts(eqn.params, len(eqn.invars))
    return scanned > 0 or len(eqn.outvars) > carried


def _carries_bools(eqn: Any, name: str) -> bool:
    """Return whether a loop changes an array of bools from one step to the next."""
    if name == "scan":
        if eqn.params["length"] <= 1 or eqn.params["unroll"] not in (1, False):
            return False  # which are no loops then
        constant, carried, _ = scan_parts(eqn.params, len(eqn.invars))
        body = open_jaxpr(eqn.params["jaxpr"])[0]
    else:
        constant, carried = eqn.params["body_nconsts"], len(eqn.outvars)
        body = open_jaxpr(eqn.params["body_jaxpr"])[0]
    before, after = body.invars[constant : constant + carried], body.outvars[:carried]
    return any(
        old is not new and str(getattr(new.aval, "dtype", "")) == "bool" and new.aval.shape
        for old, new in zip(before, after, strict=True)
    )


# Loads, stores and copies, as JAX's rules for ``load_p``, ``swap_p`` and ``dma_start_p`` have them
# (``mosaic/lowering.py`` and ``sc_lowering.py``).


@dataclass(frozen=True)
class MosaicAccess:
    """A load or a store.

    Attributes:
      ref: abstract value of the reference.
      window: the transforms of the reference.
      value: abstract value of what is loaded or stored.
      mask: abstract value of the mask, or None.
      arrays: whether the last index has an array of indices.
      verb: ``"load from"`` or ``"store to"``.
    """

    ref: Any
    window: tuple[Transform, ...]
    value: Any
    mask: Any
    arrays: bool
    verb: str

    @property
    def last(self) -> Indexed | None:
        """The index that the access itself makes; None if it has the whole window."""
        last = self.window[-1] if self.window else None
        return last if isinstance(last, Indexed) else None

    @property
    def strides(self) -> list[int]:
        """Of the last index, for each axis that it slices."""
        return [] if self.last is None else _strides(self.last)


def access_of(eqn: Any) -> MosaicAccess | None:
    """Return the load or store that an equation is, or None, as for one of random keys."""
    name, avals = eqn.primitive.name, [var.aval for var in eqn.invars]
    mask: Any = None
    if name in ("get", "swap") and set(eqn.params) == {"tree"}:
        first = 1 if name == "get" else 2
        window = transforms_of(eqn.params["tree"], first, len(avals) - first)
        ref, value = avals[0], eqn.outvars[0].aval if name == "get" else avals[1]
    elif name in ("masked_load", "masked_swap"):
        operands = [Operand(number) for number in range(len(avals))]
        target, transforms, third, fourth = eqn.params["args_tree"].unflatten(operands)
        ref, window = avals[target.position], transforms_in(transforms)
        masked = third if name == "masked_load" else fourth
        mask = None if masked is None else avals[masked.position]
        value = eqn.outvars[0].aval if name == "masked_load" else avals[third.position]
    else:
        return None
    if not isinstance(value.dtype, np.dtype):
        return None
    verb = "load from" if name in ("get", "masked_load") else "store to"
    last = window[-1] if window else None
    arrays = isinstance(last, Indexed) and _has_arrays(last, avals)
    return MosaicAccess(ref, window, value, mask, arrays, verb)


def _has_arrays(indexed: Indexed, avals: Sequence[Any]) -> bool:
    return any(
        isinstance(index, Listed)
        or (isinstance(index, Operand) and getattr(avals[index.position], "shape", ()) != ())
        for index in indexed.indices
    )


def _strides(indexed: Indexed) -> list[int]:
    return [index.stride if isinstance(index, AxisSlice) else 1 for index in indexed.indices]


#: Memory that no core loads from or stores to.
_APART = frozenset({"any", "hbm", "host"})


def _require_access(access: MosaicAccess, line: str) -> None:
    """Reject a load or store that JAX does not lower for a TensorCore."""
    space, shape, verb = space_of(access.ref), access.value.shape, access.verb
    if space in _APART:
        refuse(
            f"a {verb} memory space {space}: a TensorCore accesses VMEM and SMEM only; use "
            "pltpu.sync_copy or pltpu.async_copy, or a block in VMEM",
            line,
        )
    if access.arrays:
        refuse(
            f"a {verb} a reference at an array of indices: a TensorCore has indices that are "
            "scalars or slices; loop over them, or use jnp.take_along_axis on a value",
            line,
        )
    if space == "smem":
        if shape or access.mask is not None:
            refuse(
                f"a {verb} SMEM of {access.value.dtype}{list(shape)}: SMEM has scalars only; "
                "access its elements one by one, or use VMEM",
                line,
            )
        return
    seen = access.ref.shape if access.last is None else access.last.shape
    if not seen and all(isinstance(transform, Indexed) for transform in access.window):
        refuse(f"a {verb} a reference without axes: use SMEM, or pass it as (1, 1)", line)
    if access.strides and access.strides[-1] > 1:
        refuse(f"a {verb} VMEM with a stride along the last axis: only other axes have one", line)
    if verb == "load from":
        size = 4 if access.value.dtype.kind == "b" else access.value.dtype.itemsize
        if not shape and size != 4:
            refuse(
                f"an element of {access.value.dtype} in VMEM as a scalar: load a row of it and "
                "convert that to 32 bits, or use SMEM",
                line,
            )
        return
    if not shape:
        refuse(
            "a scalar is stored to VMEM: store an array, such as jnp.full((1, 1), x) to "
            "ref[0:1, 0:1], or put the reference in SMEM",
            line,
        )
    if access.mask is not None and access.value.dtype.itemsize != 4:
        refuse(f"a masked store of {access.value.dtype}: only 32 bits have one on a TPU", line)
    if access.mask is not None and access.mask.shape != shape:
        refuse(
            f"a store of {list(shape)} with a mask of {list(access.mask.shape)}: broadcast the "
            "mask to the shape of the value",
            line,
        )
    if access.mask is not None and any(stride > 1 for stride in access.strides):
        refuse("a masked store with a stride: choose by jnp.where, and store without mask", line)


def _require_access_of_subcore(
    access: MosaicAccess, line: str, vectors: VectorShapes | None
) -> None:
    """Reject a load or store that JAX does not lower for a SparseCore."""
    space, shape, verb = space_of(access.ref), access.value.shape, access.verb
    if space in _APART or space == "vmem_shared":
        refuse(
            f"a {verb} memory space {space}: a subcore accesses its own VMEM and SMEM only; use "
            "pltpu.sync_copy or pltpu.async_copy",
            line,
        )
    if (shape == ()) != (space == "smem"):
        refuse(
            f"a {verb} {space.upper()} of {access.value.dtype}{list(shape)}: a subcore has scalars "
            "in SMEM and arrays in VMEM; load a row from VMEM and take an element of the value",
            line,
        )
    if any(stride > 1 for stride in access.strides):
        refuse(f"a {verb} {space.upper()} with a stride: use plsc.load_gather", line)
    if vectors is None or not shape:
        return
    shapes = vectors(access.value.dtype)
    if shape not in shapes:
        refuse(
            f"a {verb} {space.upper()} of {access.value.dtype}{list(shape)}, in a kernel with "
            f"needs_layout_passes=False: a vector has {' or '.join(map(str, map(list, shapes)))}",
            line,
        )


def _require_copy(eqn: Any, kind: str, line: str) -> None:
    """Reject a copy that Mosaic does not make: it neither converts nor skips."""
    avals = [var.aval for var in eqn.invars]
    parts = copy_parts(eqn.params, len(avals))
    if parts.chooses:
        return
    dtypes = [_dtype_of(part, avals) for part in (parts.source, parts.target)]
    if _stored(dtypes[0]) != _stored(dtypes[1]):
        refuse(
            f"a copy from {dtypes[0]} to {dtypes[1]}: a copy does not convert; make both of the "
            "same dtype, or view one with ref.bitcast",
            line,
        )
    for part in (parts.source, parts.target):
        indices = [one for one in part.transforms if isinstance(one, Indexed)]
        if kind == "tc" and any(_has_arrays(indexed, avals) for indexed in indices):
            refuse(
                "a copy at an array of indices: only the subcores of a SparseCore have it; loop "
                "over the indices, with a copy for each",
                line,
            )


def _dtype_of(part: RefPart, avals: Sequence[Any]) -> Any:
    casts = [one.dtype for one in part.transforms if isinstance(one, Bitcast)]
    return casts[-1] if casts else avals[part.position].dtype


def _stored(dtype: Any) -> Any:
    """Return what Mosaic keeps of a dtype: the bits of integers, and of bools those of int32."""
    if not isinstance(dtype, np.dtype):
        return dtype  # of random keys
    if dtype == np.bool_:
        return 32
    return bit_width(dtype) if is_integer(dtype) else dtype


# The grid and blocks of a ``pallas_call``, as ``mosaic/lowering.py`` checks them.


def require_blocks(facts: GridFacts, line: str = "") -> None:
    """Reject blocks that JAX does not lower for a TPU, apart from what their tiles forbid.

    Args:
      facts: what the call says of its grid and blocks.
      line: ``file:line`` of the call.

    Raises:
      SimulationError: the message has the operand, and the line.
    """
    kinds = getattr(facts.params, "dimension_semantics", None)
    own = len(facts.grid) - len(facts.vmapped)
    if kinds is not None and len(kinds) != own:
        refuse(
            f"dimension_semantics has {len(kinds)} entries, and the grid has {own}: give one for "
            "each",
            line,
        )
    for block in facts.inputs:
        if str(block.dtype) in _UNKNOWN:
            refuse(
                f"no TPU computes with {block.dtype}: {block.name} is an operand of it; use "
                "bfloat16, or convert before the kernel",
                line,
            )
    for block in (*facts.inputs, *facts.outputs):
        problem = _problem_of(block, facts)
        if problem:
            refuse(f"the blocks of {block.name}: {problem}", line)


def _problem_of(block: BlockFacts, facts: GridFacts) -> str:
    """Say why JAX does not lower the blocks of an operand, or ""."""
    if block.space in ("semaphore", "semaphore_mem"):
        return ""
    if block.space in _APART:
        # JAX compiles no batch of such operands either, but vmap may be asked for all the same.
        if block.trivial or facts.vmapped:
            return ""
        return (
            f"in memory space {block.space} there is one block, the whole array; leave out block "
            "shape and index map, and copy parts of it, or use VMEM"
        )
    if not block.dims and block.space != "smem":
        return "a block in VMEM has axes; use memory_space=pltpu.SMEM for a scalar"
    if not facts.grid:
        return "" if block.trivial else "only a call with a grid has several; pass grid="
    kinds = {kind for kind, _, _ in block.dims} - {"Squeezed"}
    if "Element" in kinds and len(kinds) > 1:
        return "either all axes are pl.Element or none"
    if block.trivial and block.space != "smem":
        return ""
    if block.lookahead:
        return "only emit_pipeline looks ahead (use_lookahead=True)"
    buffers = block.buffers
    if buffers is not None and not 1 <= buffers <= 2:
        return f"pallas_call has 1 or 2 buffers, not {buffers}; use pltpu.emit_pipeline for more"
    if block.any_revisit and (buffers or 0) > 1:
        return "revisit=RevisitMode.ANY has one buffer; use pl.Buffered(1, ...)"
    return ""
