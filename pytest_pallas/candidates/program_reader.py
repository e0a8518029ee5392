"""The reader of what ``codec`` writes: bytes of a process that is not trusted become a program.

It makes only what ``pytest_pallas.compat.programs`` lists, and calls nothing that the bytes name.
"""

from __future__ import annotations

import enum
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.errors import first_line
from pytest_pallas.candidates.codec import (
    MAGIC,
    MOST_ARRAYS,
    MOST_AXES,
    MOST_ELEMENTS,
    MOST_HEADER,
    MOST_PARTS,
    REASONS,
    TREES,
    ProgramData,
    checksum,
    inner_jaxpr,
    refuse,
)
from pytest_pallas.compat import programs
from pytest_pallas.errors import ProgramError


@dataclass
class _Table:
    """What has been read.

    Attributes:
      values: of the nodes so far.
      kinds: their kinds.
      parts: how many parts each has, with those of its parts.
      arrays: the arrays.
      lines: of each program: stacks of its equations, names of arguments, its function.
      tracebacks: of the stacks.
    """

    values: list[Any]
    kinds: list[str]
    parts: list[int]
    arrays: list[Any]
    lines: Mapping[str, Any]
    tracebacks: list[Any]
    total: int = 0

    def __call__(self, number: Any) -> Any:
        """Return an earlier node, and count its parts."""
        if type(number) is not int or not 0 <= number < len(self.values):
            raise ValueError(f"{number!r} is not the number of an earlier part")
        self.total += self.parts[number]
        if self.total > MOST_PARTS:
            raise ValueError(f"more than {MOST_PARTS} parts")
        return self.values[number]


def decode(data: bytes, folder: str = "") -> ProgramData:
    """Return the program that ``encode`` wrote.

    Args:
      data: what another process wrote; anything at all.
      folder: where the candidate's files are, for names of files without one.

    Raises:
      ProgramError: the bytes are no program.
    """
    try:
        return _decoded(bytes(data), folder)
    except ProgramError:
        raise
    except (
        *(ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError),
        *(OverflowError, RecursionError, MemoryError, struct.error, NotImplementedError),
        *(UnicodeError, RuntimeError, ZeroDivisionError),
    ) as error:
        raise ProgramError(
            f"these bytes are no program: {type(error).__name__}: {first_line(error)[:200]}"
        ) from error


def _decoded(data: bytes, folder: str) -> ProgramData:
    start = len(MAGIC) + 4
    if len(data) < start or not data.startswith(MAGIC):
        refuse("these bytes are no program: they do not begin as one")
    (size,) = struct.unpack("<I", data[len(MAGIC) : start])
    if size > MOST_HEADER or len(data) - start - size > MOST_ARRAYS:
        refuse("the program is too large")
    if len(data) < start + size:
        refuse("these bytes are no program: they end too early")
    header = json.loads(data[start : start + size])
    if not isinstance(header, dict) or header.get("version") != 1:  # pyright: ignore[reportUnknownMemberType]
        refuse("the program is of another version of this format")
    arrays = _arrays(header["arrays"], data[start + size :])
    stacks = _stacks(header["frames"], header["stacks"], folder)
    table = _Table([], [], [], arrays, header["lines"], programs.tracebacks_of(stacks))
    for number, node in enumerate(header["nodes"]):
        kind, *parts = node
        table.total = 1
        value = _read_program(table, number, folder, *parts) if kind == "program" else None
        value = value if kind == "program" else _READERS[kind](table, *parts)
        table.values.append(value)
        table.kinds.append(kind)
        table.parts.append(table.total)
    program, outputs = header["root"]
    jaxpr, tree = table(program), table(outputs)
    if table.kinds[program] != "program" or not hasattr(jaxpr, "consts"):
        refuse("these bytes are no program: their root is none")
    if table.kinds[outputs] not in ("tree", "leaf") or tree.num_leaves != len(
        inner_jaxpr(jaxpr).outvars
    ):
        refuse("these bytes are no program: its results have another structure")
    meaning = json.dumps([header["nodes"], header["arrays"], header["root"]], sort_keys=True)
    return ProgramData(jaxpr, tree, checksum(meaning.encode())[:32])


