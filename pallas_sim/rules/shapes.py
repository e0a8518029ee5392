"""Rules that rearrange elements: reshaping, moving, slicing, joining, padding and sorting.

``on_words`` lets a rule take typed PRNG keys, too: it passes their words as arrays, which have one
axis more than the array of keys. That axis is the ``tail`` below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.accesses import memory_of
from pallas_sim.compat.jaxprs import is_literal, semaphore_kind
from pallas_sim.dtypes import Array, compute_dtype, convert, converter, is_complex, is_float, widen
from pallas_sim.generators import elements, key_axes, on_words
from pallas_sim.machine import Thread
from pallas_sim.memory import KeyArray, is_key_dtype
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.bits import ordered_bits


@rule("broadcast_in_dim", "broadcast_to")
def _broadcast(eqn: Equation) -> Evaluate:
    # Further operands would be dynamic sizes, which Pallas does not support.
    rank = len(eqn.out.shape)
    last = range(rank - len(eqn.ins[0].shape), rank)
    dims = tuple(eqn.params.get("broadcast_dimensions", last))
    return _once_if_literal(eqn, on_words(eqn, _broadcaster(eqn, dims)))


def _broadcaster(eqn: Equation, dims: tuple[int, ...]) -> Callable[[Any], Array]:
    """Return the function that broadcasts its argument to the result of ``eqn``.

    Axis ``i`` of the argument becomes axis ``dims[i]`` of the result.
    """
    tail = key_axes(eqn)
    source, shape = tuple(eqn.ins[0].shape) + tail, tuple(eqn.out.shape) + tail
    dims += tuple(range(len(eqn.out.shape), len(shape)))
    aligned = [1] * len(shape)
    for size, dim in zip(source, dims, strict=True):
        aligned[dim] = size
    aligned_shape = tuple(aligned)
    if aligned_shape == shape:
        return lambda value: value.reshape(shape)
    dtype = elements(eqn)
    view_strides = [0] * len(shape)  # 0 repeats the elements along an axis
    stride = dtype.itemsize
    for size, dim in zip(reversed(source), reversed(dims), strict=True):
        view_strides[dim] = stride if size != 1 else 0
        stride *= size
    strides = tuple(view_strides)
    empty = 0 in shape

    def evaluate(value: Any) -> Array:
        value = np.asarray(value)
        if empty or not value.flags.c_contiguous:
            return np.broadcast_to(value.reshape(aligned_shape), shape)
        # The same view as np.broadcast_to makes, in a tenth of the time.
        view = np.ndarray(shape, dtype, value, 0, strides)
        view.flags.writeable = False
        return view

    return evaluate


def _once_if_literal(eqn: Equation, evaluate: Evaluate) -> Evaluate:
    """Return ``evaluate``; if the operand is a literal, evaluate once and keep the result."""
    if eqn.origin is None or not is_literal(eqn.origin.invars[0]):
        return evaluate
    results: list[Any] = []

    def first_result(*values: Any) -> Any:
        if not results:
            results.append(evaluate(*values))
        return results[0]

    return first_result


@rule("reshape", "squeeze")
def _reshape(eqn: Equation) -> Evaluate:
    tail = key_axes(eqn)
    shape, order = tuple(eqn.out.shape) + tail, eqn.params.get("dimensions")
    if order is None or eqn.name == "squeeze":
        return on_words(eqn, lambda value, *_: value.reshape(shape))
    order = (*order, *range(len(order), len(order) + len(tail)))
    return on_words(eqn, lambda value, *_: value.transpose(order).reshape(shape))


@rule("transpose")
def _transpose(eqn: Equation) -> Evaluate:
    order = tuple(eqn.params["permutation"])
    order += tuple(range(len(order), len(order) + len(key_axes(eqn))))
    return on_words(eqn, lambda value: value.transpose(order))


@rule("rev")
def _rev(eqn: Equation) -> Evaluate:
    reversed_dims = eqn.params["dimensions"]
    index = tuple(
        slice(None, None, -1 if dim in reversed_dims else None) for dim in range(len(eqn.out.shape))
    )
    return on_words(eqn, lambda value: value[index])


@rule("tile")
def _tile(eqn: Equation) -> Evaluate:
    tail = key_axes(eqn)
    shape, source = tuple(eqn.out.shape) + tail, tuple(eqn.ins[0].shape)
    reps = tuple(eqn.params["reps"])
    # One more axis before each, along which the elements repeat.
    with_ones = tuple(size for dim in source for size in (1, dim)) + tail
    repeated = tuple(size for pair in zip(reps, source, strict=True) for size in pair) + tail
    return on_words(
        eqn, lambda value: np.broadcast_to(value.reshape(with_ones), repeated).reshape(shape)
    )


@rule("iota")
def _iota(eqn: Equation) -> Evaluate:
    shape, dim = tuple(eqn.out.shape), eqn.params["dimension"]
    numbers = convert(np.arange(shape[dim]), np.dtype(eqn.out.dtype))
    aligned = [1] * len(shape)
    aligned[dim] = shape[dim]
    value = np.broadcast_to(numbers.reshape(aligned), shape)
    return lambda *_: value


@rule("empty", "empty2", threaded=True)
def _empty(eqn: Equation) -> Evaluate:
    # Uninitialized memory, as on a chip. The zeros of JAX on the CPU would hide a read of it.
    dtype, shape = eqn.out.dtype, tuple(eqn.out.shape)
    if semaphore_kind(dtype) is not None:
        return lambda thread, *_: memory_of(thread.machine, shape, dtype, "semaphore", "output")
    shape, element = shape + key_axes(eqn), elements(eqn)

    def evaluate(thread: Thread, *_: Any) -> Any:
        memory = thread.machine.uninitialized(shape, element, "scratch")
        return KeyArray(memory, dtype) if is_key_dtype(dtype) else memory

    return evaluate


@rule("roll")
def _roll(eqn: Equation) -> Evaluate:
    axis, stride = eqn.params["axis"], eqn.params["stride"]
    shape = tuple(eqn.ins[0].shape)
    size = shape[axis]
    if math.prod(shape) == 0:
        return lambda value, _: value
    if stride is None:
        before = (slice(None),) * axis

        def rotate(value: Any, shift: Any) -> Any:
            first = -int(shift) % size
            if first == 0:
                return value
            parts = (value[(*before, slice(first, None))], value[(*before, slice(None, first))])
            return np.concatenate(parts, axis)

        return rotate
    row_axis = eqn.params["stride_axis"]  # row r rotates by shift + r * stride
    ones = [1] * len(shape)
    positions = np.arange(size).reshape([*ones[:axis], size, *ones[axis + 1 :]])
    count = shape[row_axis]
    rows = np.arange(count).reshape([*ones[:row_axis], count, *ones[row_axis + 1 :]])
    source = positions - rows * stride

    def rotate_rows(value: Any, shift: Any) -> Any:
        return np.take_along_axis(value, (source - int(shift)) % size, axis)

    return rotate_rows


Index = tuple[slice, ...]


@rule("slice")
def _slice(eqn: Equation) -> Evaluate:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    index = tuple(map(slice, starts, limits, strides))
    return on_words(eqn, lambda value: value[index])


@rule("dynamic_slice")
def _dynamic_slice(eqn: Equation) -> Evaluate:
    shape, sizes = tuple(eqn.ins[0].shape), tuple(eqn.params["slice_sizes"])
    return on_words(eqn, lambda value, *starts: value[_window(shape, sizes, starts)])


@rule("dynamic_update_slice")
def _dynamic_update_slice(eqn: Equation) -> Evaluate:
    shape, sizes = tuple(eqn.ins[0].shape), tuple(eqn.ins[1].shape)

    def evaluate(value: Any, update: Any, *starts: Any) -> Array:
        result = np.array(value)
        result[_window(shape, sizes, starts)] = update
        return result

    return on_words(eqn, evaluate)


def _window(shape: tuple[int, ...], sizes: tuple[int, ...], starts: tuple[Any, ...]) -> Index:
    """Return the index of a window, moved as little as needed so that all of it is inside."""
    index: list[slice] = []
    for full, size, start in zip(shape, sizes, starts, strict=False):
        # As XLA does: clamp the start, so that no access is out of bounds.
        first = min(max(int(start), 0), full - size)
        index.append(slice(first, first + size))
    return tuple(index)


@rule("concatenate")
def _concatenate(eqn: Equation) -> Evaluate:
    axis = eqn.params["dimension"]
    if len(eqn.ins) == 1:
        return lambda value: value
    return on_words(eqn, lambda *values: np.concatenate(values, axis))


@rule("stack")
def _stack(eqn: Equation) -> Evaluate:
    axis = eqn.params["axis"] % len(eqn.out.shape)
    add_axis = (*(slice(None),) * axis, None)
    return on_words(
        eqn, lambda *values: np.concatenate([value[add_axis] for value in values], axis)
    )


@rule("unstack")
def _unstack(eqn: Equation) -> Evaluate:
    axis = eqn.params["axis"] % len(eqn.ins[0].shape)
    before = (slice(None),) * axis
    indices = [(*before, number) for number in range(len(eqn.outs))]
    return on_words(eqn, lambda value: [value[index] for index in indices])


@rule("split")
def _split(eqn: Equation) -> Evaluate:
    before = (slice(None),) * eqn.params["axis"]
    indices: list[Index] = []
    first = 0
    for size in map(int, eqn.params["sizes"]):
        indices.append((*before, slice(first, first + size)))
        first += size
    return on_words(eqn, lambda value: [value[index] for index in indices])


@rule("pad")
def _pad(eqn: Equation) -> Evaluate:
    pad = padder(eqn.ins[0].shape, eqn.params["padding_config"], elements(eqn), key_axes(eqn))
    return on_words(eqn, pad)


def padder(
    sizes: Sequence[int],
    config: Sequence[tuple[int, int, int]],
    dtype: np.dtype[Any],
    tail: tuple[int, ...] = (),
) -> Callable[[Any, Any], Array]:
    """Return the function that takes an array and a value, and returns the array padded with it.

    Args:
      sizes: shape of the array, without ``tail``.
      config: for each axis, how many elements are added before it, after it and between its
        elements; the first two may be negative.
      dtype: of the array.
      tail: sizes of further axes, which are not padded.
    """
    shape: list[int] = []
    sources: list[slice] = []
    targets: list[slice] = []
    for size, (low, high, between) in zip(sizes, config, strict=True):
        step = between + 1
        out = max(0, low + size + max(0, size - 1) * between + high)
        # Element i goes to position low + i * step. Negative padding drops elements whose position
        # is outside of the result; elements first to last - 1 are left.
        first = max(0, -(low // step))
        last = max(first, min(size, (out - 1 - low) // step + 1))
        start = low + first * step
        shape.append(out)
        sources.append(slice(first, last))
        targets.append(slice(start, max(start, start + (last - first - 1) * step + 1), step))
    source, target, full = tuple(sources), tuple(targets), (*shape, *tail)
    if all(low <= 0 and high <= 0 and not between for low, high, between in config):
        return lambda value, _: value[source]
    all_padding = any(part.start == part.stop for part in sources)

    def pad(value: Any, padding: Any) -> Array:
        result = np.empty(full, dtype)
        result[...] = padding
        if not all_padding:
            result[target] = value[source]
        return result

    return pad


# Sorting, the largest elements, and the positions of extrema.


@rule("sort")
def _sort(eqn: Equation) -> Evaluate:
    # As in numpy, 0.0 and -0.0 are equal, and all NaNs come last, whatever their sign. The result
    # is always that of a stable sort, which is_stable=False allows, too.
    axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
    dtype = np.dtype(eqn.outs[0].dtype)
    if len(eqn.ins) == 1 and not is_complex(dtype):
        wide = compute_dtype(dtype)
        narrow = converter(wide, dtype)
        kind = "stable" if is_float(dtype) else "quicksort"
        return lambda value: [narrow(np.sort(widen(value), axis, kind))]

    def evaluate(*values: Any) -> list[Array]:
        parts: list[Array] = []
        for key in map(widen, values[:keys]):
            # Complex numbers are sorted by their real parts, and equal ones by imaginary parts.
            parts += [key.real, key.imag] if key.dtype.kind == "c" else [key]
        if len(parts) == 1:
            order = parts[0].argsort(axis, "stable")
        else:
            order = np.lexsort(parts[::-1], axis)
        return _take(values, order, axis)

    return evaluate


def _take(values: Any, order: Array, axis: int) -> list[Array]:
    """Return the elements of each array at the positions ``order`` along an axis."""
    if order.ndim == 1:
        return [value[order] for value in values]
    return [np.take_along_axis(value, order, axis) for value in values]


@rule("top_k")
def _top_k(eqn: Equation) -> Evaluate:
    axis, count = eqn.params["axis"], eqn.params["k"]
    key = ordered_bits if is_float(np.dtype(eqn.outs[0].dtype)) else widen
    first = (*(slice(None),) * axis, slice(0, count))
    dtype = np.dtype(eqn.outs[1].dtype)

    def evaluate(value: Any) -> list[Array]:
        order = (~key(value)).argsort(axis, "stable")[first]
        return [*_take([value], order, axis), order.astype(dtype)]

    return evaluate


@rule("approx_top_k")
def _approx_top_k(eqn: Equation) -> Evaluate:
    # Exact, as in JAX on every platform but the TPU. JAX does not specify where NaN goes.
    axis = eqn.params["reduction_dimension"] % len(eqn.ins[0].shape)
    largest, dtype = eqn.params["is_max_k"], np.dtype(eqn.outs[1].dtype)
    last = eqn.ins[0].shape[axis] - 1
    back = (*(slice(None),) * axis, slice(None, None, -1))
    first = (*(slice(None),) * axis, slice(0, eqn.outs[0].shape[axis]))

    def evaluate(value: Any) -> list[Array]:
        key = widen(value)
        if largest:
            # Sort backwards twice, so that of equal elements the first comes first.
            order = last - key[back].argsort(axis, "stable")[back]
        else:
            order = key.argsort(axis, "stable")
        order = order[first]
        return [*_take([value], order, axis), order.astype(dtype)]

    return evaluate


@rule("argmax", "argmin")
def _position_of_extremum(eqn: Equation) -> Evaluate:
    (axis,), dtype = eqn.params["axes"], np.dtype(eqn.out.dtype)
    find = np.argmax if eqn.name == "argmax" else np.argmin
    return lambda value: find(widen(value), axis).astype(dtype)
