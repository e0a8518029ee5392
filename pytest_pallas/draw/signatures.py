"""``from_signature`` and ``kernel_args``: calls of functions and specs, for user-written tests."""

from __future__ import annotations

import enum
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypedDict,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_pallas.draw.arguments import Arguments, arguments, as_arguments, on_meshes
from pytest_pallas.draw.arrays import DTypes, arrays, strategy_errors
from pytest_pallas.draw.dtypes import SUPPORTED, as_dtype, dtype_pairs, dtypes
from pytest_pallas.draw.meshes import MeshAxes, is_drawn, sizes_of
from pytest_pallas.draw.sizes import Sizes, Tiles
from pytest_pallas.errors import ShapeLanguageError, SpecError, TooFewDevicesError

if TYPE_CHECKING:
    from jax.sharding import Mesh


def kernel_args(spec: Any, *, mesh: Any = None) -> SearchStrategy[Arguments]:
    """Return a strategy for the calls of a spec, for use in a user-written test.

    Example::

        @given(call=kernel_args(SPEC))
        def test_is_symmetric(pallas_run, call):
            out = pallas_run(SPEC.kernel, *call.args, **call.options, **call.tuning)

    Args:
      spec: a ``KernelSpec``.
      mesh: the ``jax.sharding.Mesh`` that the call is for, with the axes of one of the spec's
        ``meshes``. A spec that draws its mesh needs none: then each call has its own,
        ``call.mesh``, of simulated devices.

    Draws ``Arguments``: what the suite draws for the spec.

    Raises:
      SpecError: ``spec`` is no spec, or ``mesh`` does not go with it.
    """
    missing = [name for name in ("name", "inputs", "meshes") if not hasattr(spec, name)]
    if missing or isinstance(spec, type):
        raise SpecError(f"kernel_args takes a KernelSpec, not {spec!r:.80}")
    if not spec.meshes:
        if mesh is not None:
            raise SpecError(f"kernel_args: the spec {spec.name!r} has no meshes; drop mesh=")
        return as_strategy(spec.name, spec.inputs).map(as_arguments)
    meshes = " or ".join(str(dict(sizes)) for sizes in spec.meshes)
    if mesh is None and len(spec.meshes) == 1 and is_drawn(spec.meshes[0]):
        return st.deferred(lambda: _on_drawn_meshes(spec))
    if mesh is None:
        raise SpecError(
            f"kernel_args: the inputs of spec {spec.name!r} depend on a mesh, such as {meshes}; "
            "give mesh="
        )
    axes = getattr(mesh, "axis_names", None)
    if axes is None or not any(set(axes) == set(sizes) for sizes in spec.meshes):
        raise SpecError(
            f"kernel_args: the spec {spec.name!r} takes a jax.sharding.Mesh with axes as in "
            f"{meshes}, not {mesh!r:.80}"
        )
    return as_strategy(spec.name, spec.inputs(mesh)).map(as_arguments)


def _on_drawn_meshes(spec: Any) -> SearchStrategy[Arguments]:
    (axes,) = spec.meshes
    meshes = inputs_on_meshes(spec, axes, "cpu")
    return on_meshes(axes, [(dict(mesh.shape), strategy) for mesh, strategy in meshes])


def inputs_on_meshes(
    spec: Any, axes: MeshAxes, platform: str
) -> Sequence[tuple[Mesh, SearchStrategy[Any]]]:
    """Return the meshes that a spec draws, each with the strategy of its calls.

    Those of too many devices are left out, and those for which the inputs raise ``SpecError``, or
    draw nothing.

    Args:
      spec: the spec.
      axes: of the meshes.
      platform: of the devices; ``"cpu"`` for simulated ones.

    Raises:
      TooFewDevicesError, SpecError: why there is none, of the smallest mesh.
    """
    from pytest_pallas.backends.devices import make_mesh  # which starts JAX

    refused: list[Exception] = []
    inputs: list[tuple[Mesh, Any]] = []
    for sizes in sizes_of(axes):
        with strategy_errors():
            try:
                mesh = make_mesh(sizes, platform)
                strategy = spec.inputs(mesh)
            except (TooFewDevicesError, SpecError) as error:
                refused.append(error)
                continue
            if not as_strategy(spec.name, strategy).is_empty:
                inputs.append((mesh, strategy))
    if inputs:
        return inputs
    if refused:
        raise refused[0]
    raise SpecError(f"{spec.name}: its inputs draw nothing for any mesh of {dict(axes)}")


def as_strategy(name: str, inputs: Any) -> SearchStrategy[Any]:
    """Return the inputs of a spec if they are a strategy.

    Raises:
      SpecError: they are none.
    """
    if not isinstance(inputs, SearchStrategy):
        raise SpecError(f"inputs of spec {name!r} must be a strategy, not {inputs!r:.80}")
    return inputs