def _arrays(entries: Sequence[Any], data: bytes) -> list[Any]:
    arrays: list[Any] = []
    start = 0
    for name, shape, size, digest in entries:
        part = data[start : start + size]
        start += size
        dtype = _dtype(name)
        if len(part) != size or size != math.prod(map(_size, shape)) * dtype.itemsize:
            raise ValueError("an array has too few bytes")
        if checksum(part) != digest:
            raise ValueError("an array has other bytes than its digest says")
        arrays.append(np.frombuffer(part, dtype).reshape(shape))
    if start != len(data):
        raise ValueError("there are bytes after the last array")
    return arrays


def _dtype(name: str) -> Any:
    import jax.numpy as jnp

    dtype = np.dtype(bool) if name == "bool" else jnp.dtype(_text(name))
    if dtype.kind not in "biufcV" or dtype.hasobject or dtype.names or not dtype.itemsize:
        raise ValueError(f"there is no dtype {name!r} of arrays")
    return dtype


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is none")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_ELEMENTS:
        raise ValueError(f"{value!r} is no size")
    return value


def _stacks(frames: Sequence[Any], stacks: Sequence[Any], folder: str) -> list[Any]:
    listed: list[Any] = []
    for file, name, qualified, *numbers in frames:
        places = [min(_size(number), 1 << 20) for number in numbers]
        if len(places) != 4 or "\0" in _text(file):
            raise ValueError("a frame has no line")
        file = _in_folder(file, folder)
        listed.append((file, _text(name), _text(qualified), *places))
    if sum(map(len, stacks)) > MOST_HEADER:
        raise ValueError("there are too many frames")
    return [[listed[_size(number)] for number in stack] for stack in stacks]


def _in_folder(file: str, folder: str) -> str:
    """Return the name of a file of the candidate, with its folder."""
    return f"{folder.rstrip('/')}/{file}" if folder and not file.startswith(("/", "<")) else file


def _read_program(
    table: _Table,
    number: int,
    folder: str,
    _: int,
    avals: Sequence[Any],
    dropped: Sequence[int],
    ins: Sequence[Sequence[int]],
    eqns: Sequence[Any],
    outvars: Sequence[Any],
    effects: Sequence[Any],
    consts: Sequence[Any] | None,
) -> Any:
    """Return the program of a node."""
    unused = set(dropped)
    variables = [
        programs.make_var(table(aval), dropped=position in unused)
        for position, aval in enumerate(avals)
    ]
    defined: set[int] = set()

    def define(position: Any) -> Any:
        if _size(position) in defined:
            raise ValueError("a variable is defined twice")
        defined.add(position)
        return variables[position]

    def atom(operand: Any) -> Any:
        if isinstance(operand, list):
            value, aval = operand  # pyright: ignore[reportUnknownVariableType]
            return programs.make_literal(table(value), table(aval))
        if operand not in defined:
            raise ValueError("a variable is used before it is defined")
        return variables[operand]

    def effect(entry: Any) -> Any:
        kind, *rest = entry
        if kind == "plain":
            return table(rest[0])
        cls = programs.classes()[_text(rest[0])]
        position = _size(rest[1])
        return programs.make_effect(cls, position if kind == "at" else variables[position])

    constvars, invars = ([define(position) for position in group] for group in ins)
    stacks, names, (function, file, line), traced_for = table.lines[str(number)]
    home = _text(function)
    if file:
        home = f"{home} at {_in_folder(_text(file), folder)}:{_size(line)}"
    listed: list[Any] = []
    for (name, operands, outs, params, changes), stack in zip(eqns, stacks, strict=True):
        primitive = programs.primitive_of(_text(name))
        if primitive is None or primitive.name in REASONS:
            raise ValueError(f"the primitive {name!r} is not among those that may cross")
        inputs = [atom(operand) for operand in operands]
        traceback = None if stack == -1 else table.tracebacks[_size(stack)]
        listed.append(
            programs.make_eqn(
                inputs,
                [define(out) for out in outs],
                primitive,
                {_text(key): table(part) for key, part in params.items()},
                list(map(effect, changes)),
                traceback,
            )
        )
    count = len(invars) + (0 if consts is not None else len(constvars))
    arguments = None if names is None or len(names) != count else tuple(map(str, names))
    return programs.make_jaxpr(
        constvars,
        invars,
        list(map(atom, outvars)),
        listed,
        list(map(effect, effects)),
        (_text(traced_for), home, arguments),
        None if consts is None else list(map(table, consts)),
    )


