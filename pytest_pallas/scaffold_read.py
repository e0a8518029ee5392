"""Read the parameters of a function, for ``pytest-pallas new``: nothing is traced here.

``parameters_of`` reads the signature, annotations, docstring and source, and lists the possible
kinds of each parameter, best first: an ``ArrayParameter`` (also a pytree of arrays), or a
``StaticParameter`` (a number, text, dtype or mesh). ``scaffold_trace`` finds the right one.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pallas_sim.errors import OptionError
from pytest_pallas.draw.dtypes import SUPPORTED
from pytest_pallas.loading import innermost

#: Names of integers that split work and do not change the answer.
_TUNING = re.compile(
    r"block|tile|chunk|stages|warps|unroll|num_(programs|cores)|^(b|t)(m|n|k|q|kv|s|d)$|^b[mnkq]_?\w?$"
)
#: Names of parameters that are rather a number than an array.
_NUMBER = re.compile(
    r"^(axis|dim|eps|epsilon|scale|alpha|beta|causal|heads|groups|window|shift|stride|size|step"
    r"|n|k|top_k|topk|causal|interpret|dtype|out_dtype)$|^num_|_(size|axis|dim|scale|eps|heads)$"
)
#: Names of arrays of integers.
_INTEGERS = re.compile(
    r"len(gth)?s?$|_lens?$|ids?$|ind(ices|ex|x)?$|offsets?$|segments?$|positions?$|^pos|sizes$"
    r"|(page|block)_tables?$|cu_|pages?$|tokens?$|labels?$|counts?$|starts?$|ends?$|perm"
)

#: Names of arrays of truth values.
_BOOLS = re.compile(r"(^|_)(mask|valid|keep|flags?)$")

#: Names of axes of a mesh, as parameters.
_MESH_AXIS = re.compile(r"^(axis_names?|mesh_axis|axis)$")

#: Calls and attributes whose texts are names of axes of a mesh: ``P("x")``, ``mesh.shape["x"]``.
_OF_MESHES = re.compile(
    r"^(P|PartitionSpec|shape|axis_(index|size)|psum|pmax|pmin|all_gather|ppermute|mesh|Mesh)$"
)

#: Attributes that arrays have, and numbers and texts do not.
_OF_ARRAYS = frozenset({"shape", "dtype", "ndim", "astype", "at", "reshape"})

#: Size of an axis of the meshes to trace with.
MESH_SIZE = 4

#: ``(m, n)``, ``[m, n]``, ``(n,)``, ``m x n`` in brackets; names, sizes and products of them.
_WORD = r"[A-Za-z_][A-Za-z0-9_]*|\d+"
_DIM = rf"(?:{_WORD})(?:\s*[*+/-]+\s*(?:{_WORD}))*"
_SHAPE = re.compile(rf"[(\[]\s*({_DIM}(?:\s*(?:,|\bx\b)\s*(?:{_DIM}))*)\s*,?\s*[)\]]")

#: Words in brackets that are no dims, as in ``x (optional): ...`` or ``x (jax.Array)``.
_NO_DIMS = frozenset({"optional", "array", "jax", "jnp", "np", "int", "float", "bool", "str"})

#: Words for dtypes besides their names.
_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "i32": "int32",
    "i8": "int8",
    "integers": "int32",
    "int": "int32",
}

#: A dtype that a docstring names without saying of what, unless it is one that the kernel computes
#: in: "a float32 array", and not "accumulated in float32".
_ANY_DTYPE = re.compile(r"(?:\b(in|to|as|into|returns?|by)\s+)?`*\b([a-z]+\d+)\b", re.IGNORECASE)

#: ``a multiple of 8 rows``, ``divisible by 128``.
_MULTIPLE = re.compile(r"\b(?:multiples?\s+of|divisible\s+by)\s+(\d+)", re.IGNORECASE)


# The source.


@dataclass
class Source:
    """How the source uses parameters, by name.

    Attributes:
      axes: names of the axes, as in ``m, k = x.shape``; "" for an axis without a name.
      keys: the keys of a dict, as in ``params["w"]``.
      items: the number of items, as in ``q, k, v = qkv``.
      mesh_axes: the names of axes of a mesh, as in ``mesh.shape["x"]`` and ``P("x")``.
      arrays: the names with an attribute of arrays, as in ``x.shape``.
    """

    axes: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    keys: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    items: dict[str, int] = field(default_factory=dict[str, int])
    mesh_axes: list[str] = field(default_factory=list[str])
    arrays: set[str] = field(default_factory=set[str])


def read_source(function: Callable[..., Any]) -> Source:
    """Read the source of a function; return an empty ``Source`` if there is none."""
    source = Source()
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(innermost(function))))
    except (OSError, TypeError, SyntaxError):
        return source
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    _read_assignment(source, target, value)
            case ast.Subscript(ast.Name(name), ast.Constant(str(key))):
                keys = source.keys.setdefault(name, [])
                keys += [key] * (key not in keys)
            case ast.Subscript(ast.Attribute(_, name), part) | ast.Call(ast.Name(name), [part, *_]):
                _read_mesh_axes(source, name, part)
            case ast.Attribute(ast.Name(name), attribute) if attribute in _OF_ARRAYS:
                source.arrays.add(name)
            case ast.Call(ast.Attribute(_, name), args):
                for part in args:
                    _read_mesh_axes(source, name, part)
            case _:
                pass
    return source


def _read_mesh_axes(source: Source, name: str, part: ast.expr) -> None:
    for node in ast.walk(part) if _OF_MESHES.match(name) else ():
        match node:
            case ast.Constant(str(axis)) if axis.isidentifier() and axis not in source.mesh_axes:
                source.mesh_axes.append(axis)
            case _:
                pass


def _read_assignment(source: Source, target: ast.expr, value: ast.expr) -> None:
    match target, value:
        case ast.Tuple(targets), ast.Tuple(values) if len(targets) == len(values):
            for one, other in zip(targets, values, strict=True):
                _read_assignment(source, one, other)
        case ((ast.Tuple(targets) | ast.List(targets)), _) if any(
            isinstance(target, ast.Starred) for target in targets
        ):
            pass
        case ((ast.Tuple(targets) | ast.List(targets)), ast.Name(name)):
            source.items.setdefault(name, len(targets))
        case ((ast.Tuple(targets) | ast.List(targets)), ast.Attribute(ast.Name(name), "shape")):
            axes = [target.id if isinstance(target, ast.Name) else "" for target in targets]
            source.axes.setdefault(name, tuple(axis.strip("_") for axis in axes))
        case _:
            pass


# The docstring.


@dataclass(frozen=True)
class Described:
    """The description of an array in a docstring.

    Attributes:
      dims: its dims, or None. A dim that is no name and no size is "".
      dtypes: names of dtypes, or none.
    """

    dims: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] = ()


def described(text: str | None, names: Sequence[str]) -> dict[str, Described]:
    """Read the descriptions of arrays in a docstring, by name of the parameter.

    It understands the styles of Google, numpy and Sphinx: a line that begins with the name, and the
    lines below it until one begins with another name.

    Args:
      text: the docstring.
      names: of the parameters.
    """
    parameters: dict[str, Described] = {}
    parts = _parts(text or "", names)
    for name in names:
        # A sentence may name an array and its shape: "adds x (m, n) and y [n]".
        prose = re.search(rf"(?<![\w.]){re.escape(name)}[`*]*\s*({_SHAPE.pattern})", text or "")
        part = parts.get(name, prose.group(1) if prose else "")
        shapes = (_dims(match.group(1)) for match in _SHAPE.finditer(part))
        dims = next(filter(None, shapes), None)
        dtypes = (_DTYPES.get(word, word) for word in re.findall(r"\w+", part))
        dtypes = tuple(dict.fromkeys(dtype for dtype in dtypes if dtype in SUPPORTED))
        if dims or dtypes:
            parameters[name] = Described(dims, dtypes)
    return parameters


def mentioned_dtypes(text: str | None) -> tuple[str, ...]:
    """List the dtypes that a docstring names, without those that a kernel only computes in."""
    names = (
        _DTYPES.get(match.group(2).lower(), match.group(2).lower())
        for match in _ANY_DTYPE.finditer(text or "")
        if not match.group(1)
    )
    return tuple(dict.fromkeys(name for name in names if name in SUPPORTED))


def multiples(text: str | None) -> frozenset[int]:
    """Find the numbers of phrases such as "a multiple of 8" in a docstring."""
    return frozenset(int(number) for number in _MULTIPLE.findall(text or ""))


def _parts(text: str, names: Sequence[str]) -> dict[str, str]:
    """Divide a docstring into the texts on its parameters."""
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
        rest = line
        if match := several.match(line):
            current = tuple(re.split(r"\s*,\s*", match.group(1)))
        elif match := start.match(line):
            current = (match.group(1),)
            rest = line[match.end(1) :]  # such as "(m, n)" after "x"
        elif not line.strip() or re.match(r"^\s*(Returns?|Raises|Yields|Examples?)\b", line):
            current = ()
        for name in current:
            parts[name] = f"{parts.get(name, '')} {rest}"
    return parts


def _dims(text: str) -> tuple[str, ...] | None:
    """Split a shape into dims; None if it is no shape."""
    dims = [dim.strip() for dim in re.split(r",|\bx\b", text)]
    if any(dim.lower() in _NO_DIMS or dim in SUPPORTED for dim in dims):
        return None
    return tuple(dim if dim.isidentifier() or dim.isdigit() else "" for dim in dims)


# The possible kinds of each parameter.


@dataclass(frozen=True)
class Leaf:
    """An array that a function takes.

    Attributes:
      name: an identifier: of the parameter, or with the key of a pytree.
      dims: the names or sizes of its axes, "" for an unknown one; None if not even their number is
        known.
      named: whether axes with the same name in ``dims`` have the same size.
      dtypes: the dtypes that it may have, best first; empty if unknown.
      kind: "integers" if its name is one of integers, such as lengths; "truths" if it is one of
        truth values, such as a mask; else "".
      source: of ``dims``: an annotation, the docstring or the source code; "" without dims.
    """

    name: str
    dims: tuple[str, ...] | None = None
    named: bool = False
    dtypes: tuple[str, ...] = ()
    kind: str = ""
    source: str = ""

    @property
    def integers(self) -> bool:
        """Whether its name is one of integers."""
        return self.kind == "integers"


@dataclass(frozen=True)
class ArrayParameter:
    """A parameter that is an array, or a pytree of arrays.

    Attributes:
      name: of the parameter.
      leaves: its arrays.
      keyword: whether it is passed by name.
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
class MeshSizes:
    """The sizes of the axes of a mesh, as a candidate for a parameter that is a mesh.

    Attributes:
      sizes: by axis.
    """

    sizes: tuple[tuple[str, int], ...]

    def __repr__(self) -> str:
        return repr(dict(self.sizes))

    def resized(self, size: int) -> MeshSizes:
        """Return a mesh of the same axes with another size of the first one."""
        return MeshSizes(((self.sizes[0][0], size), *self.sizes[1:]))


