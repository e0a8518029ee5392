"""Data from files and from other processes and machines: limited JSON, read by a schema.

A schema is a type: a dataclass, ``NamedTuple`` or ``TypedDict``, or what their fields are made of.
``decode`` makes a value of it, or says in one sentence what is wrong and where. It builds values of
these types only, imports nothing and executes nothing of what it reads.

Text is made fit for a terminal on its way in: whatever prints it need not think of it. Control
characters become escapes, in a field of type ``str`` also line ends, and so do the beginnings of
lines that a CI service would take for its commands.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import re
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Annotated, Any, Literal, TypeAliasType, Union

from pallas_sim.findings import Lines

#: Limit on the bytes of a JSON text.
MOST_BYTES = 2**30

#: Limit on the levels of values that no schema describes. The deepest that is written is a call:
#: two levels for each level of its pytree.
MOST_DEPTH = 100

#: Limit on integers, to either side: they fit into a float, so that no arithmetic overflows.
MOST_INTEGER = 2**256


class DataError(ValueError):
    """Data is not what it must be. The message says where in it, and what must be there."""

    def __init__(self, problem: str, where: str = "", *, other: bool = False) -> None:
        """Make the error.

        Args:
          problem: such as ``"must be a list, not 3"``.
          where: the part of the data, such as ``".a[0]"``.
          other: whether it is of another kind altogether, such as a number in place of a list.
        """
        super().__init__(f"{where.removeprefix('.')} {problem}" if where else problem)
        self.problem, self.where, self.other = problem, where, other

    def inside(self, where: str) -> DataError:
        """Return the same error for data that is a part of other data."""
        return DataError(self.problem, where + self.where)


@dataclass(frozen=True)
class Between:
    """Limits on a number, which are included."""

    least: float
    most: float


@dataclass(frozen=True)
class Matching:
    """A pattern that a text fits to from beginning to end, and a description of such a text."""

    pattern: str
    description: str


@dataclass(frozen=True)
class Sized:
    """Limit on the number of elements of a list or a table."""

    most: int


@dataclass(frozen=True)
class AsWritten:
    """Text stays as it is: a value that is computed with, and not shown."""


@dataclass(frozen=True)
class Accepts:
    """A function of the plain value that is called first, such as for what older versions wrote."""

    function: Callable[[Any], Any]


@dataclass(frozen=True)
class Checked:
    """The value must be one of a schema, and stays plain.

    Attributes:
      schema: gives the schema, which may be imported late.
      plain: gives the plain value of what ``decode`` has made; None for ``jsonable``.
    """

    schema: Callable[[], Any]
    plain: Callable[[Any], Any] | None = None


#: A text that is computed with, and not shown.
Exact = Annotated[str, AsWritten()]

#: A number of things, or a size.
Count = Annotated[int, Between(0, 2**53)]

#: A time in seconds.
Seconds = Annotated[float, Between(0, 2**53)]

#: The sizes of an array, a grid or a mesh.
Shape = Annotated[list[Count], Sized(64)]


def parse(content: str | bytes, *, most: int = MOST_BYTES) -> Any:
    """Return the value of a JSON text.

    Args:
      content: the text; bytes are UTF-8.
      most: limit on its length.

    Raises:
      DataError: it is no JSON, too long, or nested too deeply.
    """
    if len(content) > most:
        raise DataError(f"is too large: {len(content):,} bytes, of at most {most:,}")
    try:
        text = content.decode() if isinstance(content, bytes) else content
        return json.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(f"is no UTF-8 text at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise DataError(f"is no JSON at character {error.pos}: {error.msg}") from None
    except ValueError:  # an integer of too many digits
        raise DataError("is no JSON: it has a number of too many digits") from None
    except RecursionError:
        raise DataError("is no JSON that is read: it is nested too deeply") from None


def parse_object(content: str, lazily: Collection[str]) -> dict[str, Any]:
    """Return the fields of a JSON object; those named that are lists as iterables that parse anew.

    A list of records takes several times the memory of its text, and a reader needs one at a time.

    Args:
      content: the text.
      lazily: names of fields.

    Raises:
      DataError: it is no JSON object, too long, or nested too deeply.
    """
    fields: Any = {}
    try:
        at = _after(content, 0, "{")
        while content[_after(content, at)] != "}":
            name, at = _JSON.raw_decode(content, _after(content, at, "," if fields else ""))
            at = _after(content, at, ":")
            if name in lazily and content.startswith("[", at):
                fields[name] = LazyList(content, at)
                *_, at = fields[name].ends()
            else:
                fields[name], at = _JSON.raw_decode(content, at)
        _after(content, at, "}", end=True)
    except (ValueError, LookupError, RecursionError):
        fields = parse(content)  # says what is wrong
    if len(content) > MOST_BYTES or not isinstance(fields, dict):
        raise DataError("is no JSON object")
    return fields


_JSON, _SPACE = json.JSONDecoder(), re.compile(r"[^ \t\n\r]|$")


def _after(content: str, at: int, sign: str = "", *, end: bool = False) -> int:
    """Return the position after white space, or after a sign and the white space around it."""
    match = _SPACE.search(content, at)
    assert match is not None
    at = match.start()
    if not content.startswith(sign, at):
        raise ValueError
    if sign:
        at = _after(content, at + len(sign))
    if end and at < len(content):
        raise ValueError
    return at


@dataclass(frozen=True)
class LazyList:
    """A list in a JSON text, parsed one element after the other each time that it is read.

    Attributes:
      content: the text.
      start: where the list begins in it.
    """

    content: str
    start: int

    def __iter__(self) -> Iterator[Any]:
        """The elements."""
        return (value for value, _ in self._pairs() if value is not _END)

    def ends(self) -> Iterator[int]:
        """Return the positions after each element, and after the list."""
        return (end for _, end in self._pairs())

    def _pairs(self) -> Iterator[tuple[Any, int]]:
        at = _after(self.content, self.start, "[")
        sign = ""
        while not self.content.startswith("]", at):
            value, at = _JSON.raw_decode(self.content, _after(self.content, at, sign))
            at = _after(self.content, at)
            yield value, at
            sign = ","
        yield _END, _after(self.content, at, "]")


_END = object()


def decode(schema: Any, plain: object) -> Any:
    """Return the value of a schema that plain values stand for.

    Args:
      schema: a type; see the module.
      plain: what ``json`` makes of a text. Tuples and bytes are taken, too.

    Raises:
      DataError: it is no such value.
    """
    return _reader(schema)(plain)


def jsonable(value: Any) -> Any:
    """Return a value of a schema as plain JSON values, which ``decode`` makes it of again.

    Raises:
      DataError: a part of it is none of a number, a text, bytes, a collection or a dataclass.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: jsonable(element) for key, element in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(element) for element in value]
    scalar: Any = value
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return jsonable(scalar.item())  # of numpy
    raise DataError(f"is a {type(value).__qualname__}, which is no plain value")


