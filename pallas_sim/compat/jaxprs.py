"""Private names of JAX: what is read off jaxprs, their equations, variables and primitives.

In this order: equations and the jaxprs inside them; the abstract values of a kernel's variables
(references, semaphores, barriers); a tracer that has a value; what a primitive is composed of;
typed random keys.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.extend.core`` documents what equations hold,
``jax.experimental.pallas`` exports the classes of abstract values and dtypes, a subclass of
``jax.core.Tracer`` need not set private fields, and JAX gives access to the functions that it makes
lowerings of. Probe: ``tests/pallas_sim/compat/test_jaxprs.py`` and
``tests/pallas_sim/compat/test_avals.py``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from pallas_sim.compat.places import transforms_in
from pallas_sim.transforms import Aliased

#: Primitives that run a Pallas kernel: ``pl.pallas_call``, and what ``pl.kernel`` and
#: ``plgpu.kernel`` become. JAX 0.11.2 has ``core_map``, and 0.12.0.1 ``mpmd_map``.
KERNEL_PRIMITIVES = frozenset({"pallas_call", "core_map", "mpmd_map"})

#: Primitives that run a kernel of another language, which JAX passes on as it is: jax-triton 0.4.1.
FOREIGN_PRIMITIVES = frozenset({"triton_kernel_call"})


#: Primitives that call another program with their own operands.
CALLS = frozenset(
    {
        *("jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "checkpoint", "remat2"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
        *("custom_vmap_call", "composite", "custom_partitioning", "xla_metadata_call"),
    }
)

#: Types of most parameters of equations, which have no jaxpr inside.
_PLAIN = frozenset({type(None), bool, int, float, str})


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """Yield the open jaxprs inside the parameters of an equation.

    ``jax.core`` exports no such walk.
    """
    stack = [value for value in eqn.params.values() if type(value) not in _PLAIN]
    while stack:
        value = stack.pop()
        if hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "jaxpr") and hasattr(value.jaxpr, "eqns"):
            yield value.jaxpr
        elif isinstance(value, (tuple, list)):
            stack.extend(cast("Sequence[Any]", value))


def called(params: Mapping[str, Any]) -> Any:
    """Return the jaxpr that a call with these parameters runs."""
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
    return next(params[name] for name in names if name in params)


def called_by(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Return the open jaxpr that an equation calls once with its own operands, and its constants.

    None for every other equation, loops and branches included.
    """
    return open_jaxpr(called(eqn.params)) if eqn.primitive.name in CALLS else None


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return a jaxpr without its constants, and these.

    JAX 0.11.2 has closed jaxprs, and open ones without values; in JAX 0.12.0.1 a jaxpr has its
    constants itself.
    """
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, tuple(getattr(jaxpr, "consts", ()))


#: An equation with the jaxprs inside of it.
_Nested = tuple[Any, tuple[Any, ...]]

#: Kept as long as the jaxpr: several walks of a kernel follow each other.
_NESTED: weakref.WeakKeyDictionary[Any, tuple[_Nested, ...]] = weakref.WeakKeyDictionary()


def _nested(jaxpr: Any) -> tuple[_Nested, ...]:
    inner = open_jaxpr(jaxpr)[0]
    nested = _NESTED.get(inner)
    if nested is None:
        nested = _NESTED[inner] = tuple((eqn, tuple(sub_jaxprs(eqn))) for eqn in inner.eqns)
    return nested


def equations(*jaxprs: Any, into: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Yield the equations of jaxprs, those within others after these.

    Args:
      jaxprs: open or closed.
      into: whether to go into the jaxprs of an equation; None goes into all.
    """
    for jaxpr in jaxprs:
        for eqn, inner in _nested(jaxpr):
            yield eqn
            if inner and (into is None or into(eqn)):
                yield from equations(*inner, into=into)


def equations_inside(eqn: Any) -> Iterator[Any]:
    """Yield the equations of the jaxprs inside an equation, also nested ones."""
    return equations(*sub_jaxprs(eqn))


def most_at_a_time(
    jaxpr: Any, taken_by: Callable[[Any], Sequence[tuple[str, int]]]
) -> list[tuple[str, int]]:
    """Return what equations take at a time, where the sum of that is largest: names and amounts.

    Args:
      jaxpr: whose equations follow each other. What one takes it has while those inside run.
      taken_by: gives what an equation takes: names and amounts.
    """
    best: list[tuple[str, int]] = []
    for eqn, jaxprs in _nested(jaxpr):
        inside = max((most_at_a_time(inner, taken_by) for inner in jaxprs), key=_sum, default=[])
        best = max(best, [*taken_by(eqn), *inside], key=_sum)
    return best


def _sum(taken: Sequence[tuple[str, int]]) -> int:
    return sum(amount for _, amount in taken)


