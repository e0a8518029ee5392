"""Private names of JAX: the parts of traced programs, by name, for programs that travel as data.

``pytest_pallas.candidates.codec`` writes a program as data in one process and reads it in another.
What a program may consist of is listed here: classes of parameters, primitives, trees of arguments.
A reader makes nothing else.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.export`` exports functions with kernels that
are not lowered. Probe: ``tests/unit/candidates/test_codec.py``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import operator
import os
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pallas_sim.traces import called_by, expanded, open_jaxpr

#: Classes of parameters, by module; each holds only data. Versions of JAX lack some of them.
_CLASSES = {
    "jax": "ShapeDtypeStruct",
    "jax._src.api": "Inline",
    "jax._src.checkify": "Error FailedCheckError",
    "jax._src.core": "MemorySpace InternalMutableArrayEffect NamedAxisEffect",
    "jax._src.debugging": "DebugEffect OrderedDebugEffect",
    "jax._src.effects": "ErrorEffect",
    "jax._src.flattree": "FTDict FTFiltered FTPyTree FTSingleton FTTuple",
    "jax._src.frozen_dict": "FrozenDict",
    "jax._src.indexing": "Slice",
    "jax._src.lax.convolution": "ConvDimensionNumbers",
    "jax._src.lax.fft": "FftType",
    "jax._src.lax.lax": "AccuracyMode DotAlgorithm DotAlgorithmPreset NoDCEEffect Precision "
    "RaggedDotDimensionNumbers RandomAlgorithm RoundingMethod Tolerance",
    "jax._src.lax.linalg": "EigImplementation EighImplementation SvdAlgorithm",
    "jax._src.lax.parallel": "SingleSideCollectiveEffect",
    "jax._src.lax.slicing": "GatherDimensionNumbers GatherScatterMode ScatterDimensionNumbers",
    "jax._src.lax.special": "IgammaMode",
    "jax._src.layout": "AutoLayoutSingleton",
    "jax._src.linear_util": "DebugInfo",
    "jax._src.named_sharding": "UnspecifiedValue",
    "jax._src.sharding_impls": "UnspecifiedValue",
    "jax._src.pallas.core": "BarrierSemaphore BlockMapping Blocked BoundedSlice Buffered "
    "CommsEffect CoreMemorySpace CostEstimate DynamicGridDim Element GridMapping Indirect "
    "MemorySpace RevisitMode Semaphore Squeezed",
    "jax._src.pallas.mosaic.core": "AccMemorySpace AccessAssumption AccessAssumptionTransform "
    "CompilerParams CoreType DMASemaphore GridDimensionSemantics MemorySpace SideEffectType "
    "TensorCoreMesh",
    "jax._src.pallas.mosaic.primitives": "MXUEffect PRNGEffect TraceEffect",
    "jax._src.pallas.mosaic.sc_core": "Indices ScalarSubcoreMesh SharedMemRefSliceTransform "
    "VectorSubcoreMesh",
    "jax._src.pallas.mosaic.sc_primitives": "MemoryEffect PackFormat",
    "jax._src.pallas.mosaic_gpu.core": "AbstractRefUnion AbstractTMEMRef BarrierType "
    "ClusterBarrierType ClusterRefTransform CollapseLeadingBatchDimensionsTransform "
    "CompilerParams ExpandLeadingBatchDimensionsTransform ExtractAliasedRef IdentityTransform "
    "Im2ColTransform Layout MemoryEffect MemorySpace Mesh MulticastRef ParameterizedLayout "
    "PdlEffect PeerMemRef ReducedLayout SwizzleTransform TMEMLayout TilingTransform TraceScope "
    "UnswizzleRef UntilingTransform WGMMAAbstractAccumulatorRef WarpMesh _WGMMAPipelineEffect",
    "jax._src.pallas.mosaic_gpu.primitives": "AtomicOpType ShapeDtypeStruct",
    "jax._src.pallas.primitives": "DelayEffect DeviceIdType SemaphoreEffect",
    "jax._src.pallas.triton.core": "CompilerParams",
    "jax._src.pallas.triton.primitives": "AtomicOpType",
    "jax._src.state.indexing": "NDIndexer",
    "jax._src.state.types": "AbstractRef AccumEffect BitcastTransform MemorySpaceCastTransform "
    "ReadEffect RefBitcaster RefReshaper RefTransposer ReshapeTransform SelectTransform "
    "TransformedRef TransposeTransform WriteEffect",
    "jax._src.util": "Either",
    "jax.experimental.mosaic.gpu.core": "LoweringSemantics",
    "jax.experimental.mosaic.gpu.fragmented_array": "Replicated Rounding TiledLayout Tiling "
    "Unreduced WGSplatFragLayout WGStridedFragLayout",
    "jax.experimental.mosaic.gpu.launch_context": "OOBFillMode Rounding _Partitioned _Replicated",
    "jax.experimental.mosaic.gpu.tcgen05": "TMEMLayout",
}

#: Modules whose primitives a program may have. What calls Python, or another library, is in others.
_PRIMITIVES = (
    *("jax._src.ad_util", "jax._src.checkify", "jax._src.core", "jax._src.dispatch"),
    *("jax._src.ad_checkpoint", "jax._src.custom_batching", "jax._src.custom_derivatives"),
    *(f"jax._src.lax.{name}" for name in ("ann", "convolution", "fft", "lax", "linalg")),
    *(f"jax._src.lax.{name}" for name in ("other", "parallel", "scaled_dot", "slicing", "special")),
    *(f"jax._src.lax.{name}" for name in ("windowed_reductions", "control_flow.conditionals")),
    *("jax._src.lax.control_flow", "jax._src.lax.control_flow.loops"),
    *("jax._src.lax.control_flow.solves", "jax._src.lax.control_flow.for_loop"),
    *("jax._src.hijax", "jax._src.pjit", "jax._src.shard_map"),
    *("jax._src.random", "jax._src.random.core", "jax._src.random.prng"),
    *(f"jax._src.random.{name}" for name in ("threefry2x32", "threefry4x32")),
    *(f"jax._src.random.{name}" for name in ("philox2x32", "philox4x32")),
    *("jax._src.prng", "jax._src.state.discharge", "jax._src.state.primitives"),
    *("jax._src.pallas.einshape", "jax._src.pallas.mpmd", "jax._src.pallas.pallas_call"),
    *("jax._src.pallas.core", "jax._src.pallas.primitives", "jax._src.pallas.triton.primitives"),
    *("jax._src.pallas.mosaic.primitives", "jax._src.pallas.mosaic.sc_primitives"),
    *("jax._src.pallas.mosaic_gpu.core", "jax._src.pallas.mosaic_gpu.primitives"),
)

#: Files of JAX that trace a kernel's body: the frames outside of them are not the kernel's.
_CALLERS = ("/pallas/pallas_call.py", "/pallas/mpmd.py", "/pallas/core.py")

#: Outermost frames beyond this many are left out.
_MOST_FRAMES = 64


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


@functools.cache
def classes() -> Mapping[str, type]:
    """Return the classes of parameters by name."""
    table: dict[str, type] = {}
    for module, names in _CLASSES.items():
        home = _import(module)
        for name in names.split():
            cls = getattr(home, name, None)
            if isinstance(cls, type):
                table[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return table


def name_of_class(cls: type) -> str | None:
    """Return the name of a class of parameters; None if it is none."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    return name if classes().get(name) is cls else None


