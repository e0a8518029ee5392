"""Shapes and dtypes of arrays that a docstring or a comment in a signature names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_pallas.draw.dtypes import SUPPORTED

#: ``(m, n)``, ``[m, n]``, ``(n,)``, ``m x n`` in brackets; names, sizes and products of them.
_WORD = r"[A-Za-z_][A-Za-z0-9_]*|\d+"
_DIM = rf"(?:{_WORD})(?:\s*[*+/-]+\s*(?:{_WORD}))*"
_SHAPE = re.compile(rf"[(\[]\s*({_DIM}(?:\s*(?:,|\bx\b)\s*(?:{_DIM}))*)\s*,?\s*[)\]]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: Words in brackets that are no dims, as in ``x (optional): ...`` or ``x (jax.Array)``.
_NO_DIMS = frozenset({"optional", "array", "jax", "jnp", "np", "int", "float", "bool", "str"})

#: Words for dtypes besides their names.
_DTYPES: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bfloat16",),
    "fp16": ("float16",),
    "f16": ("float16",),
    "fp32": ("float32",),
    "f32": ("float32",),
    "i32": ("int32",),
    "i8": ("int8",),
    "integers": ("int32",),
    "int": ("int32",),
}

#: ``a multiple of 8 rows``, ``divisible by 128``.
_MULTIPLE = re.compile(r"\b(?:multiples?\s+of|divisible\s+by)\s+(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Described:
    """What is said of an array.

    Attributes:
      dims: its dims, or None. A dim that is no name and no size is "".
      dtypes: names of dtypes, or none.
    """

    dims: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] = ()


def described(text: str | None, names: Sequence[str]) -> dict[str, Described]:
    """What a docstring says of parameters, by name; those of which it says nothing are left out.

    It understands the styles of Google, numpy and Sphinx: a line that begins with the name, and the
    lines below it until one begins with another name.

    Args:
      text: the docstring.
      names: of the parameters.
    """
    found: dict[str, Described] = {}
    for name, words in _parts(text or "", names).items():
        dims = next((dims for m in _SHAPE.finditer(words) if (dims := _dims(m.group(1)))), None)
        known = [w for w in re.findall(r"\w+", words) if w in SUPPORTED or w in _DTYPES]
        dtypes = tuple(dict.fromkeys(t for w in known for t in _DTYPES.get(w, (w,))))
        if dims or dtypes:
            found[name] = Described(dims, dtypes)
    return found


def multiples(text: str | None) -> frozenset[int]:
    """The numbers of which a docstring says that sizes are multiples."""
    return frozenset(int(number) for number in _MULTIPLE.findall(text or ""))


def _parts(text: str, names: Sequence[str]) -> dict[str, str]:
    """The text on each parameter."""
    if not names:
        return {}
    any_name = "|".join(map(re.escape, names))
    start = re.compile(
        rf"^\s*(?::param\s+(?:\w+\s+)?)?[`*]*({any_name})[`*]*(?:\s*[:([]|\s+-|\s*\.\.)(.*)$"
    )
    several = re.compile(rf"^\s*[`*]*((?:{any_name})(?:\s*,\s*(?:{any_name}))+)[`*]*\s*[:(](.*)$")
    parts: dict[str, str] = {}
    current: tuple[str, ...] = ()
    for line in text.splitlines():
        match, group = start.match(line), several.match(line)
        if group:
            current = tuple(re.split(r"\s*,\s*", group.group(1)))
        elif match:
            current = (match.group(1),)
        elif not line.strip() or re.match(r"^\s*(Returns?|Raises|Yields|Examples?)\b", line):
            current = ()
        for name in current:
            # Without the names: "x (m, n)" has its shape in what follows.
            rest = line[line.index(name) + len(name) :] if match and not group else line
            parts[name] = f"{parts.get(name, '')} {rest}"
    return parts


def _dims(text: str) -> tuple[str, ...] | None:
    """The dims of a shape; None if it is none."""
    words = [word.strip() for word in re.split(r",|\bx\b", text)]
    if not words or any(word.lower() in _NO_DIMS or word in SUPPORTED for word in words):
        return None
    return tuple(word if _NAME.fullmatch(word) or word.isdigit() else "" for word in words)
