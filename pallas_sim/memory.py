"""Values of simulated programs: numpy arrays, typed PRNG keys, and references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pallas_sim.compat.jaxprs import is_key, key_implementation, key_shape
from pallas_sim.dtypes import Array
from pallas_sim.transforms import AxisSlice, Indexed, Operand


@dataclass(frozen=True, eq=False)
class KeyArray:
    """An array of typed PRNG keys.

    Attributes:
      data: the words of the keys, uint32[..., words].
      dtype: JAX's dtype, such as ``key<fry>``.
    """

    data: np.ndarray[Any, Any]
    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array of keys."""
        axes = key_shape(self.dtype)
        return self.data.shape[: self.data.ndim - len(axes)]

    @property
    def ndim(self) -> int:
        """Of the array of keys."""
        return len(self.shape)


def is_key_dtype(dtype: Any) -> bool:
    """Return whether a dtype is that of typed PRNG keys."""
    return not isinstance(dtype, np.dtype) and is_key(dtype)


def from_jax(value: Any, aval: Any = None) -> Any:
    """Return a constant, literal or argument of JAX as a value of the simulator.

    Args:
      value: an array, a number, typed keys, or what is passed on as it is.
      aval: its abstract value, where its own type does not say the dtype.
    """
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        dtype = getattr(value, "dtype", None)
    if dtype is None:
        return np.asarray(value) if isinstance(value, (bool, int, float, complex)) else value
    if is_key_dtype(dtype):
        if isinstance(value, KeyArray):
            return value
        import jax

        return KeyArray(np.asarray(jax.random.key_data(value)), dtype)
    if not isinstance(dtype, np.dtype):
        return value
    if type(value) is np.ndarray and value.dtype == dtype:
        return value
    return np.asarray(value, dtype)


def to_output(value: Any) -> Any:
    """Return a value as an array that is returned to the caller: of typed keys the words."""
    return value.data if isinstance(value, KeyArray) else np.asarray(value)


def to_jax(value: Any) -> Any:
    """Return a value as JAX takes it: typed keys as such, and numpy arrays."""
    if isinstance(value, KeyArray):
        import jax

        data = jax.numpy.asarray(value.data)
        return jax.random.wrap_key_data(data, impl=key_implementation(value.dtype))
    return np.asarray(value)


# References: the memory that a kernel reads and writes.


class AllocationKey(NamedTuple):
    """Names an allocation, alike on every device and core that runs the same program.

    Attributes:
      launch: of the kernel: which one, and how often the device had entered it before.
      core: whose it is, or () for memory that the cores of a device share.
      site: which allocation of the kernel.
    """

    launch: tuple[Any, ...]
    core: tuple[tuple[str, int], ...]
    site: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """Elements of memory that arrays of indices name.

    Attributes:
      memory: a view of the memory.
      key: for each of its first axes, the index of every element; all are of one length.
    """

    memory: np.ndarray[Any, Any]
    key: tuple[np.ndarray[Any, Any], ...]


class Arena(np.ndarray[Any, Any]):
    """Bytes that references are made of, which may take the place of others.

    Attributes:
      references: the last one of each name.
    """

    references: dict[str, np.ndarray[Any, Any]]

    @classmethod
    def of_size(cls, size: int, fill: int) -> Arena:
        """Make bytes that all have one value."""
        arena = cls((size,), np.uint8)
        arena[...] = fill
        arena.references = {}
        return arena


#: What an access or a copy touches: a view of memory, or elements of one.
Region = np.ndarray[Any, Any] | Elements


@dataclass(slots=True, eq=False)
class PipelinedBlocks:
    """What a window of ``emit_pipeline`` has been used for: it is scratch memory in the trace.

    Attributes:
      array: name of the array whose blocks it has.
      written_back: whether a block was copied out of it.
      store: a finding of a store to it, or None.
    """

    array: str
    written_back: bool = False
    store: Any = None