def without_dead_code(jaxpr: Any) -> Any:
    """Return a jaxpr without the equations that neither a result nor an effect depends on.

    JAX and XLA remove them, too: a gradient may need no output of a forward kernel. Its inputs and
    constants are those of the jaxpr.
    """
    eliminate: Any = importlib.import_module("jax.interpreters.partial_eval").dce_jaxpr
    inner, consts = open_jaxpr(jaxpr)
    with _kernels_may_be_dead():
        live = eliminate(inner, True, instantiate=True)[0]
    if hasattr(live, "consts"):
        return live
    return importlib.import_module("jax.extend.core").ClosedJaxpr(live, consts)


@contextmanager
def _kernels_may_be_dead() -> Generator[None]:
    """Let JAX 0.11 eliminate a ``pallas_call`` that nothing depends on, as JAX 0.12 and XLA do.

    There its rule keeps all of them. What was eliminated is cached, so the caches end with this.
    """
    import jax

    if jax.__version_info__ >= (0, 12):
        yield
        return
    partial_eval: Any = importlib.import_module("jax._src.interpreters.partial_eval")
    primitive: Any = importlib.import_module("jax._src.pallas.pallas_call").pallas_call_p
    pjit: Any = importlib.import_module("jax._src.pjit")
    caches = (
        partial_eval._dce_jaxpr,
        partial_eval._cached_closed_call_dce,
        pjit._dce_jaxpr_pjit,
    )
    rules: Any = importlib.import_module("jax.interpreters.partial_eval").dce_rules
    rule = rules[primitive]

    def eliminated(used: Any, eqn: Any) -> Any:
        if getattr(eqn.params["compiler_params"], "has_side_effects", False):
            return rule(used, eqn)
        return partial_eval._default_dce_rule(used, eqn)

    try:
        for cache in caches:
            cache.cache_clear()
        rules[primitive] = eliminated
        yield
    finally:
        rules[primitive] = rule
        for cache in caches:
            cache.cache_clear()


def limit_traces(most: int) -> bool:
    """Drop JAX's traces of functions, if it keeps more than ``most``; return whether it did.

    JAX keeps a trace of each function for each shape, such as ``jnp.tanh``, without a limit. What
    was compiled, and the last traces of jitted functions, is in caches that have one, and stays.
    """
    partial_eval: Any = importlib.import_module("jax._src.interpreters.partial_eval")
    cache: Any = partial_eval.trace_to_jaxpr
    if not hasattr(cache, "cache_info") or cache.cache_info().currsize <= most:
        return False
    cache.cache_clear()
    return True


def is_literal(atom: Any) -> bool:
    """Return whether an operand is a constant in the jaxpr."""
    return hasattr(atom, "val")


def is_dropped(var: Any) -> bool:
    """Return whether the result of an equation has no use that the trace knows."""
    return type(var).__name__ == "DropVar"


def written_inputs(jaxpr: Any) -> frozenset[int]:
    """Return positions of the refs of a kernel's jaxpr that its body writes, by its effects.

    An effect names its ref by variable (or, where none is in scope, by position).
    """
    return _inputs_with(jaxpr, "WriteEffect", "AccumEffect")


def read_inputs(jaxpr: Any) -> frozenset[int]:
    """Return positions of the refs of a kernel's jaxpr that its body reads, likewise."""
    return _inputs_with(jaxpr, "ReadEffect")


def _inputs_with(jaxpr: Any, *kinds: str) -> frozenset[int]:
    inputs = [effect.input for effect in jaxpr.effects if type(effect).__name__ in kinds]
    return frozenset(i for i, var in enumerate(jaxpr.invars) if var in inputs or i in inputs)


def kernel_name(eqn: Any) -> str:
    """Return the name of the Pallas kernel that an equation runs."""
    if eqn.params.get("name"):
        return str(eqn.params["name"])
    for body in sub_jaxprs(eqn):
        info = getattr(body, "debug_info", None)
        if info is not None and getattr(info, "func_name", None):
            return str(info.func_name)
    return eqn.primitive.name


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """Return the names of the parameters of the function that an open jaxpr is of, each or ""."""
    count = len(jaxpr.invars)
    names = list(getattr(jaxpr.debug_info, "arg_names", None) or ())
    return tuple(name or "" for name in names) if len(names) == count else ("",) * count


def scan_parts(params: Any, count: int) -> tuple[int, int, int]:
    """Return how many of a scan's operands are constants, carried, and scanned over.

    JAX 0.12 keeps them in trees of flags.
    """
    if "num_consts" in params:
        consts, carry = params["num_consts"], params["num_carry"]
        return consts, carry, count - consts - carry
    util = importlib.import_module("jax.tree_util")
    parts = [list(part) for part in params["ft_in"].update(range(count)).unpack()]
    consts, carry, scanned = (len(util.tree_leaves(part)) for part in parts)
    return consts, carry, scanned


