"""Rules: convolutions, as one product of matrices (im2col)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pytest_pallas.simulator.arithmetic.dtypes import Array, compute_dtype, convert
from pytest_pallas.simulator.arithmetic.products import Unary, multiplier
from pytest_pallas.simulator.registry import Equation, Evaluate, rule

Dims = Sequence[int]


@rule("conv_general_dilated")
def _conv_general_dilated(eqn: Equation) -> Evaluate:
    """See ``products`` for dtypes. ``precision`` is ignored."""
    return _convolution(eqn, eqn.params["dimension_numbers"])


@rule("conv")
def _conv(eqn: Equation) -> Evaluate:
    """``pltpu.conv``: the window may be turned around, and the result added to an accumulator."""
    numbers = eqn.params["dimension_numbers"]
    reversal = eqn.params["window_reversal"] or (False,) * (len(numbers.rhs_spec) - 2)
    spatial = zip(numbers.rhs_spec[2:], reversal, strict=True)
    axes = tuple(axis for axis, turned in spatial if turned)
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
    """The function that convolves two arrays.

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
    of_features, of_batches = params["feature_group_count"], params["batch_group_count"]
    groups = max(of_features, of_batches)
    batch, features = (lhs.shape[axis] for axis in numbers.lhs_spec[:2])
    kernels, depth = (rhs.shape[axis] for axis in numbers.rhs_spec[:2])
    taps = tuple(rhs.shape[axis] for axis in numbers.rhs_spec[2:])
    sizes = tuple(eqn.out.shape[axis] for axis in numbers.out_spec[2:])
    prepare = _padding(
        [lhs.shape[axis] for axis in numbers.lhs_spec[2:]],
        params["padding"],
        params["lhs_dilation"] or (1,) * rank,
    )
    inner = prod(taps) * depth
    # Never of depth 1: JAX adds even a single product to a zero.
    multiply = multiplier(
        lhs.dtype, rhs.dtype, out or eqn.out.dtype, max(inner, 2), batched=groups > 1
    )
    # [batch, spatial, features]; the filter's taps before its features, so that these, which are
    # mostly the last dimension of the operand, are copied at once.
    lhs_axes = [numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]]
    rhs_axes = [*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]]
    back = np.argsort([numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1]])
    rows = batch // of_batches * prod(sizes)

    def windows(x: Array) -> Array:
        """For each place of the result the elements that its sum is of: [batch, out, taps, f]."""
        outer, *along, last = x.strides
        steps = [stride * step for stride, step in zip(along, strides, strict=True)]
        within = [stride * step for stride, step in zip(along, rhs_dilation, strict=True)]
        shape = (batch, *sizes, *taps, features)
        return as_strided(x, shape, (outer, *steps, *within, last), writeable=False)

    def evaluate(x: Array, w: Array) -> Array:
        places = windows(prepare(x.transpose(lhs_axes)))
        filters = w.transpose(rhs_axes).reshape(inner, kernels)
        if groups == 1:
            found = multiply(places.reshape(rows, inner), filters)
            return found.reshape(batch, *sizes, kernels).transpose(back)
        if of_features > 1:
            parts = places.reshape(batch, *sizes, *taps, groups, depth)
            parts = np.moveaxis(parts, -2, 0)
        else:
            parts = places.reshape(groups, batch // groups, *places.shape[1:])
        filters = filters.reshape(inner, groups, kernels // groups).transpose(1, 0, 2)
        found = multiply(parts.reshape(groups, rows, inner), np.ascontiguousarray(filters))
        found = found.reshape(groups, batch // of_batches, *sizes, kernels // groups)
        found = np.moveaxis(found, 0, -2)
        return found.reshape(batch // of_batches, *sizes, kernels).transpose(back)

    return evaluate


def _padding(sizes: Dims, padding: Any, dilation: Dims) -> Unary:
    """Puts zeros between elements and around them; what negative padding names is left out.

    Args:
      sizes: of the spatial dimensions.
      padding: before and after each of them.
      dilation: distance of neighbors.
    """
    shape: list[int] = []
    targets: list[slice] = []
    sources: list[slice] = []
    for size, (low, high), step in zip(sizes, padding, dilation, strict=True):
        length = max(0, (size - 1) * step + 1 if size else 0) + low + high
        first = -(low // step) if low < 0 else 0
        last = min(size, (length - 1 - low) // step + 1)
        shape.append(max(0, length))
        sources.append(slice(first, max(first, last)))
        targets.append(slice(low + first * step, low + (max(first, last) - 1) * step + 1, step))
    if all(tuple(pair) == (0, 0) for pair in padding) and shape == list(sizes):
        return lambda x: x
    empty = any(part.start >= part.stop for part in sources)

    def evaluate(x: Array) -> Array:
        found = np.zeros((x.shape[0], *shape, x.shape[-1]), x.dtype)
        if not empty:
            found[:, *targets] = x[:, *sources]
        return found

    return evaluate