@dataclass(frozen=True)
class StaticParameter:
    """A parameter that is no array.

    Attributes:
      name: of the parameter.
      values: candidates, best first.
      tuning: whether it divides the work, and does not change the answer.
      default: its default.
    """

    name: str
    values: tuple[Any, ...] = ()
    tuning: bool = False
    default: Any = None


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function.

    Attributes:
      choices: the possible kinds of each parameter without a default, best first.
      optional: the parameters with a default for which other values are tried.
    """

    choices: tuple[tuple[ArrayParameter | StaticParameter, ...], ...]
    optional: tuple[StaticParameter, ...]


def parameters_of(function: Callable[..., Any]) -> Parameters:
    """Read the signature, the annotations, the docstring and the source of a function.

    Raises:
      OptionError: it has no signature.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise OptionError(f"the function has no signature that can be read: {error}") from None
    hints, source = _hints(innermost(function)), read_source(function)
    text = inspect.getdoc(innermost(function))
    docs = described(text, list(signature.parameters))
    prose = () if any(doc.dtypes for doc in docs.values()) else mentioned_dtypes(text)
    choices: list[tuple[ArrayParameter | StaticParameter, ...]] = []
    optional: list[StaticParameter] = []
    for name, parameter in signature.parameters.items():
        hint = hints.get(name)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        is_mesh = name == "mesh" or getattr(hint, "__name__", "") in ("Mesh", "AbstractMesh")
        if is_mesh and parameter.default in (parameter.empty, None):
            choices.append((StaticParameter(name, _meshes(source, signature)),))
        elif parameter.default is not parameter.empty:
            optional.append(_optional(name, hint, parameter.default))
        elif _MESH_AXIS.match(name) and hint in (None, str) and "mesh" in signature.parameters:
            axes = dict(_meshes(source, signature)[0].sizes)
            choices.append((StaticParameter(name, (*axes,)),))
        else:
            keyword = parameter.kind is parameter.KEYWORD_ONLY
            doc = docs.get(name, Described())
            doc = dataclasses.replace(doc, dtypes=doc.dtypes or _of_prose(name, prose))
            choices.append(tuple(_required(name, hint, doc, source, keyword=keyword)))
    return Parameters(tuple(choices), tuple(static for static in optional if static.values))