#: Fields that hold functions or facts of whoever traced, and that no rule reads.
_DROPPED = {
    "GridMapping": ("get_grid_indices", "local_grid_env", "index_map_tree", "debug"),
    "DebugInfo": ("result_paths",),
}


#: Fields of classes that declare none.
_FIELDS = {
    "AbstractRefUnion": ("refs",),
    "FTDict": ("keys", "_vals"),
    "FTFiltered": ("val", "_len"),
    "FTPyTree": ("xs", "_tree"),
    "FTSingleton": ("val",),
    "FTTuple": ("elts",),
    "FrozenDict": ("_d",),
    "Tolerance": ("atol", "rtol", "ulps"),
}


@functools.cache
def fields_of(cls: type) -> tuple[str, ...]:
    """Return the fields of a class of parameters, of which an object is made again."""
    names = list(_FIELDS.get(cls.__name__, ()))
    if hasattr(cls, "_fields"):
        names = list(cls._fields)
    elif dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    dropped = ("__weakref__", "__dict__", "_hash", *_DROPPED.get(cls.__name__, ()))
    return tuple(dict.fromkeys(name for name in names if name not in dropped))


def read_fields(value: Any) -> dict[str, Any]:
    """Return the fields of an object of a class of parameters."""
    names = fields_of(type(value))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def make_object(cls: type, fields: Mapping[str, Any]) -> Any:
    """Return an object with these fields, without calling anything of its class.

    Raises:
      ValueError: the class has no such field.
    """
    known = fields_of(cls)
    if not set(fields) <= set(known):
        raise ValueError(f"{cls.__name__} has no field {sorted(set(fields) - set(known))[0]!r}")
    if hasattr(cls, "_fields"):
        values = [fields.get(name) for name in cls._fields]
        return tuple.__new__(cls, values)
    if issubclass(cls, enum.Enum):
        raise ValueError(f"{cls.__name__} is an enumeration")
    if not fields:
        return _only(cls)
    value = object.__new__(cls)
    for name, part in fields.items():
        object.__setattr__(value, name, part)
    for name in _DROPPED.get(cls.__name__, ()):
        object.__setattr__(value, name, _DEFAULTS.get(name))
    return value