@dataclass(slots=True, eq=False, repr=False)
class Ref:
    """A piece of memory.

    Attributes:
      data: its elements. A reference may share them with another one.
      name: of the parameter or variable that it is bound to, for messages.
      space: its memory space, such as ``"vmem"``.
      is_input: whether it is the window of an input that shares no memory with an output.
      key: names the same memory on another device or core; None where there is none.
      left: whether it is the window of an output's block that the grid had left before.
      block: of a program of a GPU's grid: which memory of all programs it is part of; else None.
      reached: the threads on other devices or cores that have reached it, with the line.
      blocks: of a window of ``emit_pipeline``: what it has been used for; None of other memory.
      uses: of memory and semaphores of a kernel's own: how often copies used each slot of the first
        axis, and each way; ``"line"`` is that of the user who made it. None of other memory.
    """

    data: np.ndarray[Any, Any]
    name: str = ""
    space: str = ""
    is_input: bool = False
    key: AllocationKey | None = None
    left: bool = False
    block: Any = None
    reached: set[tuple[int, str]] = field(default_factory=set)
    blocks: PipelinedBlocks | None = None
    uses: dict[Any, int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the memory."""
        return self.data.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        return self.data.dtype

    def __repr__(self) -> str:
        return f"Ref({self.name or '?'}: {self.dtype}{list(self.shape)} in {self.space or '?'})"


def locate(refs: Iterable[Ref], line: str) -> None:
    """Note the line that made memory, for copies of JAX's that have none."""
    for ref in refs:
        if ref.uses is not None:
            ref.uses.setdefault("line", line)


# Indices of an equation as numpy has them, and which of them are beyond an edge.


@dataclass(frozen=True, slots=True)
class Outside(Exception):  # noqa: N818 - never leaves the simulator
    """An index reaches beyond the edge of an axis."""

    axis: int
    first: int
    last: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, axis: int, indices: Array, shape: tuple[int, ...]) -> Outside:
        """Make one of listed indices: from the lowest to the highest that is beyond the edge."""
        wrong = indices[(indices < 0) | (indices >= shape[axis])]
        return cls(axis, int(wrong.min()), int(wrong.max()), shape)


def repeated(array: Array, indexed: Indexed, operands: Sequence[Any]) -> Array:
    """Return memory whose axes with stride 0 have their one element as often as it is read."""
    for axis in indexed.repeated:
        span = indexed.indices[axis]
        assert isinstance(span, AxisSlice)
        start, size = (
            int(operands[bound.position]) if isinstance(bound, Operand) else bound
            for bound in (span.start, span.size)
        )
        shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
        array = np.broadcast_to(array[(slice(None),) * axis + (slice(start, start + 1),)], shape)
    return array


def numpy_index(
    indexed: Indexed, shape: tuple[int, ...], operands: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the index in numpy's form.

    Raises:
      Outside: it is beyond the edge of an axis.
    """
    key: list[Any] = []
    for axis, index in enumerate(indexed.indices):
        dim = shape[axis]
        if type(index) is AxisSlice:
            start: Any = index.start
            if type(start) is Operand:
                start = int(operands[start.position])
            size: Any = index.size
            if type(size) is Operand:
                size = int(operands[size.position])
            end = start + (size - 1) * index.stride + 1
            if size <= 0:
                key.append(slice(0, 0))
                continue
            if start < 0 or end > dim:
                raise Outside(axis, start, end - 1, shape)
            # What is repeated is made as long as the window before: see ``repeated``.
            key.append(slice(start, end, index.stride) if index.stride else slice(0, size))
            continue
        value: Any = operands[index.position] if type(index) is Operand else index
        if isinstance(value, Ref):
            value = value.data
        if isinstance(value, int) or value.ndim == 0:
            value = int(value)
            if not 0 <= value < dim:
                raise Outside(axis, value, value, shape)
        elif value.size and (value.min() < 0 or value.max() >= dim):
            raise Outside.of(axis, value, shape)
        key.append(value)
    return tuple(key)


def grid_of(indexed: Indexed, operands: Sequence[Any], result: tuple[int, ...]) -> list[Array]:
    """Return the index of every element of a window along each axis, whether it is inside or not.

    Args:
      indexed: the window.
      operands: of the equation.
      result: shape of the window.
    """
    spans = [i for i, index in enumerate(indexed.indices) if isinstance(index, AxisSlice)]
    others = [i for i in range(len(indexed.indices)) if i not in spans]
    # As in numpy: the arrays' axes stand where the arrays are if those are adjacent, else first.
    joint = len(indexed.joint)
    adjacent = others == list(range(others[0], others[-1] + 1)) if others else True
    first = sum(1 for i in spans if others and i < others[0]) if adjacent else 0
    axes: list[Array] = []
    for axis, index in enumerate(indexed.indices):
        shape = [1] * len(result)
        if isinstance(index, AxisSlice):
            target = spans.index(axis)
            target += joint if not adjacent or (others and target >= first) else 0
            start = index.start
            start = int(operands[start.position]) if isinstance(start, Operand) else start
            shape[target] = result[target]
            values = start + np.arange(result[target]) * index.stride
        else:
            indices = operands[index.position] if isinstance(index, Operand) else index
            values = np.asarray(indices).astype(np.int64)
            if values.ndim:
                shape[first : first + joint] = values.shape
        axes.append(np.broadcast_to(values.reshape(shape), result))
    return axes
