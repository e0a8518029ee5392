"""Traced programs as bytes: ``encode`` in one process, ``program_reader.decode`` in another.

The format is our own: a header in JSON, and the bytes of arrays. The header is a table of nodes,
each of which names earlier ones by their number, so that a reader needs no recursion. A reader
makes only what ``pytest_pallas.compat.programs`` lists: numbers, texts, tuples, classes that hold
data, and programs of known primitives. It calls nothing that the bytes name.

A writer refuses what calls Python or another library, such as ``inline_mgpu`` and callbacks. It
drops what no rule of the simulator reads: derivatives that a function defines, shardings, names of
results. Lines of the source are a part of their own, on which the digest does not depend.
"""

from __future__ import annotations

import enum
import hashlib
import json
import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from pallas_sim.traces import home_of, is_dropped
from pytest_pallas.compat import programs
from pytest_pallas.errors import ProgramError

MAGIC = b"PALLAS01"

#: Most bytes of a header, and of all arrays together.
MOST_HEADER = 16 << 20
MOST_ARRAYS = 64 << 20

#: Most parts of a program, each counted as often as it is used.
MOST_PARTS = 20_000_000

#: Largest number of elements along an axis, and number of axes.
MOST_ELEMENTS, MOST_AXES = 1 << 40, 64

#: Primitives that a writer leaves out: they have no result.
_LEFT_OUT = frozenset({"debug_print"})

#: Why a primitive cannot cross, for those that kernels have.
REASONS = {
    **dict.fromkeys(("inline_mgpu", "inline_mgpu_p"), "its code is a function of Python"),
    **dict.fromkeys(
        ("pure_callback", "io_callback", "debug_callback", "callback"),
        "it calls a function of Python",
    ),
    **dict.fromkeys(
        ("ffi_call", "custom_call", "tpu_custom_call", "triton_kernel_call", "mosaic_gpu_p"),
        "it calls compiled code of another library",
    ),
    **dict.fromkeys(("infeed", "outfeed", "call_exported"), "it is more than a program"),
}

#: Parameters that hold functions or facts that no rule reads; None takes their where_defined.
_UNREAD = frozenset({"sharding", "out_sharding", "computation"})


@dataclass(frozen=True)
class ProgramData:
    """A traced program.

    Attributes:
      jaxpr: closed, as JAX traced it or as ``decode`` made it.
      outputs: the structure of what the function returned, a pytree.
      digest: a name of what it computes, whatever its lines and names in the source; "" of a
        program that has not been written.
    """

    jaxpr: Any = field(repr=False)
    outputs: Any = field(repr=False)
    digest: str = ""

    @property
    def __name__(self) -> str:
        """Its name in messages."""
        return "the program"

    def __call__(self, *args: Any) -> Any:
        """Return what the function returns; JAX may trace it.

        Args:
          args: pytrees of arrays with as many leaves as the program has inputs, of the shapes and
            dtypes that it was traced with.
        """
        import jax
        from jax.core import eval_jaxpr

        leaves = jax.tree.leaves(args)
        closed = self.jaxpr
        flat = eval_jaxpr(inner_jaxpr(closed), closed.consts, *leaves)
        return jax.tree.unflatten(self.outputs, flat)


def inner_jaxpr(closed: Any) -> Any:
    """Return the jaxpr of a closed one; an open one as it is."""
    return getattr(closed, "jaxpr", closed)


def refuse(sentence: str, name: str = "") -> NoReturn:
    """Refuse a program.

    Raises:
      ProgramError: with the sentence; ``name`` is the primitive or the type.
    """
    error = ProgramError(sentence)
    error.name = name
    raise error


# Writing.


