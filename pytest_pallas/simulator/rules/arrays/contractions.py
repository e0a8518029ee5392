"""Rules: products and sums over contracted dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_pallas.simulator.arithmetic.products import Array, Multiply, Unary, multiplier
from pytest_pallas.simulator.registry import Equation, Evaluate, rule

if TYPE_CHECKING:
    from pytest_pallas.simulator.machine import Machine
    from pytest_pallas.simulator.thread import Thread

Dims = Sequence[int]


@rule("dot_general", threaded=True)
def _dot_general(eqn: Equation) -> Evaluate:
    """See ``products`` for dtypes. ``out_sharding`` is ignored.

    So is ``precision``, but in a kernel of Triton on a chip whose arithmetic is known.
    """
    lhs, rhs = eqn.ins
    dims = eqn.params["dimension_numbers"]
    depth = prod(lhs.shape[axis] for axis in dims[0][0])
    multiply = multiplier(lhs.dtype, rhs.dtype, eqn.out.dtype, depth, batched=bool(dims[1][0]))
    usual = contraction(lhs.shape, rhs.shape, dims, multiply)
    on_chips: dict[str, Evaluate] = {}

    def on_chip(machine: Machine) -> Evaluate:
        """How Triton's ``dot`` is evaluated on a chip: it has no batch dimensions."""
        from pytest_pallas.simulator.gpu.tensor_cores.products import dot_product

        dtypes, precision = (lhs.dtype, rhs.dtype, eqn.out.dtype), eqn.params["precision"]
        product = dot_product(*dtypes, depth, precision, machine.accumulations)
        if product is None or dims[1][0]:
            return usual
        return contraction(lhs.shape, rhs.shape, dims, product)

    def evaluate(thread: Thread, a: Any, b: Any) -> Any:
        machine = thread.machine
        if not thread.kernels or not machine.accumulations:
            return usual(a, b)
        found = on_chips.get(machine.target)
        if found is None:
            found = on_chips[machine.target] = on_chip(machine)
        return found(a, b)

    return evaluate


def contraction(lhs: Dims, rhs: Dims, dims: Any, multiply: Multiply) -> Evaluate:
    """The function that contracts two arrays by one product of matrices.

    Args:
      lhs: shape of the first array.
      rhs: shape of the second one.
      dims: contracting dimensions of both, and batch dimensions of both.
      multiply: see ``products.multiplier``.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    # Any order of the contracted dimensions will do; that of the first operand saves its copy.
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
    """How an array becomes matrices [batch, rows, columns], as a view if possible; None: it is."""
    count, height, width = (prod(shape[axis] for axis in axes) for axes in (batch, rows, columns))
    natural = list(range(len(shape)))
    wanted: tuple[int, ...] = (height, width)
    turned: tuple[int, ...] = (width, height)
    if batch:
        wanted, turned = (count, *wanted), (count, *turned)
    axes = [*batch, *rows, *columns]
    if axes == natural:
        return None if tuple(shape) == wanted else lambda array: array.reshape(wanted)
    if [*batch, *columns, *rows] == natural:
        if tuple(shape) == turned:
            return lambda array: array.swapaxes(-1, -2)
        return lambda array: array.reshape(turned).swapaxes(-1, -2)
    if len(batch) <= 1 and len(rows) == 1 and len(columns) == 1:
        return lambda array: array.transpose(axes)
    return lambda array: array.transpose(axes).reshape(wanted)


def _same(value: Any) -> Any:
    return value


@rule("ragged_dot_general")
def _ragged_dot_general(eqn: Equation) -> Evaluate:
    """The product of each group with its own rows; rows of no group are zeros.

    They are zeros for infinite operands too, where JAX's own lowering gives NaN.
    """
    lhs, rhs, sizes = eqn.ins
    if eqn.params.get("group_offset") is not None:
        raise NotImplementedError("ragged_dot_general with group_offset")
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    dims = numbers.dot_dimension_numbers
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    ragged = numbers.lhs_ragged_dimensions[0]
    # Never of depth 1: a group may be empty.
    depth = max(2, prod(lhs.shape[axis] for axis in lhs_contract))
    multiply = multiplier(lhs.dtype, rhs.dtype, eqn.out.dtype, depth, batched=bool(lhs_batch))
    if ragged in lhs_batch:
        dense = contraction(lhs.shape, rhs.shape, dims, multiply)
        return lambda a, b, sizes: dense(a, b)

    def product(a: Array, b: Array, dims: Any = dims) -> Array:
        return contraction(a.shape, b.shape, dims, multiply)(a, b)

    groups = sizes.shape[-1]
    if ragged in lhs_contract:
        partner = rhs_contract[list(lhs_contract).index(ragged)]
        outer = [*lhs_batch, *lhs_contract[: list(lhs_contract).index(ragged)]]
        beside = [*rhs_batch, *rhs_contract[: list(lhs_contract).index(ragged)]]

        def contracted(a: Array, b: Array, sizes: Array) -> Array:
            found = np.empty(eqn.out.shape, eqn.out.dtype)
            for group in range(groups):
                if sizes.ndim == 1:
                    span = _span(sizes, group)
                    found[group] = product(_along(a, ragged, span), _along(b, partner, span))
                else:
                    left, right = (
                        _mask(sizes, group, array.shape, axes, axis)
                        for array, axes, axis in ((a, outer, ragged), (b, beside, partner))
                    )
                    found[group] = product(
                        np.where(left, a, np.zeros((), a.dtype)),
                        np.where(right, b, np.zeros((), b.dtype)),
                    )
            return found

        return contracted

    (group_axis,) = numbers.rhs_group_dimensions
    inner = tuple(tuple(_without(axes, group_axis)) for axes in (rhs_contract, rhs_batch))
    inner_dims = ((lhs_contract, inner[0]), (lhs_batch, inner[1]))
    free = _others(len(lhs.shape), lhs_contract, lhs_batch)
    place = len(lhs_batch) + free.index(ragged)

    def rows(a: Array, b: Array, sizes: Array) -> Array:
        found = np.zeros(eqn.out.shape, eqn.out.dtype)
        for group in range(groups):
            of_group = _along(b, group_axis, group)
            if sizes.ndim == 1:
                span = _span(sizes, group)
                target = _along(found, place, span)
                target[...] = product(_along(a, ragged, span), of_group, inner_dims)
            else:
                mask = _mask(sizes, group, found.shape, range(place), place)
                np.copyto(found, product(a, of_group, inner_dims), where=mask)
        return found

    return rows


def _along(array: Array, axis: int, index: Any) -> Array:
    return array[(slice(None),) * axis + (index,)]


def _span(sizes: Array, group: int) -> slice:
    start = int(sizes[:group].sum())
    return slice(start, start + int(sizes[group]))


def _mask(sizes: Array, group: int, shape: Dims, outer: Dims, axis: int) -> Array:
    """Where an array belongs to a group, if ``axis`` is divided for each index of ``outer``."""
    ends = np.cumsum(sizes, axis=-1)[..., group]
    starts = ends - sizes[..., group]
    aligned = [1] * len(shape)
    for number in outer:
        aligned[number] = shape[number]
    order = np.argsort(outer)
    starts, ends = (each.transpose(order).reshape(aligned) for each in (starts, ends))
    line = [1] * len(shape)
    line[axis] = shape[axis]
    position = np.arange(shape[axis]).reshape(line)
    return (starts <= position) & (position < ends)


def _without(axes: Dims, removed: int) -> list[int]:
    return [axis - (axis > removed) for axis in axes]