def home_of_primitive(primitive: Any) -> str:
    """Return the module that defines a primitive; "" if that is not known.

    Names are not unique: SparseCore has a ``gather`` of its own. A primitive says nothing of its
    module, but its abstract evaluation does.
    """
    modules = _AMBIGUOUS.get(primitive.name)
    if modules is None:
        return ""
    function = primitive.abstract_eval
    wrapped = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    homes = (getattr(candidate, "__module__", "") for candidate in (function, *wrapped))
    return next((home for home in homes if home in modules), "")


#: Names of several primitives, with the modules that define the less common ones.
_AMBIGUOUS = {
    **dict.fromkeys(
        ("gather", "scatter", "load", "swap", "scan_count", "pack", "unpack", "barrier"),
        ("jax._src.pallas.mosaic.sc_primitives",),
    ),
    "load": ("jax._src.pallas.mosaic.sc_primitives", "jax._src.pallas.mosaic_gpu.primitives"),
    "store": ("jax._src.pallas.mosaic_gpu.primitives",),
}


def discharged(jaxpr: Any) -> Any:
    """Return a closed jaxpr of values, which are results too, in place of one of references."""
    discharge: Any = importlib.import_module("jax._src.state.discharge")
    return discharge.discharge_state(jaxpr, strip_memory_space=True)


# What the variables of a kernel's body stand for.


def is_reference(aval: Any) -> bool:
    """Return whether a variable of a kernel's body stands for memory, and not for a value."""
    return hasattr(aval, "inner_aval")


def semaphore_kind(dtype: Any) -> str | None:
    """Return ``"dma"``, ``"barrier"`` or ``"regular"`` for the dtype of a semaphore, or None."""
    name = str(getattr(dtype, "name", dtype))
    kinds = {"dma_sem": "dma", "barrier_semaphore": "barrier", "semaphore": "regular"}
    return kinds.get(name)


def owner_of_space(space: Any) -> str | None:
    """Return the kind of core that a memory space of several bodies belongs to, or None."""
    core = getattr(getattr(space, "mesh", space), "core_type", None)
    return None if core is None else str(core.name).lower()


def space_of(aval: Any) -> str:
    """Return ``"gmem"``, ``"smem"``, ``"tmem"`` or ``"regs"``; "" if it is no reference."""
    return name_of_space(getattr(aval, "memory_space", None))


def name_of_space(space: Any) -> str:
    """Return the name of a memory space, such as ``"vmem"``; "" of none."""
    return str("" if space is None else space).lower().rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class BarrierFacts:
    """What a barrier is.

    Attributes:
      arrivals: of a phase, by each block that takes part.
      axes: of the cluster along which blocks arrive, each a tuple of names; None if only the
        barrier's own block does.
      tensor_core: whether it orders operations of the tensor core.
      leader: whether only the barrier of the first block counts.
    """

    arrivals: int
    axes: tuple[tuple[Any, ...], ...] | None = None
    tensor_core: bool = False
    leader: bool = False


def barrier_facts(dtype: Any) -> BarrierFacts | None:
    """Return the facts of a barrier of this dtype, or None if it is none."""
    name = type(dtype).__name__
    if name == "BarrierType":
        return BarrierFacts(dtype.num_arrivals, None, bool(dtype.orders_tensor_core))
    if name == "ClusterBarrierType":
        axes = tuple(axis if isinstance(axis, tuple) else (axis,) for axis in dtype.collective_axes)
        leader = bool(getattr(dtype, "leader_tracked", False))
        return BarrierFacts(dtype.num_arrivals, axes, bool(dtype.orders_tensor_core), leader)
    return None


def is_accumulator(aval: Any) -> bool:
    """Return whether a reference is one to the registers that ``wgmma`` adds to."""
    return type(aval).__name__ == "WGMMAAbstractAccumulatorRef"


def is_union(aval: Any) -> bool:
    """Return whether a reference is a union of several."""
    return type(aval).__name__ == "AbstractRefUnion"


def union_parts(aval: Any) -> tuple[Aliased, ...]:
    """Return the references of a union, or () for any other reference.

    Args:
      aval: abstract value of a reference.
    """
    if getattr(aval, "refs", None) is None:
        return ()
    core = importlib.import_module("jax._src.pallas.mosaic_gpu.core")
    util = importlib.import_module("jax.tree_util")
    parts: list[Aliased] = []
    union = core.flatten_ref_union(aval)
    for ref in util.tree_leaves(union, is_leaf=lambda value: hasattr(value, "transforms")):
        first = transforms_in(ref.transforms)[0]
        assert isinstance(first, Aliased)
        parts.append(first)
    return tuple(parts)


