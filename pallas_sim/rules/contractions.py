"""Rules: products of arrays: ``dot_general``, ``ragged_dot_general``, and convolutions.

Each rule reshapes its operands to matrices and multiplies these. ``products.multiplier`` adds the
terms as a matrix unit does, ``gpu.tensor_cores`` as the tensor cores of a chip do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pallas_sim.chips import Accumulation
from pallas_sim.dtypes import Array, compute_dtype, convert
from pallas_sim.machine import Thread
from pallas_sim.products import (
    Multiply,
    Unary,
    least_exponent,
    multiplier,
    passes_of,
    product_in_passes,
    takes_passes,
    truncated_product,
)
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.shapes import padder

if TYPE_CHECKING:
    from pallas_sim.machine import Machine, Thread


Dims = Sequence[int]


@rule("dot_general", "sum_of_product", threaded=True)
def _dot_general(eqn: Equation) -> Evaluate:
    """Contract two arrays, and add a third one if there is one; see ``products`` for dtypes.

    ``out_sharding`` is ignored, and so is ``precision``, except in kernels for Triton and TPUs with
    the arithmetic of the chip. Triton's accumulator begins at what is added.
    """
    lhs, rhs, *addend = eqn.ins
    dims = eqn.params["dimension_numbers"]
    depth = prod(lhs.shape[axis] for axis in dims[0][0])
    multiply = multiplier(lhs.dtype, rhs.dtype, eqn.out.dtype, depth, batched=bool(dims[1][0]))
    contract = contraction(lhs.shape, rhs.shape, dims, multiply)
    passes = passes_of(eqn.params["precision"])
    if not takes_passes(lhs.dtype, rhs.dtype, passes):
        passes = 0

    def in_passes(a: Any, b: Any) -> Any:
        return product_in_passes(multiply, a, b, passes)

    contract_in_passes = contraction(lhs.shape, rhs.shape, dims, in_passes)
    by_chip: dict[str, Evaluate] = {}

    def default(a: Any, b: Any, *c: Any) -> Any:
        product = contract(a, b)
        return product + c[0] if c else product

    def product_on(machine: Machine) -> Evaluate:
        """Return the product of Triton's ``dot`` on a chip.

        This is the default one if the chip's is not known, or this is no product of two matrices,
        as Triton's ``dot`` is.
        """
        from pallas_sim.gpu.tensor_cores import dot_product

        dtypes, precision = (lhs.dtype, rhs.dtype, eqn.out.dtype), eqn.params["precision"]
        if dims[1][0] or len(eqn.out.shape) != 2:
            return default
        rows, columns = eqn.out.shape
        whole = rows % 64 == 0 and columns % 8 == 0
        product = dot_product(*dtypes, precision, machine.accumulations, whole=whole)
        if product is None:
            return default
        if not addend:
            return contraction(lhs.shape, rhs.shape, dims, lambda a, b: product(a, b, None))

        def added(a: Any, b: Any, c: Any) -> Any:
            def with_addend(a: Any, b: Any) -> Any:
                return product(a, b, c.reshape(a.shape[0], b.shape[1]))

            return contraction(lhs.shape, rhs.shape, dims, with_addend)(a, b)

        return added

    def evaluate(thread: Thread, *operands: Any) -> Any:
        machine = thread.machine
        if not thread.kernels or not machine.accumulations:
            if passes and thread.kernels and machine.multiplies_in_passes:
                a, b, *c = operands
                product = contract_in_passes(a, b)
                return product + c[0] if c else product
            return default(*operands)
        product = by_chip.get(machine.target)
        if product is None:
            product = by_chip[machine.target] = product_on(machine)
        return product(*operands)

    return evaluate


def contraction(lhs: Dims, rhs: Dims, dims: Any, multiply: Multiply) -> Evaluate:
    """Return the function that contracts two arrays by one product of matrices.

    Args:
      lhs: shape of the first array.
      rhs: shape of the second one.
      dims: contracting dimensions of both, and batch dimensions of both.
      multiply: see ``products.multiplier``.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    # Any order of the contracted dimensions is right. In the order of the first operand, that
    # operand needs no copy.
    order = sorted(range(len(lhs_contract)), key=lambda number: lhs_contract[number])
    lhs_contract = [lhs_contract[number] for number in order]
    rhs_contract = [rhs_contract[number] for number in order]
    lhs_free = _others(len(lhs), lhs_contract, lhs_batch)
    rhs_free = _others(len(rhs), rhs_contract, rhs_batch)
    left = _matrices(lhs, lhs_batch, lhs_free, lhs_contract)
    right = _matrices(rhs, rhs_batch, rhs_contract, rhs_free)
    shape = tuple(lhs[axis] for axis in [*lhs_batch, *lhs_free])
    shape += tuple(rhs[axis] for axis in rhs_free)
    if len(shape) == 2 and not lhs_batch and len(lhs_free) == 1:
        if left is right is None:
            return multiply
        first, second = left or _same, right or _same
        return lambda a, b: multiply(first(a), second(b))
    first, second = left or _same, right or _same
    return lambda a, b: multiply(first(a), second(b)).reshape(shape)


