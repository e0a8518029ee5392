"""The parameters of a function: which may be arrays or pytrees of them, and which are not."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pallas_sim.errors import OptionError
from pytest_pallas.scaffold.docstrings import Described, described
from pytest_pallas.scaffold.source import Reading, innermost, read

#: Names of integers that split work and do not change the answer.
_TUNING = re.compile(
    r"block|tile|chunk|stages|warps|unroll|num_(programs|cores)|^(b|t)(m|n|k|q|kv|s|d)$|^b[mnkq]_?\w?$"
)
#: Names of what is rather a number than an array.
_NUMBER = re.compile(
    r"^(axis|dim|eps|epsilon|scale|alpha|beta|causal|heads|groups|window|shift|stride|size|step"
    r"|n|k|top_k|topk|causal|interpret|dtype|out_dtype)$|^num_|_(size|axis|dim|scale|eps|heads)$"
)
#: Names of arrays of integers.
_INTEGERS = re.compile(
    r"len(gth)?s?$|_lens?$|ids?$|ind(ices|ex|x)?$|offsets?$|segments?$|positions?$|^pos|sizes$"
    r"|(page|block)_tables?$|cu_|pages?$|tokens?$|labels?$|counts?$|starts?$|ends?$|perm"
)


@dataclass(frozen=True)
class Leaf:
    """An array that a function takes.

    Attributes:
      name: an identifier: of the parameter, or with the key of a pytree.
      dims: the names or sizes of its axes as far as they are known, "" for an unknown one; None if
        not even their number is known.
      named: whether a name of ``dims`` stands for one size, rather than being a mere label.
      dtypes: the dtypes that it may have, best first; empty if unknown.
      integers: whether its name says that it holds integers, such as lengths.
      said_by: what said so: an annotation, the docstring or the source; "" for nobody.
    """

    name: str
    dims: tuple[str, ...] | None = None
    named: bool = False
    dtypes: tuple[str, ...] = ()
    integers: bool = False
    said_by: str = ""


@dataclass(frozen=True)
class Operand:
    """A parameter that is an array, or a pytree of arrays.

    Attributes:
      name: of the parameter.
      leaves: its arrays.
      keyword: whether it is given by name.
      build: the pytree in Python with ``{}`` for each array: ``{}``, ``{{"w": {}, "b": {}}}``.
      make: makes the pytree of its arrays.
    """

    name: str
    leaves: tuple[Leaf, ...]
    keyword: bool = False
    build: str = "{}"
    make: Callable[[Sequence[Any]], Any] = lambda leaves: leaves[0]

    @property
    def plain(self) -> bool:
        """Whether it is one positional array."""
        return self.build == "{}" and not self.keyword


@dataclass(frozen=True)
class Static:
    """A parameter that is no array.

    Attributes:
      name: of the parameter.
      values: candidates, best first; without a default one of them is needed.
      required: whether it has no default.
      tuning: whether it splits work, rather than changing the answer.
      default: its default.
      positional: whether it cannot be given by name.
    """

    name: str
    values: tuple[Any, ...] = ()
    required: bool = False
    tuning: bool = False
    default: Any = None
    positional: bool = False


@dataclass(frozen=True)
class Parameters:
    """What a function takes; of a parameter that may be several things, all of them, best first."""

    choices: tuple[tuple[Operand | Static, ...], ...]
    optional: tuple[Static, ...]
    left_out: tuple[str, ...]


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Read the signature, the annotations, the docstring and the source of a function.

    Raises:
      OptionError: it has no signature.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise OptionError(f"the function has no signature that can be read: {error}") from None
    try:
        hints = get_type_hints(innermost(function), include_extras=True)
    except Exception:  # names that exist for type checkers only
        hints = dict[str, Any]()
    source = read(function)
    text = inspect.getdoc(innermost(function))
    docs = described(text, list(signature.parameters))
    choices: list[tuple[Operand | Static, ...]] = []
    optional: list[Static] = []
    left_out: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            left_out.append(str(parameter))
            continue
        hint = hints.get(name)
        if parameter.default is not parameter.empty:
            static = _optional(name, hint, parameter.default)
            if static.values:
                optional.append(static)
            continue
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        found = _required(name, hint, docs.get(name, Described()), source, keyword=keyword)
        choices.append(tuple(found))
    return Parameters(tuple(choices), tuple(optional), tuple(left_out))


def _optional(name: str, hint: Any, default: Any) -> Static:
    """A parameter with a default: with the other values that are worth a try, or with none."""
    values = _enumerated(hint)
    if isinstance(default, bool):
        values = (False, True)
    elif not values and isinstance(default, int) and _TUNING.search(name) and default >= 16:
        return Static(name, (default // 2, default), tuning=True, default=default)
    return Static(name, values, default=default, tuning=_is_switch(name))


def _is_switch(name: str) -> bool:
    """Whether a name is that of something about how the kernel runs."""
    return name in ("interpret", "debug", "name", "backend") or bool(_TUNING.search(name))


def _required(
    name: str, hint: Any, said: Described, source: Reading, *, keyword: bool
) -> list[Operand | Static]:
    """What a parameter without a default may be, best first."""
    enumerated = _enumerated(hint)
    tuning = bool(_TUNING.search(name))
    if enumerated or hint is bool:
        return [Static(name, enumerated or (False, True), required=True)]
    if hint in (int, float, str):
        return [Static(name, _numbers(name, hint), required=True, tuning=tuning)]
    if _is_tuple_of_ints(hint):
        shapes = ((128, 128), (8, 128), (128,), (64, 64, 64))
        return [Static(name, shapes, required=True, tuning=tuning)]
    pytree = _annotated_pytree(name, hint, keyword) or _used_pytree(name, source, keyword)
    array = Operand(name, (_leaf(name, hint, said, source),), keyword)
    number = Static(name, _numbers(name, None), required=True, tuning=tuning)
    if pytree is not None:
        return [pytree, array]
    if _is_array(hint) or said.dims is not None or name in source.axes:
        return [array]
    return [number, array] if tuning or _NUMBER.search(name) else [array, number]


def _numbers(name: str, hint: Any) -> tuple[Any, ...]:
    """Candidates for a number or a word without a default."""
    if re.search(r"dtype$", name):
        return ("float32", "bfloat16", "int32")
    if hint is str:
        return ("default", "")
    if hint is float or re.search(r"eps|scale|alpha|beta|rate|temperature|cap", name):
        return (0.5,)
    if _TUNING.search(name):
        return (128, 64, 32, 16, 8, 256, 1, 2)
    if re.search(r"axis|dim", name):
        return (0, 1, -1)
    return (1, 2, 4, 8, 16, 128, 0.5)


def _enumerated(hint: Any) -> tuple[Any, ...]:
    """The values of a ``Literal``, an ``Enum`` or ``bool``."""
    if hint is bool:
        return (False, True)
    if get_origin(hint) is Literal:
        return get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return tuple(hint)
    return ()


def _is_tuple_of_ints(hint: Any) -> bool:
    return get_origin(hint) in (tuple, Sequence) and all(
        each in (int, Ellipsis) for each in get_args(hint)
    )


def _is_jaxtyping(hint: Any) -> bool:
    return hasattr(hint, "dim_str") and hasattr(hint, "dtypes")


def _is_array(hint: Any) -> bool:
    """Whether an annotation is an array's: of JAX, numpy or jaxtyping, also in a union."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(map(_is_array, get_args(hint)))
    if _is_jaxtyping(hint):
        return True
    name = getattr(get_origin(hint) or hint, "__name__", str(hint))
    return name in ("Array", "ndarray", "ArrayLike", "ArrayImpl")