def json_of(value: Any) -> bytes:
    """Return the JSON text of a value of a schema, for another process: see ``jsonable``."""
    return json.dumps(jsonable(value)).encode()


def tagged(value: Any, types: Mapping[str, type] = MappingProxyType({}), other: Any = None) -> Any:
    """Make plain JSON of a value without a schema; objects with one name stand for other types.

    Args:
      value: numbers, texts, bytes, collections, and dataclasses of ``types``.
      types: dataclasses by name.
      other: gives a plain value for anything else; None to refuse it.

    Raises:
      DataError: a part of it is something else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    again = functools.partial(tagged, types=types, other=other)
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if types.get(type(value).__name__) is type(value):
        names = [field.name for field in dataclasses.fields(value)]
        fields = [[name, again(getattr(value, name))] for name in names]
        return {"message": type(value).__name__, "fields": fields}
    if isinstance(value, Mapping):
        return {"table": [[again(key), again(element)] for key, element in value.items()]}
    for name, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            return {name: [again(element) for element in value]}
    if isinstance(value, list):
        return [again(element) for element in value]
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return again(value.item())  # a scalar of numpy
    if other is not None:
        return other(value)
    raise DataError(f"is a {type(value).__qualname__}, which is no plain value")


def untagged(plain: Any, types: Mapping[str, type] = MappingProxyType({}), depth: int = 0) -> Any:
    """Return the value from ``tagged``, with its dataclasses checked.

    Raises:
      DataError: it is none.
    """
    if not isinstance(plain, list | dict):
        return plain
    if depth > 4 * MOST_DEPTH:
        raise DataError(f"is nested more than {4 * MOST_DEPTH} levels deep")

    def again(part: Any) -> Any:
        return untagged(part, types, depth + 1)

    if isinstance(plain, list):
        return list(map(again, plain))
    try:
        match plain:
            case {"bytes": text}:
                return decode(bytes, text)
            case {"table": list(pairs)}:
                return {again(key): again(value) for key, value in pairs}
            case {"message": name, "fields": list(pairs)} if name in types:
                return decode(types[name], {key: again(value) for key, value in pairs})
            case _:
                ((name, values),) = plain.items()
                return _COLLECTIONS[name](map(again, values))
    except DataError:
        raise
    except (TypeError, ValueError, LookupError):
        names = ", ".join(map(str, plain))
        raise DataError(f"has no object with {shown(names)[:60]}") from None


_COLLECTIONS: Mapping[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


# What a terminal obeys, or shows otherwise than it is: control characters, separators of lines,
# marks of the direction of text; and halves of characters, which cannot be written.
_CONTROL = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_NAMES = re.compile(f"[{_CONTROL}]")
_IN_LINES = re.compile(f"(?:\x1b\\[[0-9;]*m|[\n\t])+|[{_CONTROL}]")

#: Commands of CI services: GitHub's ``::error`` at the beginning of a line, Azure's ``##[error]``.
_COMMAND = re.compile(r"^(\s*):(?=:[A-Za-z])|##(?=\[|vso\[)", re.MULTILINE)


def shown(text: str, *, lines: bool = False) -> str:
    """Return a text that is safe in a terminal; see the module.

    Args:
      text: from anywhere.
      lines: whether it may have several lines, and colours.
    """
    if not text.isprintable():
        text = (_IN_LINES if lines else _IN_NAMES).sub(_escape, text)
    if ":" in text or "#" in text:
        text = _COMMAND.sub(_no_command, text)
    return text


def _escape(match: re.Match[str]) -> str:
    text = match[0]
    if len(text) > 1 or text in "\n\t":
        return text if match.re is _IN_LINES else _NAMED[text]
    return _NAMED.get(text) or (f"\\x{ord(text):02x}" if text < "\x80" else f"\\u{ord(text):04x}")


_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _no_command(match: re.Match[str]) -> str:
    return "#\\x23" if match[0] == "##" else f"{match[1]}\\x3a"


#: Makes a value of a plain one.
type _Reader = Callable[[Any], Any]


@functools.cache
def _reader(schema: Any, marks: tuple[Any, ...] = ()) -> _Reader:
    """Return what reads a value of a schema that has these marks."""
    origin, arguments = typing.get_origin(schema), typing.get_args(schema)
    if isinstance(schema, TypeAliasType):
        return _reader(schema.__value__, marks)
    if origin is Annotated:
        accepts = next((mark for mark in arguments[1:] if isinstance(mark, Accepts)), None)
        marks = (*marks, *(mark for mark in arguments[1:] if mark is not accepts))
        read = _reader(arguments[0], marks)
        return read if accepts is None else lambda plain: read(accepts.function(plain))
    if origin in (typing.Required, typing.NotRequired):
        return _reader(*arguments)
    if checked := next((mark for mark in marks if isinstance(mark, Checked)), None):
        back = checked.plain or jsonable
        return lambda plain: back(decode(checked.schema(), plain))
    if origin in (Union, types.UnionType):
        return _union([_reader(argument, marks) for argument in arguments], schema)
    if origin is Literal:
        return _literal(arguments)
    if schema in _SCALARS:
        return functools.partial(_SCALARS[schema], marks)
    if dataclasses.is_dataclass(schema) or typing.is_typeddict(schema):
        return _fields(schema)
    if isinstance(schema, type) and issubclass(schema, tuple) and hasattr(schema, "_fields"):
        named: Any = schema
        hints = typing.get_type_hints(named, include_extras=True)
        return _row(hints.values(), len(hints) - len(named._field_defaults), named._make)
    origin = origin or schema
    if origin is tuple and (not arguments or arguments[-1] is not ...):
        return _row(arguments, len(arguments), tuple)
    most = min((mark.most for mark in marks if isinstance(mark, Sized)), default=MOST_INTEGER)
    marks = tuple(mark for mark in marks if not isinstance(mark, Sized))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, value = arguments or (str, Any)
        return _table(_reader(key, marks), _reader(value, marks), most)
    if isinstance(origin, type) and issubclass(origin, Sequence | frozenset | set):
        kind: Any = origin
        made: Any = None if kind is Sequence else kind
        return _list(_reader(arguments[0] if arguments else Any, marks), made, most)
    raise TypeError(f"{schema} is no schema")


def _wrong(what: str, plain: Any) -> DataError:
    text = shown(repr(plain[:40] if isinstance(plain, str | bytes) else plain)[:60])
    if isinstance(plain, list | tuple | dict):
        noun = "an object" if isinstance(plain, dict) else "a list"
        text = f"{noun} of {len(plain):,}"
    return DataError(f"must be {what}, not {text}", other=True)


def _any(marks: tuple[Any, ...], plain: Any, depth: int = 0) -> Any:
    """Plain values without a schema."""
    if depth > MOST_DEPTH:
        raise DataError(f"is nested more than {MOST_DEPTH} levels deep")
    if plain is None or isinstance(plain, bool | bytes | float):
        return plain
    if isinstance(plain, str):
        return plain if AsWritten() in marks else shown(plain, lines=True)
    if isinstance(plain, int):
        return _limited((), plain)
    if isinstance(plain, list | tuple | set | frozenset):
        return type(plain)(_any(marks, element, depth + 1) for element in plain)
    if isinstance(plain, dict):
        keys = [k if not isinstance(k, str) or AsWritten() in marks else shown(k) for k in plain]
        return {
            _any(marks, key, MOST_DEPTH): _any(marks, element, depth + 1)
            for key, element in zip(keys, plain.values(), strict=True)
        }
    raise _wrong("a plain value", plain)


def _integer(marks: tuple[Any, ...], plain: Any) -> int:
    if isinstance(plain, bool) or not isinstance(plain, int):
        raise _wrong("an integer", plain)
    return _limited(marks, plain)


def _number(marks: tuple[Any, ...], plain: Any) -> float:
    if isinstance(plain, str) and plain in ("inf", "-inf", "nan"):
        plain = float(plain)  # JSON has no such numbers
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise _wrong("a number", plain)
    return float(_limited(marks, plain))


def _limited(marks: tuple[Any, ...], plain: Any) -> Any:
    if isinstance(plain, int) and abs(plain) > MOST_INTEGER:
        raise DataError(f"is an integer of {plain.bit_length():,} bits, of at most 256")
    for mark in marks:
        if isinstance(mark, Between) and not mark.least <= plain <= mark.most:
            raise _wrong(f"a number from {mark.least:,} to {mark.most:,}", plain)
    return plain


def _text(marks: tuple[Any, ...], plain: Any) -> str:
    if not isinstance(plain, str):
        raise _wrong("a text", plain)
    for mark in marks:
        if isinstance(mark, Matching) and not re.fullmatch(mark.pattern, plain):
            raise _wrong(mark.description, plain)
    text = plain if AsWritten() in marks else shown(plain, lines=Lines() in marks)
    return sys.intern(text) if len(text) <= _OFTEN else text


#: Length up to which equal texts are one object: names are in thousands of records.
_OFTEN = 200


def _bytes(_: tuple[Any, ...], plain: Any) -> bytes:
    if isinstance(plain, bytes):
        return plain
    if not isinstance(plain, str):
        raise _wrong("bytes in base64", plain)
    try:
        return base64.b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong("bytes in base64", plain) from None


def _only(kind: type, description: str) -> Callable[..., Any]:
    """Reads a value that says itself what it is."""

    def read(_: tuple[Any, ...], plain: Any) -> Any:
        if not isinstance(plain, kind):
            raise _wrong(description, plain)
        return plain

    return read


_nothing = _only(type(None), "null")

_SCALARS: Mapping[Any, Callable[..., Any]] = {
    Any: _any, object: _any, int: _integer, float: _number, str: _text,
    bytes: _bytes, bool: _only(bool, "true or false"), None: _nothing, type(None): _nothing,
}  # fmt: skip


def _union(readers: Sequence[_Reader], schema: Any) -> _Reader:
    def read(plain: Any) -> Any:
        problem: DataError | None = None
        try:
            for read_one in readers:
                try:
                    return read_one(plain)
                except DataError as error:
                    # the reader that comes furthest knows best what is wrong
                    if error.other:
                        continue
                    if problem is None or len(error.where) > len(problem.where):
                        problem = error
            raise problem or _wrong(_descriptions(schema), plain)
        finally:
            problem = None  # a cycle with its traceback, which holds all that is read

    return read


def _descriptions(schema: Any) -> str:
    names = {str: "a text", int: "an integer", float: "a number", type(None): "null"}
    parts = [typing.get_args(e)[0] if typing.get_origin(e) is Annotated else e
             for e in typing.get_args(schema)]  # fmt: skip
    return " or ".join(
        dict.fromkeys(
            names.get(part, "a list" if typing.get_origin(part) is tuple else "an object")
            for part in parts
        )
    )


def _literal(values: tuple[Any, ...]) -> _Reader:
    def read(plain: Any) -> Any:
        for value in values:
            if type(plain) is type(value) and plain == value:
                return value
        raise _wrong(f"one of {', '.join(map(repr, values))}", plain)

    return read


def _fields(schema: Any) -> _Reader:
    """Reads a dataclass, or a ``TypedDict`` as a dict."""
    hints = typing.get_type_hints(schema, include_extras=True)
    is_class = dataclasses.is_dataclass(schema)
    make: Any = schema if is_class else dict
    if is_class:
        fields = [field for field in dataclasses.fields(schema) if field.init]
        hints = {field.name: hints[field.name] for field in fields}
        missing = dataclasses.MISSING
        required = [e.name for e in fields if e.default is missing is e.default_factory]
    else:
        # ``__required_keys__`` does not know the fields of a module with postponed annotations
        origins = {name: typing.get_origin(hint) for name, hint in hints.items()}
        exception = typing.NotRequired if schema.__total__ else typing.Required
        required = [n for n, mark in origins.items() if (mark is exception) != schema.__total__]
    readers: dict[str, _Reader] = {}

    def read(plain: Any) -> Any:
        if is_class and isinstance(plain, schema):
            return plain
        if not isinstance(plain, Mapping):
            raise _wrong("an object", plain)
        if not readers:  # made at the first use, because a schema may contain itself
            readers.update((name, _reader(hint)) for name, hint in hints.items())
        values: dict[str, Any] = {}
        for name, value in plain.items():
            reader = readers.get(name)
            if reader is None:
                raise DataError(f"has the field {shown(repr(name)[:60])}, which is not known")
            try:
                values[name] = reader(value)
            except DataError as error:
                raise error.inside(f".{name}") from None
        for name in required:
            if name not in values:
                raise DataError(f"lacks the field {name!r}")
        try:
            return make(**values)
        except DataError:
            raise
        except Exception as error:  # what a class says of its own fields
            raise DataError(f"is refused: {shown(str(error))[:200]}") from None

    return read


def _row(schemas: Collection[Any], least: int, make: Callable[[list[Any]], Any]) -> _Reader:
    """Reads a tuple or ``NamedTuple`` of at least so many elements."""
    readers = list(map(_reader, schemas))

    def read(plain: Any) -> Any:
        if not isinstance(plain, list | tuple) or not least <= len(plain) <= len(readers):
            raise _wrong(f"a list of {len(readers)}", plain)
        return make(_elements(readers, plain))

    return read


def _list(reader: _Reader, make: Callable[[list[Any]], Any] | None, most: int) -> _Reader:
    def read(plain: Any) -> Any:
        if not isinstance(plain, list | tuple | LazyList):
            raise _wrong("a list", plain)
        if not isinstance(plain, LazyList) and len(plain) > most:
            raise _wrong(f"a list of at most {most:,}", plain)
        elements = _elements(itertools.repeat(reader), plain)
        if make is None:  # any sequence
            return elements if isinstance(plain, list) else tuple(elements)
        return elements if make is list else make(elements)

    return read


def _elements(readers: Iterable[_Reader], plain: Iterable[Any]) -> list[Any]:
    elements: list[Any] = []
    for number, (reader, value) in enumerate(zip(readers, plain, strict=False)):
        try:
            elements.append(reader(value))
        except DataError as error:
            raise error.inside(f"[{number}]") from None
    return elements


def _table(key: _Reader, value: _Reader, most: int) -> _Reader:
    def read(plain: Any) -> Any:
        if not isinstance(plain, Mapping):
            raise _wrong("an object", plain)
        if len(plain) > most:
            raise _wrong(f"an object of at most {most:,}", plain)
        table: dict[Any, Any] = {}
        for name, element in plain.items():
            try:
                table[key(name)] = value(element)
            except DataError as error:
                raise error.inside(f"[{shown(repr(name)[:40])}]") from None
        return table

    return read


# Files that other processes read while they are written.


@contextlib.contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """Write a file in one step, so that no reader sees a part of it, whatever happens meanwhile.

    Raises:
      OSError: it cannot be written. What was there is as it was.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)  # closed: Windows replaces no open file
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