def _others(ndim: int, *taken: Dims) -> list[int]:
    used = {axis for axes in taken for axis in axes}
    return [axis for axis in range(ndim) if axis not in used]


def _matrices(shape: Dims, batch: Dims, rows: Dims, columns: Dims) -> Unary | None:
    """Return the function that makes an array of this shape matrices [batch, rows, columns].

    None if the array has this shape already.
    """
    count, height, width = (prod(shape[axis] for axis in axes) for axes in (batch, rows, columns))
    natural = list(range(len(shape)))
    target: tuple[int, ...] = (height, width)
    swapped: tuple[int, ...] = (width, height)
    if batch:
        target, swapped = (count, *target), (count, *swapped)
    axes = [*batch, *rows, *columns]
    if axes == natural:
        return None if tuple(shape) == target else lambda array: array.reshape(target)
    if [*batch, *columns, *rows] == natural:
        if tuple(shape) == swapped:
            return lambda array: array.swapaxes(-1, -2)
        return lambda array: array.reshape(swapped).swapaxes(-1, -2)
    if len(batch) <= 1 and len(rows) == 1 and len(columns) == 1:
        return lambda array: array.transpose(axes)
    return lambda array: array.transpose(axes).reshape(target)


def _same(value: Any) -> Any:
    return value


def tensor_core_product(
    lhs: Array,
    rhs: Array,
    dims: Any,
    accumulation: Accumulation,
    least: int,
    order: Callable[[int], Array] = np.arange,
) -> Array:
    """Return the product of two arrays as float64, with sums as tensor cores add them.

    Args:
      lhs: finite floats.
      rhs: finite floats.
      dims: ``dimension_numbers`` of a ``dot_general`` with one batch dimension at most.
      accumulation: how the instruction adds; see ``chips.accumulations``.
      least: the smallest exponent of the format of the operands.
      order: returns the order in which terms are added, as indices, for a number of terms.
    """

    sums_least = least_exponent(np.float32)

    def matrix_product(a: Array, b: Array) -> Array:
        return truncated_product(a, b, None, accumulation, (least, least, sums_least))

    def multiply(a: Array, b: Array) -> Array:
        terms = order(a.shape[-1])
        a, b = a[..., terms].astype(np.float64), b[..., terms, :].astype(np.float64)
        return matrix_product(a, b) if a.ndim == 2 else np.stack([*map(matrix_product, a, b)])

    return contraction(lhs.shape, rhs.shape, dims, multiply)(lhs, rhs)