def _meshes(source: Source, signature: inspect.Signature) -> tuple[MeshSizes, ...]:
    """List the meshes to try, by the names of axes in the source and in defaults."""
    defaults = (
        parameter.default
        for name, parameter in signature.parameters.items()
        if "axis" in name and isinstance(parameter.default, str)
    )
    names = list(dict.fromkeys((*defaults, *source.mesh_axes, "x", "i", "data")))
    meshes = [MeshSizes(((name, MESH_SIZE),)) for name in names]
    if len(source.mesh_axes) > 1:
        meshes.insert(1, MeshSizes(tuple((name, 2) for name in source.mesh_axes[:2])))
    return tuple(meshes)


def _of_prose(name: str, dtypes: Sequence[str]) -> tuple[str, ...]:
    """Choose the dtypes of a docstring's sentences that an array of this name may have."""
    narrow = tuple(dtype for dtype in dtypes if "int" in dtype and "32" not in dtype)
    floats = tuple(dtype for dtype in dtypes if "float" in dtype)
    return () if _INTEGERS.search(name) or _BOOLS.search(name) else floats or narrow


def _hints(annotated: Any) -> dict[str, Any]:
    try:
        return get_type_hints(annotated, include_extras=True)
    except Exception:  # names that exist for type checkers only
        return {}


