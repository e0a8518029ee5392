"""From a value to the Python expression that makes it again, for the script of a failure."""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import math
import textwrap
import types
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pytest_pallas.replay import functions

#: Arrays up to this many elements are written as numbers, if these make the same bits again, and
#: up to so many bytes as these.
READABLE = 64

#: Characters of arrays that a script may hold as text; with more, they go to a file beside it.
MOST_TEXT = 1024

_PLAIN = (bool, int, str, bytes, type(None), type(Ellipsis), range)


class UnwritableError(Exception):
    """No expression makes this value again; the message says what it is."""


@dataclass
class Writer:
    """Writes expressions, and remembers what they need.

    Attributes:
      most: how many characters of arrays may be in expressions.
      modules: modules to load, by name: the folder to import from ("" to load the file), the file.
      arrays: what goes to the file beside the script, by key: arrays, or the bytes of one whose
        dtype is not numpy's.
      imports: statements that they need.
      meshes: whether they make a mesh.
      text: how many characters of arrays are in expressions so far.
    """

    most: int = MOST_TEXT
    modules: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    arrays: dict[str, Any] = field(default_factory=dict[str, Any])
    imports: set[str] = field(default_factory=set[str])
    meshes: bool = False
    text: int = 0

    def write(self, value: Any, indent: int = 0) -> str:
        """The expression for a value, on several lines if it is long.

        Raises:
          UnwritableError: there is none.
        """
        try:
            text = self._flat(value)
        except RecursionError:
            raise UnwritableError(f"{functions.describe(value)}, which holds itself") from None
        return text if "\n" not in text else textwrap.indent(text, " " * indent).lstrip()

    def _flat(self, value: Any) -> str:
        if isinstance(value, (np.ndarray, jax.Array)):
            return self._array(value)
        if isinstance(value, enum.Enum):
            return f"{self._flat(type(value))}.{value.name}"
        if type(value) is str:
            return quoted(value)
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return repr(value)
        if type(value) is float:
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if type(value) is complex:
            return f"complex({self._flat(value.real)}, {self._flat(value.imag)})"
        if isinstance(value, np.generic):
            return f"{self._array(np.asarray(value))}[()]"
        if isinstance(value, np.dtype):
            return f'np.dtype("{value.name}")'
        if isinstance(value, jax.ShapeDtypeStruct):
            return f'jax.ShapeDtypeStruct({value.shape}, np.dtype("{value.dtype}"))'
        if isinstance(value, Mesh):
            self.imports.add("from pytest_pallas.devices.mesh import make_mesh")
            self.meshes = True
            platform = value.devices.flat[0].platform
            return f'make_mesh({self.mapping(value.shape)}, "{platform}")'
        if isinstance(value, PartitionSpec):
            return f"jax.sharding.PartitionSpec{tuple(value)!r}"
        if isinstance(value, (tuple, list, set, frozenset, slice)):
            return self._sequence(value)
        if isinstance(value, (dict, types.MappingProxyType)):
            return self.mapping(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            plain = {f.name: f.default for f in dataclasses.fields(value)}
            words = [
                f"{name}={self._flat(item)}"
                for name, item in given.items()
                if not _same(item, plain[name])
            ]
            return f"{self._flat(type(value))}({', '.join(words)})"
        return self._function(value)

    def mapping(self, values: Mapping[Any, Any]) -> str:
        """A dict."""
        return _bracketed(
            "{", [f"{self._flat(key)}: {self._flat(value)}" for key, value in values.items()], "}"
        )

    def _sequence(self, value: Any) -> str:
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(map(self._flat, parts))})"
        items = [self._flat(item) for item in value]
        if type(value) is list:
            return _bracketed("[", items, "]")
        names: Any = getattr(value, "_fields", None)
        if names is not None:  # a named tuple
            words = [f"{name}={item}" for name, item in zip(names, items, strict=True)]
            return f"{self._flat(type(value))}({', '.join(words)})"
        if isinstance(value, tuple):  # also strategies.Drawn, which is a tuple to kernels
            return _bracketed("(", items, ",)" if len(items) == 1 else ")")
        return f"{type(value).__name__}({_bracketed('[', sorted(items), ']')})"

    def _array(self, value: Any) -> str:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = self._array(np.asarray(jax.random.key_data(value)))
            return f'jax.random.wrap_key_data({data}, impl="{jax.random.key_impl(value)}")'
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise UnwritableError(f"an array of dtype {array.dtype}")
        if array.size == 0:
            return f'np.zeros({array.shape}, "{array.dtype.name}")'
        short = array.size <= READABLE and "complex" not in array.dtype.name
        readable = _readable(array) if short else None
        if readable is not None or array.size == 1:
            return readable or self._text(array)
        first = array.reshape(-1)[:1]
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if (data.reshape(array.size, -1) == first.view(np.uint8)).all():
            return f"np.full({array.shape}, {self._array(first)})"
        return self._text(array)

    def _text(self, array: np.ndarray[Any, Any]) -> str:
        """The array as its bytes."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        made = f'.view(np.dtype("{array.dtype.name}")).reshape({array.shape})'
        if data.nbytes <= READABLE:
            return f'np.frombuffer(bytes.fromhex("{data.tobytes().hex()}"), np.uint8){made}'
        packed = base64.b85encode(zlib.compress(data, 9)).decode()
        if self.text + len(packed) <= self.most:
            self.text += len(packed)
            self.imports |= {"import base64", "import zlib"}
            lines = [packed[start : start + 88] for start in range(0, len(packed), 88)]
            text = "\n".join(f'    "{line}"' for line in lines)
            unpacked = f"zlib.decompress(base64.b85decode(\n{text}\n))"
            return f"np.frombuffer({unpacked}, np.uint8){made}"
        key = f"array_{len(self.arrays)}"
        plain = array.dtype.isbuiltin == 1  # other dtypes are not kept as what they are
        self.arrays[key] = array if plain else data
        return f'STORED["{key}"]{"" if plain else made}'

    def _function(self, value: Any) -> str:
        if isinstance(value, functools.partial):
            words = [self._flat(value.func), *map(self._flat, value.args)]
            words += [f"{name}={self._flat(item)}" for name, item in value.keywords.items()]
            return f"functools.partial({', '.join(words)})"
        public = functions.public_name(value)
        if public:
            self.imports.add(f"import {public.rpartition('.')[0]}")
            return public
        place = functions.find(value)
        if place is None:
            raise UnwritableError(functions.describe(value))
        if place.owner is not None:  # a bound method
            return f"{self._flat(place.owner)}.{place.attribute}"
        if place.wrapped is not None:  # jitted where it is nested; scripts jit
            return self._flat(place.wrapped)
        self.modules[place.module] = (place.folder, place.file)
        module = functions.variable(place.module)
        if place.attribute:
            return f"{module}.{place.attribute}"
        self.imports.add("from pytest_pallas.replay.parts import nested")
        words = [module, quoted(place.qualname), str(place.number), *map(self._flat, place.cells)]
        for name, defaults in (
            ("defaults", value.__defaults__),
            ("keywords", value.__kwdefaults__),
        ):
            words += [f"{name}={self._flat(defaults)}"] if defaults else []
        return f"nested({', '.join(words)})"


def quoted(text: str) -> str:
    """A string between double quotes, where it can be."""
    return f'"{text}"' if repr(text) == f"'{text}'" and '"' not in text else repr(text)


def _same(value: Any, default: Any) -> bool:
    """Whether a field has its default; of arrays it must be that very array."""
    if value is default:
        return True
    return type(value) is type(default) and isinstance(value, (*_PLAIN, float)) and value == default


def _bracketed(left: str, items: list[str], right: str) -> str:
    """Items between brackets, one a line if they are long."""
    line = f"{left}{', '.join(items)}{right}"
    if len(line) <= 88 and "\n" not in line:
        return line
    inner = "".join(f"    {textwrap.indent(item, '    ').lstrip()},\n" for item in items)
    return f"{left}\n{inner}{right.lstrip(',')}"


def _readable(array: np.ndarray[Any, Any]) -> str | None:
    """The array as numbers, if they make the same bits again."""
    wide = array if array.dtype.kind in "biu" else array.astype(np.float64)
    if not np.isfinite(wide).all():
        return None  # no literals
    whole = wide.dtype.kind == "f" and (wide == np.rint(wide)).all() and (abs(wide) < 2**31).all()
    try:
        plain = (wide.astype(np.int64) if whole else wide).tolist()
        again = np.array(plain, array.dtype).reshape(array.shape)
    except (TypeError, ValueError, OverflowError):
        return None
    text = repr(plain)
    if again.tobytes() != array.tobytes():
        return None
    if array.ndim > 1 and len(text) > 88:
        text = _bracketed("[", [repr(row) for row in plain], "]")
    return f'np.array({text}, "{array.dtype.name}")'