def encode(program: ProgramData, folder: str = "") -> bytes:
    """Return a program as bytes.

    Args:
      program: the program.
      folder: where the candidate's files are; it is left out of the names of files.

    Raises:
      ProgramError: the program has what cannot cross. ``name`` is the primitive or the type.
    """
    writer = _Writer(folder)
    try:
        root = [writer.jaxpr(program.jaxpr), writer.node(program.outputs)]
    except RecursionError:
        refuse("the program is nested too deeply to be written")
    header = json.dumps(
        {
            "version": 1,
            "nodes": writer.nodes,
            "arrays": writer.arrays,
            "root": root,
            "frames": writer.frames,
            "stacks": writer.stacks,
            "lines": writer.lines,
        },
        separators=(",", ":"),
    ).encode()
    return b"".join((MAGIC, struct.pack("<I", len(header)), header, *writer.data))


class _Writer:
    """Writes parts of a program as nodes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder.rstrip("/") + "/" if folder else ""
        self.nodes: list[list[Any]] = []
        self.arrays: list[list[Any]] = []
        self.data: list[bytes] = []
        self.frames: list[Any] = []
        self.stacks: list[list[int]] = []
        self.lines: dict[str, list[Any]] = {}
        self._known: dict[str, int] = {}
        self._objects: dict[int, tuple[Any, int]] = {}
        self._jaxprs: dict[int, tuple[Any, int]] = {}
        self._stacks: dict[int, tuple[Any, int]] = {}
        self._frames: dict[Any, int] = {}
        self._size = 0

    def put(self, kind: str, *parts: Any) -> int:
        """Return the number of a node, which is made once."""
        node = [kind, *parts]
        key = json.dumps(node)
        number = self._known.get(key)
        if number is None:
            self.nodes.append(node)
            number = self._known[key] = len(self.nodes) - 1
        return number

    def node(self, value: Any, where: str = "") -> int:
        """Return the number of the node of any value.

        Args:
          value: of a parameter, or a part of one.
          where: which parameter, for messages.
        """
        if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
            return self.jaxpr(value)
        scalar = self._scalar(value)
        if scalar is not None:
            return self.put(*scalar)
        known = self._objects.get(id(value))
        if known is None:
            number = self._composed(value, where)
            self._objects[id(value)] = value, number  # the value is kept, and so its identity
            return number
        return known[1]

    def _scalar(self, value: Any) -> tuple[Any, ...] | None:
        dtype = programs.typed_scalar(value)
        if dtype is not None and not isinstance(value, np.ndarray) and not hasattr(value, "shape"):
            plain: Any = next(kind(value) for kind in (int, float, complex) if _is(value, kind))
            return ("typed", type(value).__name__, self.node(plain), np.dtype(dtype).name)
        if value is None or isinstance(value, (bool, np.bool_)):
            return ("none",) if value is None else ("bool", bool(value))
        if isinstance(value, enum.Enum):
            return ("enum", self._class(type(value)), value.name)
        if isinstance(value, (int, np.integer)):
            return ("int", str(int(value)))
        if isinstance(value, float):
            return ("float", value.hex())
        if isinstance(value, complex):
            return ("complex", value.real.hex(), value.imag.hex())
        if isinstance(value, str):
            return ("text", value.replace(self.folder, "") if self.folder else value)
        return None

    def _composed(self, value: Any, where: str) -> int:
        import jax
        from jax.core import Tracer

        spec = programs.partitions(value)
        if spec is not None:
            return self.put("spec", [self.node(part, where) for part in spec])
        if type(value) in (tuple, list):
            kind = "tuple" if type(value) is tuple else "list"
            return self.put(kind, [self.node(part, where) for part in value])
        if isinstance(value, (set, frozenset)):
            return self.put("set", [self.node(part, where) for part in sorted(value, key=_order)])
        if type(value) is dict or isinstance(value, type(_PROXY)):
            items = [[self.node(k, where), self.node(v, where)] for k, v in value.items()]
            return self.put("dict", items)
        if programs.is_shaped(value):
            return self._aval(value)
        if programs.is_tree(value):
            return self._tree(value, where)
        if programs.is_mesh(value):
            names, sizes, kinds = programs.mesh_facts(value)
            return self.put("mesh", [self.node(name) for name in names], sizes, kinds)
        if isinstance(value, Tracer):
            refuse(f"{where or 'a part of the program'} is a value that is being traced", "Tracer")
        if isinstance(value, (np.ndarray, np.generic, jax.Array)) or hasattr(value, "__array__"):
            return self._array(value)
        if isinstance(value, np.dtype):
            return self.put("dtype", value.name)
        generator = programs.generator_name(value)
        if generator is not None:
            return self.put("generator", generator)
        keys = programs.generator_of_keys(value)
        if keys is not None:
            return self.put("keys", keys)
        if programs.is_scalar_type(value):
            return self.put("scalar type", np.dtype(value).name)
        if isinstance(value, type):
            return self._type(value, where)
        if type(value) is object:
            return self.put("mark", sum(node[0] == "mark" for node in self.nodes))
        if programs.is_traceback(value):
            return self.put("none")
        return self._object(value, where)

    def _object(self, value: Any, where: str) -> int:
        name = programs.name_of_class(type(value))
        if name is None:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            what = "a function" if callable(value) else f"of the type {kind}"
            refuse(f"{where or 'a part of the program'} is {what}, which cannot cross", kind)
        fields = programs.read_fields(value)
        parts = [[field, self.node(part, f"{where}.{field}")] for field, part in fields.items()]
        return self.put("object", name, parts)

    def _class(self, kind: type) -> str:
        name = programs.name_of_class(kind)
        if name is None:
            refuse(f"the type {kind.__qualname__} cannot cross", kind.__qualname__)
        return name

    def _type(self, value: type, where: str) -> int:
        if issubclass(value, np.generic):
            return self.put("scalar type", np.dtype(value).name)
        name = programs.name_of_class(value)
        if name is None:
            refuse(f"{where} is the type {value.__qualname__}, which cannot cross")
        return self.put("class", name)

    def _aval(self, aval: Any) -> int:
        dtype, space = self.node(aval.dtype), aval.memory_space
        shape = [self.node(size, "a shape") for size in aval.shape]
        return self.put("array of", shape, dtype, bool(aval.weak_type), self.node(space))

    def _tree(self, tree: Any, where: str) -> int:
        node = programs.tree_node(tree)
        if node is None:
            return self.put("leaf")
        kind, data = node
        children = [self._tree(child, where) for child in tree.children()]
        if kind in TREES:
            return self.put("tree", TREES[kind], self.node(data, where), children)
        if data is None and hasattr(kind, "_fields"):
            return self.put("tree", "tuple", self.node(None), children)
        return self.put("tree", self._class(kind), self.node(data, where), children)

    def _array(self, value: Any) -> int:
        import jax
        import jax.numpy as jnp

        generator = ""
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            generator, value = str(jax.random.key_impl(value)), programs.key_words(value)
        array = np.asarray(value)
        if array.dtype == object:
            refuse("an array of objects cannot cross")
        data = array.tobytes()
        self._size += len(data)
        if self._size > MOST_ARRAYS:
            refuse(f"the program holds more than {MOST_ARRAYS >> 20} MiB of constants", "constants")
        self.arrays.append([array.dtype.name, list(array.shape), len(data), checksum(data)])
        self.data.append(data)
        return self.put("array", len(self.arrays) - 1, generator)

    def jaxpr(self, value: Any) -> int:
        """Return the number of the node of a program, open or closed."""
        known = self._jaxprs.get(id(value))
        if known is not None:
            return known[1]
        inner, closed = inner_jaxpr(value), hasattr(value, "consts")
        consts = list(value.consts) if closed else []
        variables: dict[Any, int] = {}
        avals: list[int] = []
        dropped: list[int] = []

        def define(var: Any) -> int:
            avals.append(self.node(var.aval))
            variables[var] = len(avals) - 1
            if is_dropped(var):
                dropped.append(len(avals) - 1)
            return len(avals) - 1

        def atom(value: Any) -> Any:
            if hasattr(value, "val"):
                return [self.node(value.val), self.node(value.aval)]
            return variables[value]

        def effect(value: Any) -> list[Any]:
            """Return an effect: its class, and the variable or the data that it names."""
            position = getattr(value, "input", None)
            if position is None:
                return ["plain", self.node(value, "an effect")]
            if not isinstance(position, int):
                if position not in variables:
                    return []
                return ["of", self._class(type(value)), variables[position]]
            return ["at", self._class(type(value)), position]

        def effects(values: Any) -> list[Any]:
            # A set has no order, and the number of a node is that in which it is written.
            listed = [entry for entry in map(effect, sorted(values, key=_order)) if entry]
            return sorted(listed, key=json.dumps)

        ins = [[define(var) for var in group] for group in (inner.constvars, inner.invars)]
        eqns: list[Any] = []
        stacks: list[int] = []
        for eqn in inner.eqns:
            if eqn.primitive.name in _LEFT_OUT and not eqn.outvars:
                continue
            primitive, params = programs.reduced_eqn(eqn)
            name = programs.name_of_primitive(primitive)
            if name is None or primitive.name in REASONS:
                why = REASONS.get(primitive.name, "it is not among those that may cross")
                shown = primitive.name.removesuffix("_p")  # JAX 0.11 has inline_mgpu_p
                refuse(f"the primitive {shown} cannot cross: {why}", shown)
            operands = [atom(operand) for operand in eqn.invars]
            written = {
                key: self.node(
                    None if key in _UNREAD else part,
                    f"the parameter {key} of {primitive.name}",
                )
                for key, part in params.items()
            }
            outs = [define(var) for var in eqn.outvars]
            eqns.append([name, operands, outs, written, effects(eqn.effects)])
            stacks.append(self._stack(eqn.source_info.traceback))
        number = self.put(
            *("program", len(self._jaxprs), avals, dropped, ins, eqns),
            *([atom(out) for out in inner.outvars], effects(inner.effects)),
            [self._const(const) for const in consts] if closed else None,
        )
        self._jaxprs[id(value)] = value, number
        info = inner.debug_info
        names = None if info is None else info.arg_names
        function, file, line = home_of(inner)
        self.lines[str(number)] = [
            stacks,
            None if names is None else [None if name is None else str(name) for name in names],
            [function, file.removeprefix(self.folder) if self.folder else file, line],
            "" if info is None else str(info.traced_for or ""),
        ]
        return number

    def _const(self, value: Any) -> int:
        """Return a constant of a program; None for one that its equation is given as an operand."""
        from jax.core import Tracer

        if isinstance(value, Tracer):
            return self.node(None)
        return self.node(value, "a constant")

    def _stack(self, traceback: Any) -> int:
        if traceback is None:
            return -1
        known = self._stacks.get(id(traceback))
        if known is None:
            numbers: list[int] = []
            for file, *rest in programs.frames_of(traceback):
                file = file.removeprefix(self.folder) if self.folder else file
                frame = (file, *rest)
                if frame not in self._frames:
                    self._frames[frame] = len(self.frames)
                    self.frames.append(list(frame))
                numbers.append(self._frames[frame])
            self.stacks.append(numbers)
            known = self._stacks[id(traceback)] = traceback, len(self.stacks) - 1
        return known[1]


def _order(value: Any) -> str:
    """Return a text by which parts of a set are ordered, the same in every process."""
    if isinstance(value, (str, int, float)):
        return f"{type(value).__name__} {value}"
    fields = programs.read_fields(value) if programs.name_of_class(type(value)) else {}
    parts = [getattr(value, "input", None), *fields.values()]
    return f"{type(value).__name__} {[part for part in parts if isinstance(part, (str, int))]}"


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind)


_PROXY = type.__dict__  # a mappingproxy

TREES: dict[Any, str] = {tuple: "tuple", list: "list", dict: "dict", type(None): "none"}


def checksum(data: bytes) -> str:
    """Return a name of bytes."""
    return hashlib.sha256(data).hexdigest()