# A tracer that has a value; its probe is ``test_eager.py``.


@functools.cache
def tracer_type() -> Any:
    """Return the class of tracers ``(trace, aval, value)``, whose value functions may ask for."""
    import numpy as np

    core: Any = importlib.import_module("jax.core")

    class Tracer(core.Tracer):
        """A value that operations are evaluated on."""

        __slots__ = ("value",)

        def __init__(self, trace: Any, aval: Any, value: Any) -> None:
            super().__init__(trace, aval)
            self._line_info = None
            self.value = value

        def _origin_msg(self) -> str:
            return ""

        def to_concrete_value(self) -> Any:
            """Return the value itself, if it is an array."""
            value = self.value
            return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None

        def __array__(self, *args: Any, **options: Any) -> Any:
            return np.asarray(self.value, *args, **options)

        def is_deleted(self) -> bool:
            """False: values are never deleted."""
            return False

        def __float__(self) -> float:
            return float(self.value)

        def __complex__(self) -> complex:
            return complex(self.value)

        def tolist(self) -> Any:
            """As of an array."""
            return np.asarray(self.value).tolist()

        def item(self, *args: int) -> Any:
            """As of an array."""
            return np.asarray(self.value).item(*args)

    return Tracer


# What a primitive computes, as a jaxpr of other primitives; its probe is ``test_compositions.py``.


def expanded(params: Any, avals: Sequence[Any]) -> Any:
    """Return what a high-level primitive computes, as a jaxpr of lower ones."""
    import jax

    hijax: Any = importlib.import_module("jax._src.hijax")
    lower = hijax.call_hi_primitive_p.to_lojax
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return jax.make_jaxpr(lambda *args: lower(*args, **params))(*shapes)


def composition(primitive: Any, avals: Sequence[Any], params: Any) -> Any:
    """Return what JAX lowers a primitive to, as a jaxpr of other primitives; None if it is no such.

    ``mlir.lower_fun`` makes a lowering of a Python function, which it keeps in its closure. That
    for a TPU goes first, then the one for every platform.

    Args:
      primitive: of JAX or anybody else.
      avals: of its operands.
      params: of the equation.
    """
    import jax

    function = operation_on_keys(primitive.name, avals, params) or _composed(primitive)
    if primitive.name == "einshape_lo":
        function = _einshape
    if function is None:
        return None
    return jax.make_jaxpr(lambda *args: function(*args, **params))(*avals)


def _composed(primitive: Any) -> Any:
    mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
    for table in (mlir._platform_specific_lowerings.get("tpu", {}), mlir._lowerings):
        entry = table.get(primitive)
        if entry is not None:
            rule = getattr(entry, "rule", entry)
            if getattr(rule, "__name__", "") != "f_lowered":
                return None
            return inspect.getclosurevars(rule).nonlocals.get("fun")
    return None


def _einshape(x: Any, equation: str, sizes: Sequence[tuple[str, int]], **_: Any) -> Any:
    home: Any = importlib.import_module("jax._src.pallas.einshape")
    return home._einshape(equation, x, **dict(sizes))


# What typed random keys consist of, and what is done to them; its probe is ``test_keys.py``.


def is_key(dtype: Any) -> bool:
    """Return whether a dtype is that of typed keys; a dtype of numpy is none."""
    return hasattr(dtype, "_impl")


def key_shape(dtype: Any) -> tuple[int, ...]:
    """Return the shape of the words, of uint32, that a key of this dtype consists of."""
    return tuple(dtype._impl.key_shape)


def key_implementation(dtype: Any) -> str:
    """Return the name of the generator of keys of this dtype, as ``jax.random.key`` takes it."""
    return str(dtype._impl.name)


def operation_on_keys(name: str, avals: Sequence[Any], params: Any) -> Any:
    """Return what a primitive of typed keys does, by the functions of their implementation."""
    if name not in ("random_seed", "random_split", "random_fold_in", "random_bits"):
        return None
    prng: Any = importlib.import_module("jax._src.random.prng")
    impl = params["impl"] if name == "random_seed" else avals[0].dtype._impl
    shape = avals[0].shape

    def wrapped(data: Any) -> Any:
        return prng.random_wrap(data, impl=impl)

    return {
        "random_seed": lambda seeds, impl: wrapped(prng.random_seed_impl_base(seeds, impl=impl)),
        "random_split": lambda keys, **how: wrapped(
            prng.random_split_impl_base(impl, prng.random_unwrap(keys), len(shape), **how)
        ),
        "random_fold_in": lambda keys, data: wrapped(
            prng.random_fold_in_impl_base(impl, prng.random_unwrap(keys), data, shape)
        ),
        "random_bits": lambda keys, **how: prng.random_bits_impl_base(
            impl, prng.random_unwrap(keys), len(shape), **how
        ),
    }[name]