#: What dropped fields are made of.
_DEFAULTS: dict[str, Any] = {"debug": False, "get_grid_indices": None, "local_grid_env": None}


def _only(cls: type) -> Any:
    """Return JAX's own object of a class without fields; a new one if there is none."""
    module = sys.modules[cls.__module__]
    for value in vars(module).values():
        if type(value) is cls:
            return value
    return cls()


@functools.cache
def _primitives() -> tuple[dict[str, Any], dict[int, str]]:
    """Return the primitives of the listed modules by name, and their names by identity."""
    primitive: Any = importlib.import_module("jax.extend.core").Primitive
    for module in ("jax.experimental.pallas.tpu", "jax.experimental.pallas.mosaic_gpu"):
        _import(module)
    named: dict[str, Any] = {}
    names: dict[int, str] = {}
    for module in _PRIMITIVES:
        for value in vars(_import(module) or types.ModuleType("none")).values():
            if isinstance(value, primitive) and id(value) not in names:
                name = value.name if value.name not in named else f"{value.name} of {module}"
                named[name], names[id(value)] = value, name
    return named, names


def primitive_of(name: str) -> Any:
    """Return the primitive of a name that ``name_of_primitive`` gave; None if there is none."""
    return _primitives()[0].get(name)


def name_of_primitive(primitive: Any) -> str | None:
    """Return a unique name of a primitive; None if a program must not have it."""
    return _primitives()[1].get(id(primitive))


def reduced_eqn(eqn: Any) -> tuple[Any, dict[str, Any]]:
    """Return the primitive and parameters that stand for an equation in a program as data.

    Calls with rules of their own for derivatives or batches, which are functions, become plain
    calls. So do operations that JAX lowers when it traces again.
    """
    name, params, inner = eqn.primitive.name, dict(eqn.params), called_by(eqn)
    if name == "call_hi_primitive":
        inner = open_jaxpr(expanded(params, [atom.aval for atom in eqn.invars]))
    if inner is None:
        if name == "pallas_call":
            params |= {"mesh": None, "debug": False, "metadata": None}
            params["interpret"] = bool(params.get("interpret"))
        if "metadata" in params:
            params["metadata"] = None
        return eqn.primitive, params
    closed = _closed(*inner)
    title = str(params.get("name") or name)
    return _pjit(), _call_params(closed, title, params.get("inline"))