def _optional(name: str, hint: Any, default: Any) -> StaticParameter:
    """Make a parameter with a default, and the values to try, or none."""
    tuning = bool(_TUNING.search(name))
    values = (False, True) if isinstance(default, bool) else _enumerated(hint)
    if not values and isinstance(default, int) and tuning and default >= 16:
        values = (default // 2, default)
    how_it_runs = name in ("interpret", "debug", "name", "backend")
    return StaticParameter(name, values, tuning or how_it_runs, default)


def _required(
    name: str, hint: Any, doc: Described, source: Source, *, keyword: bool
) -> list[ArrayParameter | StaticParameter]:
    """List the possible kinds of a parameter without a default, best first."""
    tuning = bool(_TUNING.search(name))
    if enumerated := _enumerated(hint):
        return [StaticParameter(name, enumerated)]
    if hint in (int, float, str):
        return [StaticParameter(name, _numbers(name, hint), tuning)]
    if get_origin(hint) in (tuple, Sequence) and {*get_args(hint)} <= {int, Ellipsis}:
        return [StaticParameter(name, ((128, 128), (8, 128), (128,), (64, 64, 64)), tuning)]
    array = ArrayParameter(name, (_leaf(name, hint, doc, source),), keyword)
    if pytree := _pytree(name, hint, source, keyword=keyword):
        return [pytree, array]
    if _is_array(hint) or doc.dims is not None or name in source.axes or name in source.arrays:
        return [array]
    number = StaticParameter(name, _numbers(name, None), tuning)
    return [number, array] if tuning or _NUMBER.search(name) else [array, number]


def _numbers(name: str, hint: Any) -> tuple[Any, ...]:
    """List candidates for a number or a text without a default."""
    if name.endswith("dtype"):
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
    """List the values of a ``Literal``, an ``Enum`` or ``bool``."""
    if hint is bool:
        return (False, True)
    if get_origin(hint) is Literal:
        return get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return tuple(hint)
    return ()


def _is_jaxtyping(hint: Any) -> bool:
    return hasattr(hint, "dim_str") and hasattr(hint, "dtypes")


def _is_array(hint: Any) -> bool:
    """Whether an annotation is an array's: of JAX, numpy or jaxtyping, also in a union."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(map(_is_array, get_args(hint)))
    name = getattr(get_origin(hint) or hint, "__name__", str(hint))
    return _is_jaxtyping(hint) or name in ("Array", "ndarray", "ArrayLike", "ArrayImpl")


def _leaf(
    name: str, hint: Any = None, doc: Described = Described(), source: Source | None = None
) -> Leaf:
    """Make an array from its annotation, docstring or source, in this order."""
    kind = "truths" if _BOOLS.search(name) else "integers" if _INTEGERS.search(name) else ""
    axes = doc.dims or (() if source is None else source.axes.get(name, ()))
    if kind == "integers" and (len(axes) > 2 or any("float" in dtype for dtype in doc.dtypes)):
        kind = ""  # such as pages of keys
    if _is_jaxtyping(hint) and not re.search(r"[*#]|\.\.\.", str(hint.dim_str)):
        dims = tuple(map(_jaxtyping_dim, str(hint.dim_str).split()))
        dtypes = _preferred([str(dtype) for dtype in hint.dtypes or ()])
        return Leaf(name, dims, True, dtypes, kind, "its annotation")
    if doc.dims is not None:
        return Leaf(name, doc.dims, True, doc.dtypes, kind, "the docstring")
    if source is not None and name in source.axes:
        return Leaf(name, source.axes[name], False, doc.dtypes, kind, "the source")
    return Leaf(name, None, False, doc.dtypes, kind)


def _jaxtyping_dim(dim: str) -> str:
    dim = dim.partition("=")[2] or dim
    return dim if (dim.isidentifier() and not dim.startswith("_")) or dim.isdigit() else ""


def _preferred(names: Sequence[str]) -> tuple[str, ...]:
    """List the dtypes of an annotation to try, floats and 32 bits first."""
    order = ("float32", "bfloat16", "int32", "int8", "uint32", "uint8", "bool")
    first = [name for name in order if name in names]
    return tuple(first or [name for name in names if name.isidentifier()])


def _pytree(name: str, hint: Any, source: Source, *, keyword: bool) -> ArrayParameter | None:
    """Make the pytree that an annotation names, or that the source indexes or unpacks.

    It is a named tuple, a dataclass, a tuple, or a dict with texts as keys. None if there is none.
    """
    fields: Mapping[str, Any]
    make: Callable[[Sequence[Any]], Any] = tuple
    items = get_args(hint)
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")):
        annotated = _hints(hint)
        names: Sequence[str] = getattr(hint, "_fields", ()) or [
            field.name for field in dataclasses.fields(hint) if field.init
        ]
        fields = {key: annotated.get(key) for key in names}
        build = f"{hint.__name__}({', '.join(f'{key}={{}}' for key in names)})"
        make = functools.partial(_from_fields, hint, names)
    elif name in source.keys:
        fields = dict.fromkeys(source.keys[name])
        build = "{{" + ", ".join(f'"{key}": {{}}' for key in fields) + "}}"
        make = functools.partial(_from_fields, dict[str, Any], source.keys[name])
    elif name in source.items or (
        get_origin(hint) is tuple and items and all(map(_is_array, items))
    ):
        items = items or (None,) * source.items[name]
        fields = {str(number): item for number, item in enumerate(items)}
        build = f"({', '.join(['{}'] * len(items))}{',' * (len(items) == 1)})"
    else:
        return None
    leaves = [_leaf(f"{name}_{re.sub(r'\W', '_', key)}", hint) for key, hint in fields.items()]
    return ArrayParameter(name, tuple(leaves), keyword, build, make)


def _from_fields(kind: Callable[..., Any], names: Sequence[str], arrays: Sequence[Any]) -> Any:
    return kind(**dict(zip(names, arrays, strict=True)))