_NONE: Mapping[str, Any] = MappingProxyType({})

#: The first of these that an annotation allows is used: the defaults of ``floats()`` and
#: ``ints()``, then others.
_PREFERRED = (
    ("float32", "bfloat16"),
    ("int32", "int8"),
    ("uint32", "uint8"),
    ("bool",),
)

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class _Array:
    """The annotation of an array.

    Attributes:
      name: of the parameter.
      dims: in the shape language.
      constraints: likewise, for dims that are computed.
      dtypes: names of the supported dtypes that are allowed.
    """

    name: str
    dims: str
    constraints: tuple[str, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class _Signature:
    """The parameters of a function: arrays in order, and drawable options by name."""

    arrays: tuple[_Array, ...]
    options: Mapping[str, SearchStrategy[Any]]


class ArraysArguments(TypedDict, total=False):
    """Arguments that ``from_signature`` passes to ``arrays``."""

    around: Tiles | None
    multiple_of: Tiles | None
    dims: Mapping[str, Sizes] | None
    values: str | Sequence[str]
    unequal: bool | Sequence[str]
    max_bytes: int | None
    max_dim: int | None
    max_elements: int
    min_dim: int


def from_signature(
    function: Callable[..., Any],
    *,
    dtype: DTypes | Sequence[DTypes] | None = None,
    options: Mapping[str, Any] = _NONE,
    tuning: Mapping[str, Any] = _NONE,
    **sizes_and_values: Unpack[ArraysArguments],
) -> SearchStrategy[Arguments]:
    """Return a strategy for the calls of a function whose arrays are annotated with jaxtyping.

    Example::

        def matmul(
            a: Float[Array, "m k"], b: Float[Array, "k n"], *, transpose: bool = False,
            precision: Literal["default", "highest"] = "default", block: int = 128,
        ) -> Float[Array, "m n"]: ...

        from_signature(matmul, around=128, tuning={"block": st.sampled_from([64, 128])})

    A dim is a name, a size, ``_`` (any size) or an expression such as ``n+1``. Names are shared by
    all arrays. Of ``Float`` float32 and bfloat16 are drawn, of ``Int`` int32 and int8, of ``UInt``
    uint32 and uint8; of ``BFloat16``, ``Bool`` and their like just these. Arrays with the same
    choice of dtypes share one. Parameters annotated with ``bool``, ``Literal`` or an ``Enum`` are
    options; other parameters keep their defaults.

    Args:
      function: the function; ``functools.partial`` and ``jax.jit`` of one will do.
      dtype: as for ``arrays``, instead of the dtypes of the annotations, which must allow it.
      options: keyword arguments of kernel and reference, besides or instead of the annotated ones:
        strategies or constants.
      tuning: likewise, for the kernel only.
      sizes_and_values: other arguments of ``arrays``: ``around``, ``multiple_of``, ``dims``,
        ``values``, ``unequal``, ``max_bytes``, ``max_dim``, ``max_elements`` and ``min_dim``.

    Raises:
      SpecError: the signature has no arrays, or a parameter that cannot be drawn: dims that
        broadcast (``#b``) or stand for several (``*b``, ``...``), a keyword-only or optional array,
        unsupported dtypes, or a parameter without an annotation or default.
    """
    by_name = {**options, **tuning}
    signature = _read(function, by_name)
    constraints = ", ".join(text for array in signature.arrays for text in array.constraints)
    text = ", ".join(array.dims for array in signature.arrays)
    if constraints:
        text += f"; {constraints}"
    where = _name_of(function)
    if dtype is not None:
        _check_dtypes(where, dtype, signature.arrays)
    try:
        drawn = arrays(
            text,
            dtype=_dtypes(signature.arrays) if dtype is None else dtype,
            **sizes_and_values,
        )
    except ShapeLanguageError as error:
        raise SpecError(f"from_signature({where}): {error}") from None
    return arguments(drawn, options={**signature.options, **options}, tuning=tuning)


def _read(function: Callable[..., Any], by_name: Mapping[str, Any]) -> _Signature:
    """Read the parameters of a function; those in ``by_name`` need no annotation."""
    where = f"from_signature({_name_of(function)})"
    if not callable(function):
        raise SpecError(f"{where}: this is not a function")
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(_annotated(function), include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise SpecError(f"{where}: its signature cannot be read: {error}") from None
    unknown = sorted(set(by_name) - set(signature.parameters))
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        raise SpecError(f"{where}: there is no parameter {unknown[0]!r} in {signature}")
    annotated: list[_Array] = []
    options: dict[str, SearchStrategy[Any]] = {}
    skipped = ""  # a positional parameter that keeps its default or is passed by name
    for name, parameter in signature.parameters.items():
        hint = hints.get(name)
        problem = f"{where}: the parameter {name!r}"
        if _is_array(hint) and name not in by_name:
            if parameter.kind not in _POSITIONAL:
                raise SpecError(f"{problem} is a keyword-only array; make it positional")
            if skipped:
                raise SpecError(
                    f"{problem} is an array after {skipped!r}, which is not an array; put arrays "
                    "first"
                )
            annotated.append(_array(problem, name, hint))
            continue
        if parameter.kind in _VARIADIC:
            continue
        if parameter.kind in _POSITIONAL:
            skipped = skipped or name
        drawn = _option(hint)
        if name in by_name or (drawn is None and parameter.default is not parameter.empty):
            continue
        if drawn is None or parameter.kind is parameter.POSITIONAL_ONLY:
            raise SpecError(
                f"{problem} has no default, and its annotation {_text(hint)} does not determine "
                f"what to draw; change the annotation, or give options={{{name!r}: ...}}"
            )
        options[name] = drawn
    if not annotated:
        raise SpecError(
            f"{where}: no parameter is annotated with an array, such as Float[Array, 'm k'] of "
            "jaxtyping"
        )
    return _Signature(tuple(annotated), options)


def _annotated(function: Any) -> Any:
    """Unwrap a function down to the one with the annotations."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def _name_of(function: Any) -> str:
    return getattr(_annotated(function), "__name__", None) or repr(function)[:60]


def _text(hint: Any) -> str:
    return "nothing" if hint is None else getattr(hint, "__name__", None) or str(hint)


def _is_array(hint: Any) -> bool:
    """Return whether an annotation is one of jaxtyping's arrays."""
    return hasattr(hint, "dim_str") and hasattr(hint, "dtypes")


def _array(problem: str, name: str, hint: Any) -> _Array:
    dims: list[str] = []
    constraints: list[str] = []
    for axis, token in enumerate(str(hint.dim_str).split()):
        own = f"_{name}_{axis}"  # jaxtyping's own names do not begin with an underscore
        size = token.partition("=")[2] or token  # "rows=4" is 4, with a name to read
        if size[0] in "*#?" or size == "..." or "..." in size:
            raise SpecError(
                f"{problem}: cannot draw the dim {token!r}: it broadcasts or stands for several "
                "dims; use names and sizes"
            )
        named = size.isdigit() or size.isidentifier()
        dims.append(size if named and not size.startswith("_") else own)
        if not named:
            constraints.append(f"{own} = {size}")
    allowed = _allowed(hint.dtypes)
    if not allowed:
        raise SpecError(
            f"{problem}: no dtype of {_text(hint)} is supported; supported: {', '.join(SUPPORTED)}"
        )
    return _Array(name, " ".join(dims) or "()", tuple(constraints), allowed)


def _allowed(dtypes: Any) -> tuple[str, ...]:
    """Return the supported dtypes that an annotation allows."""
    if not isinstance(dtypes, (tuple, list)):
        return tuple(SUPPORTED)
    names = [entry for entry in dtypes if isinstance(entry, str)]
    patterns = [entry for entry in dtypes if isinstance(entry, re.Pattern)]
    return tuple(
        name
        for name in SUPPORTED
        if name in names or any(pattern.match(name) for pattern in patterns)
    )


def _option(hint: Any) -> SearchStrategy[Any] | None:
    """Return the strategy for a keyword argument with this annotation, or None."""
    if hint is bool:
        return st.booleans()
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    return None


def _dtypes(annotated: Sequence[_Array]) -> SearchStrategy[Any]:
    """Draw one dtype, or one of each array; arrays with the same choice share one."""
    choices = list(dict.fromkeys(_choice(array.dtypes) for array in annotated))
    if not choices[1:]:
        return dtypes(*choices[0])
    position = [choices.index(_choice(array.dtypes)) for array in annotated]
    return dtype_pairs(*([row[at] for at in position] for row in product(*choices)))


def _choice(allowed: tuple[str, ...]) -> tuple[str, ...]:
    for group in _PREFERRED:
        names = tuple(name for name in group if name in allowed)
        if names:
            return names
    return allowed


def _check_dtypes(where: str, dtype: Any, annotated: Sequence[_Array]) -> None:
    """Reject dtypes that an annotation does not allow; the dtypes of a strategy are not known."""
    several = isinstance(dtype, Sequence) and not isinstance(dtype, str)
    for array, entry in zip(
        annotated, dtype if several else [dtype] * len(annotated), strict=False
    ):
        if isinstance(entry, SearchStrategy):
            continue
        name = np.dtype(as_dtype(entry)).name
        if name not in array.dtypes:
            raise SpecError(
                f"from_signature({where}): the annotation of the parameter {array.name!r} does not "
                f"allow dtype={name}; it allows {', '.join(array.dtypes)}"
            )