def _leaf(name: str, hint: Any, said: Described, source: Reading) -> Leaf:
    """What is known of an array."""
    integers = bool(_INTEGERS.search(name))
    if _is_jaxtyping(hint):
        dims = tuple(_jaxtyping_dim(word) for word in str(hint.dim_str).split())
        if not any(word[0] in "*#" or "..." in word for word in str(hint.dim_str).split()):
            names = tuple(str(each) for each in hint.dtypes) if hint.dtypes else ()
            return Leaf(name, dims, True, _preferred(names), integers, "its annotation")
    if said.dims is not None:
        return Leaf(name, said.dims, True, said.dtypes, integers, "the docstring")
    if name in source.axes:
        return Leaf(name, source.axes[name], False, said.dtypes, integers, "the source")
    return Leaf(name, None, False, said.dtypes, integers)


def _jaxtyping_dim(word: str) -> str:
    word = word.partition("=")[2] or word
    return word if (word.isidentifier() and not word.startswith("_")) or word.isdigit() else ""


def _preferred(names: tuple[str, ...]) -> tuple[str, ...]:
    """The dtypes of an annotation to try, floats and 32 bits first."""
    order = ("float32", "bfloat16", "int32", "int8", "uint32", "uint8", "bool")
    first = [name for name in order if name in names]
    return tuple(first or [name for name in names if name.isidentifier()])