@rule("ragged_dot_general")
def _ragged_dot_general(eqn: Equation) -> Evaluate:
    """Multiply each group, a slice of the ragged dimension, on its own.

    Rows of the result that belong to no group are zeros. They are also zeros for infinite operands,
    where JAX's own lowering returns NaN.
    """
    lhs, rhs, sizes = eqn.ins
    if eqn.params.get("group_offset") is not None:
        raise NotImplementedError("ragged_dot_general with group_offset")
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    dims = numbers.dot_dimension_numbers
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    ragged = numbers.lhs_ragged_dimensions[0]
    # Never depth 1, which multiplies without a sum: a group may be empty, and its sum is 0.
    depth = max(2, prod(lhs.shape[axis] for axis in lhs_contract))
    multiply = multiplier(lhs.dtype, rhs.dtype, eqn.out.dtype, depth, batched=bool(lhs_batch))
    if ragged in lhs_batch:  # each batch has its own matrix already, whatever its group
        dense = contraction(lhs.shape, rhs.shape, dims, multiply)
        return lambda a, b, sizes: dense(a, b)

    def product(a: Array, b: Array, dims: Any = dims) -> Array:
        return contraction(a.shape, b.shape, dims, multiply)(a, b)

    groups = sizes.shape[-1]
    if ragged in lhs_contract:
        # The axis of the other operand, and the axes of both for which groups differ in size.
        rhs_ragged = rhs_contract[list(lhs_contract).index(ragged)]
        lhs_outer = [*lhs_batch, *lhs_contract[: list(lhs_contract).index(ragged)]]
        rhs_outer = [*rhs_batch, *rhs_contract[: list(lhs_contract).index(ragged)]]

        def contracted(a: Array, b: Array, sizes: Array) -> Array:
            result = np.empty(eqn.out.shape, eqn.out.dtype)
            for group in range(groups):
                if sizes.ndim == 1:
                    span = _span(sizes, group)
                    result[group] = product(_along(a, ragged, span), _along(b, rhs_ragged, span))
                else:
                    left, right = (
                        _mask(sizes, group, array.shape, axes, axis)
                        for array, axes, axis in (
                            (a, lhs_outer, ragged),
                            (b, rhs_outer, rhs_ragged),
                        )
                    )
                    result[group] = product(
                        np.where(left, a, np.zeros((), a.dtype)),
                        np.where(right, b, np.zeros((), b.dtype)),
                    )
            return result

        return contracted

    (group_axis,) = numbers.rhs_group_dimensions
    inner = tuple(tuple(_without(axes, group_axis)) for axes in (rhs_contract, rhs_batch))
    inner_dims = ((lhs_contract, inner[0]), (lhs_batch, inner[1]))
    free = _others(len(lhs.shape), lhs_contract, lhs_batch)
    position = len(lhs_batch) + free.index(ragged)

    def rows(a: Array, b: Array, sizes: Array) -> Array:
        result = np.zeros(eqn.out.shape, eqn.out.dtype)
        for group in range(groups):
            of_group = _along(b, group_axis, group)
            if sizes.ndim == 1:
                span = _span(sizes, group)
                target = _along(result, position, span)
                target[...] = product(_along(a, ragged, span), of_group, inner_dims)
            else:
                mask = _mask(sizes, group, result.shape, range(position), position)
                np.copyto(result, product(a, of_group, inner_dims), where=mask)
        return result

    return rows


def _along(array: Array, axis: int, index: Any) -> Array:
    """Return a view of an array, indexed along one axis."""
    return array[(slice(None),) * axis + (index,)]


def _span(sizes: Array, group: int) -> slice:
    """Return the indices of a group along the ragged axis."""
    start = int(sizes[:group].sum())
    return slice(start, start + int(sizes[group]))


def _mask(sizes: Array, group: int, shape: Dims, outer: Dims, axis: int) -> Array:
    """Return the mask of the elements of a group, for sizes that differ along ``outer``.

    Args:
      sizes: of the groups, ``[*outer, groups]``.
      group: the number of the group.
      shape: of the array that the mask is for.
      outer: the axes of the array along which the sizes differ.
      axis: the ragged axis of the array.
    """
    ends = np.cumsum(sizes, axis=-1)[..., group]
    starts = ends - sizes[..., group]
    aligned = [1] * len(shape)
    for number in outer:
        aligned[number] = shape[number]
    order = np.argsort(outer)
    starts, ends = (edges.transpose(order).reshape(aligned) for edges in (starts, ends))
    along = [1] * len(shape)
    along[axis] = shape[axis]
    position = np.arange(shape[axis]).reshape(along)
    return (starts <= position) & (position < ends)


def _without(axes: Dims, removed: int) -> list[int]:
    """Return the numbers of these axes after an axis is removed."""
    return [axis - (axis > removed) for axis in axes]


# A convolution is one product of matrices (im2col): the rows of the first are the array's windows.


@rule("conv_general_dilated")
def _conv_general_dilated(eqn: Equation) -> Evaluate:
    """Convolve two arrays; see ``products`` for dtypes. ``precision`` is ignored."""
    return _convolution(eqn, eqn.params["dimension_numbers"])


