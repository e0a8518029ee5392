"""Rules: parts of arrays at fixed or computed positions, and arrays made of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_pallas.simulator.keyed import elements, on_words, words
from pytest_pallas.simulator.registry import Equation, Evaluate, rule

Array = np.ndarray[Any, Any]
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
    """The window of these sizes that starts there, or as near as it fits into the shape."""
    index: list[slice] = []
    for full, size, start in zip(shape, sizes, starts, strict=False):
        # Each start is limited, so that the whole window lies inside.
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
    new = (*(slice(None),) * axis, None)
    return on_words(eqn, lambda *values: np.concatenate([each[new] for each in values], axis))


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
    pad = padder(eqn.ins[0].shape, eqn.params["padding_config"], elements(eqn), words(eqn))
    return on_words(eqn, pad)


def padder(
    given: Sequence[int],
    config: Sequence[tuple[int, int, int]],
    dtype: np.dtype[Any],
    tail: tuple[int, ...] = (),
) -> Callable[[Any, Any], Array]:
    """The function that pads an array with a value.

    Args:
      given: shape of the array.
      config: for each axis, how many elements are added before it, after it and between its
        elements; the first two may be negative.
      dtype: of the array.
      tail: sizes of further axes, which are not padded.
    """
    shape: list[int] = []
    sources: list[slice] = []
    targets: list[slice] = []
    for size, (low, high, between) in zip(given, config, strict=True):
        step = between + 1
        out = max(0, low + size + max(0, size - 1) * between + high)
        # Element i goes to low + i * step; negative padding cuts off what falls outside.
        first = max(0, -(low // step))
        last = max(first, min(size, (out - 1 - low) // step + 1))
        start = low + first * step
        shape.append(out)
        sources.append(slice(first, last))
        targets.append(slice(start, max(start, start + (last - first - 1) * step + 1), step))
    source, target, full = tuple(sources), tuple(targets), (*shape, *tail)
    if all(low <= 0 and high <= 0 and not between for low, high, between in config):
        return lambda value, _: value[source]
    nothing = any(part.start == part.stop for part in sources)

    def pad(value: Any, padding: Any) -> Array:
        result = np.empty(full, dtype)
        result[...] = padding
        if not nothing:
            result[target] = value[source]
        return result

    return pad