def _annotated_pytree(name: str, hint: Any, keyword: bool) -> Operand | None:
    """A pytree whose type says its arrays: a named tuple, a dataclass, a typed dict, a tuple."""
    args = get_args(hint)
    if get_origin(hint) is tuple and args and Ellipsis not in args and all(map(_is_array, args)):
        leaves = [_leaf(f"{name}_{n}", each, Described(), Reading()) for n, each in enumerate(args)]
        return _tuple(name, leaves, keyword)
    if not isinstance(hint, type):
        return None
    annotated = _hints(hint)
    if dataclasses.is_dataclass(hint):
        fields = [each.name for each in dataclasses.fields(hint) if each.init]
    elif hasattr(hint, "_fields"):
        fields = list(hint._fields)  # pyright: ignore[reportAttributeAccessIssue]
    elif hasattr(hint, "__required_keys__"):
        fields = list(annotated)
        leaves = [_leaf(f"{name}_{f}", annotated[f], Described(), Reading()) for f in fields]
        return _dict(name, fields, leaves, keyword)
    else:
        return None
    leaves = [_leaf(f"{name}_{f}", annotated.get(f), Described(), Reading()) for f in fields]
    text = ", ".join(f"{field}={{}}" for field in fields)

    def make(arrays: Sequence[Any]) -> Any:
        return hint(**dict(zip(fields, arrays, strict=True)))

    return Operand(name, tuple(leaves), keyword, f"{hint.__name__}({text})", make)


def _hints(kind: type) -> dict[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception:  # names that exist for type checkers only
        return {}


def _used_pytree(name: str, source: Reading, keyword: bool) -> Operand | None:
    """A pytree that the source indexes or divides."""
    keys = source.keys.get(name, ())
    if keys:
        return _dict(name, keys, [_leaf_of_key(name, key, source) for key in keys], keyword)
    count = source.items.get(name)
    if count is not None:
        leaves = [_leaf_of_key(name, str(number), source) for number in range(count)]
        return _tuple(name, leaves, keyword)
    fields = source.attributes.get(name, ())
    if fields:
        leaves = [_leaf_of_key(name, field, source) for field in fields]
        text = ", ".join(f"{field}={{}}" for field in fields)

        def make(arrays: Sequence[Any]) -> Any:
            return types.SimpleNamespace(**dict(zip(fields, arrays, strict=True)))

        return Operand(name, tuple(leaves), keyword, f"types.SimpleNamespace({text})", make)
    return None


def _leaf_of_key(name: str, key: str, source: Reading) -> Leaf:
    del source
    word = re.sub(r"\W", "_", key)
    return Leaf(f"{name}_{word}", integers=bool(_INTEGERS.search(key)))


def _dict(name: str, keys: Sequence[str], leaves: Sequence[Leaf], keyword: bool) -> Operand:
    text = ", ".join(f'"{key}": {{}}' for key in keys)

    def make(arrays: Sequence[Any]) -> Any:
        return dict(zip(keys, arrays, strict=True))

    return Operand(name, tuple(leaves), keyword, "{{" + text + "}}", make)


def _tuple(name: str, leaves: Sequence[Leaf], keyword: bool) -> Operand:
    text = ", ".join("{}" for _ in leaves)
    comma = "," if len(leaves) == 1 else ""
    return Operand(name, tuple(leaves), keyword, f"({text}{comma})", tuple)