def _read_enum(_: _Table, name: str, member: str) -> Any:
    cls = programs.classes()[_text(name)]
    if not issubclass(cls, enum.Enum):
        raise TypeError(f"{name} is no enumeration")
    return cls[_text(member)]


def _read_object(table: _Table, name: str, fields: Sequence[Any]) -> Any:
    cls = programs.classes()[_text(name)]
    return programs.make_object(cls, {_text(field): table(part) for field, part in fields})


def _read_tree(table: _Table, name: str, data: Any, children: Sequence[Any]) -> Any:
    for child in children:
        if table.kinds[_size(child)] not in ("tree", "leaf"):
            raise TypeError("a child of a tree is none")
    kinds = {text: kind for kind, text in TREES.items()}
    kind = kinds.get(_text(name)) or programs.classes()[name]
    return programs.make_tree(kind, table(data), [table(child) for child in children])


def _read_aval(table: _Table, shape: Any, dtype: Any, weak: Any, space: Any) -> Any:
    if len(shape) > MOST_AXES:
        raise ValueError(f"an array has {len(shape)} axes")
    sizes = tuple(table(size) for size in shape)
    for size in sizes:
        if isinstance(size, int):
            _size(size)
    return programs.shaped(sizes, table(dtype), bool(weak), table(space))


def _read_typed(table: _Table, kind: str, value: Any, dtype: str) -> Any:
    if kind not in ("TypedInt", "TypedFloat", "TypedComplex"):
        raise ValueError(f"there is no scalar {kind!r}")
    return programs.make_scalar(kind, table(value), _dtype(dtype))


def _read_array(table: _Table, number: int, generator: str) -> Any:
    array = table.arrays[_size(number)]
    return programs.keys_of(array, _text(generator)) if generator else array


def _read_int(_: _Table, text: str) -> int:
    if len(_text(text)) > 40:
        raise ValueError("a number is too large")
    return int(text)


def _read_mesh(table: _Table, names: Any, sizes: Any, kinds: Any) -> Any:
    if math.prod(map(_size, sizes)) > 4096:
        raise ValueError("a mesh has too many devices")
    return programs.make_mesh([table(name) for name in names], sizes, list(map(_text, kinds)))


def _read_spec(table: _Table, parts: Sequence[Any]) -> Any:
    import jax

    return jax.sharding.PartitionSpec(*map(table, parts))


def _read_scalar_type(_: _Table, name: str) -> Any:
    import jax.numpy as jnp

    dtype = _dtype(name)
    return jnp.bool_ if dtype.kind == "b" else getattr(jnp, dtype.name)


#: How to read a node of each kind, but for programs.
_READERS: Mapping[str, Callable[..., Any]] = {
    "none": lambda _: None,
    "bool": lambda _, value: bool(value),
    "int": _read_int,
    "float": lambda _, text: float.fromhex(text),
    "complex": lambda _, real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "text": lambda _, text: _text(text),
    "typed": _read_typed,
    "enum": _read_enum,
    "tuple": lambda table, parts: tuple(map(table, parts)),
    "list": lambda table, parts: list(map(table, parts)),
    "set": lambda table, parts: frozenset(map(table, parts)),
    "dict": lambda table, items: {table(key): table(value) for key, value in items},
    "spec": _read_spec,
    "array of": _read_aval,
    "tree": _read_tree,
    "leaf": lambda _: programs.make_tree(None, None, ()),
    "mesh": _read_mesh,
    "array": _read_array,
    "dtype": lambda _, name: _dtype(name),
    "keys": lambda _, name: programs.key_dtype(_text(name)),
    "generator": lambda _, name: programs.generator(_text(name)),
    "class": lambda _, name: programs.classes()[_text(name)],
    "scalar type": _read_scalar_type,
    "mark": lambda _, __: object(),
    "object": _read_object,
}