@rule("conv")
def _conv(eqn: Equation) -> Evaluate:
    """Convolve as ``pltpu.conv``: it may reverse axes of the window, and add an accumulator."""
    numbers = eqn.params["dimension_numbers"]
    reversal = eqn.params["window_reversal"] or (False,) * (len(numbers.rhs_spec) - 2)
    spatial = zip(numbers.rhs_spec[2:], reversal, strict=True)
    axes = tuple(axis for axis, is_reversed in spatial if is_reversed)
    if len(eqn.ins) == 2:
        convolve = _convolution(eqn, numbers)
        return lambda x, w: convolve(x, np.flip(w, axes))
    dtype = eqn.out.dtype
    wide = compute_dtype(dtype)
    exact = _convolution(eqn, numbers, wide)

    def accumulated(x: Array, w: Array, total: Array) -> Array:
        return convert(convert(total, wide) + exact(x, np.flip(w, axes)), dtype)

    return accumulated


def _convolution(eqn: Equation, numbers: Any, out: Any = None) -> Evaluate:
    """Return the function that convolves two arrays.

    Args:
      eqn: the equation, whose parameters are those of ``conv_general_dilated``.
      numbers: batch, feature and spatial dimensions of operands and result.
      out: dtype of the result, if it is not the equation's.
    """
    params = eqn.params
    lhs, rhs = eqn.ins[:2]
    rank = len(lhs.shape) - 2
    strides = params["window_strides"] or (1,) * rank
    rhs_dilation = params["rhs_dilation"] or (1,) * rank
    feature_groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    groups = max(feature_groups, batch_groups)  # one of the two is 1
    batch, features = (lhs.shape[axis] for axis in numbers.lhs_spec[:2])
    filter_count, depth = (rhs.shape[axis] for axis in numbers.rhs_spec[:2])
    taps = tuple(rhs.shape[axis] for axis in numbers.rhs_spec[2:])
    sizes = tuple(eqn.out.shape[axis] for axis in numbers.out_spec[2:])
    gaps = [step - 1 for step in params["lhs_dilation"] or (1,) * rank]
    padding = [(*pair, gap) for pair, gap in zip(params["padding"], gaps, strict=True)]
    inner = prod(taps) * depth
    # Never of depth 1: JAX adds even a single product to a zero.
    multiply = multiplier(
        lhs.dtype, rhs.dtype, out or eqn.out.dtype, max(inner, 2), batched=groups > 1
    )
    # The array becomes [batch, spatial, features], and the filter [taps, features, filters]. Taps
    # come before features, because features are mostly the last dimension of the array: so a copy
    # of windows copies all features of a tap at once.
    lhs_axes = [numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]]
    lhs_shape, unpadded = [lhs.shape[axis] for axis in lhs_axes], (0, 0, 0)
    pad = padder(lhs_shape, [unpadded, *padding, unpadded], lhs.dtype)
    rhs_axes = [*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]]
    out_axes = np.argsort([numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1]])
    rows = batch // batch_groups * prod(sizes)

    def windows(x: Array) -> Array:
        """Return a view of the elements that each sum adds: [batch, out, taps, features]."""
        outer, *along, last = x.strides
        steps = [stride * step for stride, step in zip(along, strides, strict=True)]
        within = [stride * step for stride, step in zip(along, rhs_dilation, strict=True)]
        shape = (batch, *sizes, *taps, features)
        return as_strided(x, shape, (outer, *steps, *within, last), writeable=False)

    def evaluate(x: Array, w: Array) -> Array:
        patches = windows(pad(x.transpose(lhs_axes), 0))
        filters = w.transpose(rhs_axes).reshape(inner, filter_count)
        if groups == 1:
            result = multiply(patches.reshape(rows, inner), filters)
            return result.reshape(batch, *sizes, filter_count).transpose(out_axes)
        if feature_groups > 1:
            parts = patches.reshape(batch, *sizes, *taps, groups, depth)
            parts = np.moveaxis(parts, -2, 0)
        else:
            parts = patches.reshape(groups, batch // groups, *patches.shape[1:])
        filters = filters.reshape(inner, groups, filter_count // groups).transpose(1, 0, 2)
        result = multiply(parts.reshape(groups, rows, inner), np.ascontiguousarray(filters))
        result = result.reshape(groups, batch // batch_groups, *sizes, filter_count // groups)
        result = np.moveaxis(result, 0, -2)
        return result.reshape(batch // batch_groups, *sizes, filter_count).transpose(out_axes)

    return evaluate