def _closed(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    core: Any = importlib.import_module("jax.extend.core")
    return jaxpr if hasattr(jaxpr, "consts") else core.ClosedJaxpr(jaxpr, consts)


def _pjit() -> Any:
    module: Any = importlib.import_module("jax._src.pjit")
    return module.jit_p


@functools.cache
def _call_template() -> dict[str, Any]:
    """Return the parameters of a call of ``jax.jit`` without arguments and results."""
    import jax

    eqn = jax.make_jaxpr(jax.jit(lambda: 0.0))().eqns[0]
    return dict(eqn.params)


def _call_params(closed: Any, name: str, inline: Any = None) -> dict[str, Any]:
    """Return the parameters of a call of ``jax.jit`` of a program."""
    sharding: Any = importlib.import_module("jax._src.sharding_impls").UNSPECIFIED
    params = dict(_call_template())
    inputs, outputs = len(closed.in_avals), len(closed.out_avals)
    params |= {"jaxpr": closed, "name": name, "donated_invars": (False,) * inputs}
    params |= {"in_shardings": (sharding,) * inputs, "out_shardings": (sharding,) * outputs}
    params |= {"in_layouts": (None,) * inputs, "out_layouts": (None,) * outputs}
    return params if inline is None else params | {"inline": inline}


# Abstract values, dtypes and meshes.


def is_shaped(aval: Any) -> bool:
    """Return whether an abstract value is that of an array."""
    return type(aval).__name__ == "ShapedArray"


def shaped(shape: tuple[Any, ...], dtype: Any, weak: bool, space: Any) -> Any:
    """Return the abstract value of an array."""
    from jax.core import ShapedArray

    options: dict[str, Any] = {} if space is None else {"memory_space": space}
    return ShapedArray(shape, dtype, weak, **options)


def key_dtype(name: str) -> Any:
    """Return the dtype of typed keys of a generator that JAX defines.

    Raises:
      KeyError: there is none of that name.
    """
    prng: Any = importlib.import_module("jax._src.random.prng")
    return prng.KeyTy(_generators(prng)[name])


def _generators(prng: Any) -> Mapping[str, Any]:
    return {impl.name: impl for impl in prng.prngs.values()}


def generator_name(value: Any) -> str | None:
    """Return the name of a generator of random numbers (``impl``); None if it is none."""
    return str(value.name) if type(value).__name__ == "PRNGImpl" else None


def generator(name: str) -> Any:
    """Return the generator of a name."""
    return _generators(importlib.import_module("jax._src.random.prng"))[name]


def generator_of_keys(dtype: Any) -> str | None:
    """Return the name of the generator of a dtype of typed keys; None of any other value."""
    return generator_name(dtype._impl) if type(dtype).__name__ == "KeyTy" else None


def is_tree(value: Any) -> bool:
    """Return whether a parameter is the structure of a pytree."""
    return type(value).__name__ == "PyTreeDef"


def is_traceback(value: Any) -> bool:
    """Return whether a parameter is a traceback of JAX."""
    return type(value).__name__ == "Traceback"


def is_scalar_type(value: Any) -> bool:
    """Return whether a parameter is a scalar type of ``jax.numpy``, such as ``jnp.float32``."""
    return type(value).__name__ == "_ScalarMeta"


def key_words(value: Any) -> Any:
    """Return the numbers of an array of typed keys."""
    import jax

    return jax.random.key_data(value)


def keys_of(numbers: Any, name: str) -> Any:
    """Return the array of typed keys of these numbers."""
    import jax

    return jax.random.wrap_key_data(numbers, impl=name)


def typed_scalar(value: Any) -> Any:
    """Return the dtype of a Python scalar that carries one; None of others."""
    return value.dtype if type(value).__module__ == "jax._src.literals" else None


def make_scalar(kind: str, value: Any, dtype: Any) -> Any:
    """Return a Python scalar that carries a dtype; ``kind`` is the name of its class."""
    literals: Any = importlib.import_module("jax._src.literals")
    return getattr(literals, kind)(value, dtype)


def is_mesh(value: Any) -> bool:
    """Return whether a parameter is a mesh of devices."""
    return type(value).__name__ in ("Mesh", "AbstractMesh") and hasattr(value, "axis_types")


def mesh_facts(mesh: Any) -> tuple[list[Any], list[int], list[str]]:
    """Return names, sizes and types of the axes of a mesh."""
    kinds = [kind.name for kind in mesh.axis_types or ()]
    return list(mesh.axis_names), [int(n) for n in mesh.shape.values()], kinds


def make_mesh(names: Sequence[Any], sizes: Sequence[int], kinds: Sequence[str]) -> Any:
    """Return a mesh without devices; the empty one of JAX without axes."""
    from jax.sharding import AbstractMesh, AxisType

    if not names:
        return importlib.import_module("jax._src.mesh").empty_concrete_mesh
    axis_types = tuple(AxisType[kind] for kind in kinds)
    return AbstractMesh(tuple(sizes), tuple(names), axis_types=axis_types or None)


def partitions(value: Any) -> tuple[Any, ...] | None:
    """Return the axes of a ``PartitionSpec``; None of anything else."""
    import jax

    return tuple(value) if isinstance(value, jax.sharding.PartitionSpec) else None


def tree_node(tree: Any) -> tuple[Any, Any] | None:
    """Return type and other data of the root of a pytree; None of a leaf."""
    return tree.node_data()


def make_tree(kind: Any, data: Any, children: Sequence[Any]) -> Any:
    """Return the pytree of a root and its children; ``kind`` is None for a leaf."""
    import jax

    leaf: Any = jax.tree.structure(0)
    if kind is None:
        return leaf
    make, listed = type(leaf).from_node_data_and_children, list(children)
    try:
        return make(jax.tree_util.default_registry, (kind, data), listed)
    except RuntimeError:  # a class that only tracing takes apart
        util: Any = importlib.import_module("jax._src.tree_util")
        return make(util.tracing_registry, (kind, data), listed)


# Programs.


def make_eqn(
    ins: Sequence[Any],
    outs: Sequence[Any],
    primitive: Any,
    params: dict[str, Any],
    effects: Sequence[Any],
    traceback: Any,
) -> Any:
    """Return an equation."""
    from jax.extend.core import JaxprEqn
    from jax.extend.source_info_util import NameStack, SourceInfo

    source: Any = SourceInfo(traceback, NameStack())
    context = importlib.import_module("jax._src.core").JaxprEqnContext()
    return JaxprEqn(list(ins), list(outs), primitive, params, set(effects), source, context)


def make_jaxpr(
    constvars: Sequence[Any],
    invars: Sequence[Any],
    outvars: Sequence[Any],
    eqns: Sequence[Any],
    effects: Sequence[Any],
    debug_info: tuple[str, str, tuple[str, ...] | None],
    consts: Sequence[Any] | None,
) -> Any:
    """Return a program; a closed one with ``consts``.

    Its ``debug_info`` is what it was traced for, where its function is, and names of arguments.
    """
    core: Any = importlib.import_module("jax.extend.core")
    traced_for, function, names = debug_info
    info: Any = importlib.import_module("jax._src.linear_util").DebugInfo
    debug = info(traced_for, function, names, None)
    open_one = core.Jaxpr(
        list(constvars), list(invars), list(outvars), list(eqns), set(effects), debug
    )
    if consts is None:
        return open_one
    return core.ClosedJaxpr(open_one, list(consts))


def make_effect(cls: type, position: Any) -> Any:
    """Return the effect of a variable.

    Raises:
      ValueError: it is no class of such effects.
    """
    effects: Any = importlib.import_module("jax._src.effects")
    if not issubclass(cls, effects.JaxprInputEffect):
        raise ValueError(f"{cls.__name__} is no effect of a variable")
    effect = object.__new__(cls)
    object.__setattr__(effect, "input", position)
    return effect


def make_var(aval: Any, *, dropped: bool = False) -> Any:
    """Return a variable."""
    core: Any = importlib.import_module("jax.extend.core")
    return core.DropVar(aval) if dropped else core.Var(aval)


def make_literal(value: Any, aval: Any) -> Any:
    """Return an operand that is a constant."""
    core: Any = importlib.import_module("jax.extend.core")
    return core.Literal(value, aval)


# Source lines: frames as data, and tracebacks made of them.

#: File, name and qualified name of the function, first line, column, last line, column.
FrameFacts = tuple[str, str, str, int, int, int, int]


def frames_of(traceback: Any) -> Iterator[FrameFacts]:
    """Yield the frames of a traceback, the innermost first, as far as they say something."""
    locate: Any = type(traceback).code_addr2location
    user: Any = importlib.import_module("jax._src.source_info_util").is_user_filename
    inside = False
    codes, instructions = traceback.raw_frames()
    for code, instruction in list(zip(codes, instructions, strict=True))[:_MOST_FRAMES]:
        if inside and code.co_filename.endswith(_CALLERS):
            return
        inside = inside or user(code.co_filename)
        places = [max(int(number), 0) for number in locate(code, instruction)]
        yield (code.co_filename, code.co_name, code.co_qualname, *places)  # type: ignore[misc]


def tracebacks_of(stacks: Sequence[Sequence[FrameFacts]]) -> list[Any]:
    """Return a traceback of JAX for each stack of frames, the innermost first.

    A function that only calls another one is renamed for each frame, and all of them are called.
    """
    get: Any = importlib.import_module("jax._src.source_info_util").Traceback.get_traceback
    home = os.path.dirname(str(importlib.import_module("jax").__file__))
    outer: FrameFacts = (os.path.join(home, "program"), "program", "program", 1, 0, 1, 0)
    calls: list[Any] = []
    for stack in stacks:
        call = get
        for frame in (*stack[:_MOST_FRAMES], outer):
            call = functools.partial(_named(frame), call)
        calls.append(call)
    tracebacks: list[Any] = []
    thread = threading.Thread(target=tracebacks.extend, args=(map(operator.call, calls),))
    thread.start()
    thread.join()
    return tracebacks


def _calling(function: Any) -> Any:
    return function()


@functools.lru_cache(maxsize=8192)
def _named(frame: FrameFacts) -> types.FunctionType:
    """Return a function that calls its argument, and is at another place of the source."""
    file, name, qualified, line, column, end_line, end_column = frame
    code = _calling.__code__
    entry = [
        *_varint(0),
        *_varint(max(end_line - line, 0)),
        *_varint(column + 1),
        *_varint(end_column + 1),
    ]
    table: list[int] = []
    units = len(code.co_code) // 2
    for first in range(0, units, 8):  # an entry is of up to 8 code units, in the long form, 14
        table += [0x80 | 14 << 3 | min(units - first, 8) - 1, *entry]
    return types.FunctionType(
        code.replace(
            co_filename=file,
            co_name=name,
            co_qualname=qualified,
            co_firstlineno=line,
            co_linetable=bytes(table),
        ),
        {},
    )


def _varint(number: int) -> list[int]:
    """Return a number as CPython's tables of positions have it: 6 bits a byte."""
    digits: list[int] = []
    while number >= 64:
        digits.append(64 | number & 63)
        number >>= 6
    return [*digits, number]
