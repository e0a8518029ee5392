"""Private names of JAX: what is read off jaxprs and their equations.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.extend.core`` documents what equations hold.
Probe: ``tests/unit/compat/test_jaxprs.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

#: Primitives that run a Pallas kernel: ``pl.pallas_call``, and what ``pl.kernel`` and
#: ``plgpu.kernel`` become. JAX 0.11.2 has ``core_map``, and 0.12.0.1 ``mpmd_map``.
KERNEL_PRIMITIVES = frozenset({"pallas_call", "core_map", "mpmd_map"})

#: Primitives that run a kernel of another language, which JAX passes on as it is: jax-triton 0.4.1.
FOREIGN_PRIMITIVES = frozenset({"triton_kernel_call"})


def sub_jaxprs(eqn: Any) -> Iterator[Any]:
    """The open jaxprs inside the parameters of an equation.

    ``jax.core`` exports no such walk.
    """
    stack = list(eqn.params.values())
    while stack:
        value = stack.pop()
        if hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "jaxpr") and hasattr(value.jaxpr, "eqns"):
            yield value.jaxpr
        elif isinstance(value, (tuple, list)):
            stack.extend(cast("Sequence[Any]", value))


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr without its constants, and these.

    JAX 0.11.2 has closed jaxprs, and open ones without values; in JAX 0.12.0.1 a jaxpr has its
    constants itself.
    """
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, tuple(getattr(jaxpr, "consts", ()))


def without_dead_code(jaxpr: Any) -> Any:
    """A jaxpr, open and without the equations that neither a result nor an effect depends on.

    JAX and XLA remove them, too: a gradient may need no output of a forward kernel.
    """
    eliminate: Any = importlib.import_module("jax.interpreters.partial_eval").dce_jaxpr
    with _kernels_may_be_dead():
        return eliminate(open_jaxpr(jaxpr)[0], True)[0]


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
    """Whether an operand is a constant in the jaxpr."""
    return hasattr(atom, "val")


def written_inputs(jaxpr: Any) -> frozenset[int]:
    """Positions of the refs of a kernel's jaxpr that its body writes, by its effects.

    An effect names its ref by variable (or, where none is in scope, by position).
    """
    kinds = ("WriteEffect", "AccumEffect")
    found = [each.input for each in jaxpr.effects if type(each).__name__ in kinds]
    return frozenset(i for i, var in enumerate(jaxpr.invars) if var in found or i in found)


def read_inputs(jaxpr: Any) -> frozenset[int]:
    """Positions of the refs of a kernel's jaxpr that its body reads, likewise."""
    found = [each.input for each in jaxpr.effects if type(each).__name__ == "ReadEffect"]
    return frozenset(i for i, var in enumerate(jaxpr.invars) if var in found or i in found)


def kernel_name(eqn: Any) -> str:
    """The name of the Pallas kernel that an equation runs."""
    if eqn.params.get("name"):
        return str(eqn.params["name"])
    for body in sub_jaxprs(eqn):
        info = getattr(body, "debug_info", None)
        if info is not None and getattr(info, "func_name", None):
            return str(info.func_name)
    return eqn.primitive.name


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """The names of the parameters of the function that an open jaxpr was traced from, or ""."""
    count = len(jaxpr.invars)
    names = list(getattr(jaxpr.debug_info, "arg_names", None) or ())
    return tuple(name or "" for name in names) if len(names) == count else ("",) * count


def scan_parts(params: Any, count: int) -> tuple[int, int, int]:
    """How many of a scan's operands are constants, carried, and scanned over.

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
    """The module that defines a primitive; "" if that is not known.

    Names are not unique: SparseCore has a ``gather`` of its own. A primitive says nothing of its
    module, but its abstract evaluation does.
    """
    modules = _AMBIGUOUS.get(primitive.name)
    if modules is None:
        return ""
    return next((each for each in _modules_of(primitive.abstract_eval) if each in modules), "")


def _modules_of(function: Any) -> Iterator[str]:
    """The modules of a function and of what it wraps."""
    wrapped = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    for each in (function, *wrapped):
        yield getattr(each, "__module__", "")


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
    """A closed jaxpr of values, which are results too, in place of one of references."""
    discharge: Any = importlib.import_module("jax._src.state.discharge")
    return discharge.discharge_state(jaxpr, strip_memory_space=True)
