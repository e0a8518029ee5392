"""Private names of JAX: what the simulator reads off programs, and how it leaves a trace."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytest_pallas.compat.windows import Operand


def open_jaxpr(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr without its constants, and these.

    JAX 0.11.2 has closed jaxprs, and open ones without values; in JAX 0.12.0.1 a jaxpr has its
    constants itself.
    """
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, tuple(getattr(jaxpr, "consts", ()))


def home_of_primitive(primitive: Any) -> str:
    """The module that defines a primitive; "" if that is not known.

    Names are not unique: SparseCore has a ``gather`` of its own. A primitive says nothing of its
    module, but its abstract evaluation does. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    name = primitive.name
    if name not in _AMBIGUOUS:
        return ""
    for module in _AMBIGUOUS[name]:
        home: Any = importlib.import_module(module)
        if any(value is primitive for value in vars(home).values()):
            return module
    return ""


#: Names of several primitives, with the modules that define the less common ones.
_AMBIGUOUS = {
    **dict.fromkeys(
        ("gather", "scatter", "load", "swap", "scan_count", "pack", "unpack", "barrier"),
        ("jax._src.pallas.mosaic.sc_primitives",),
    ),
    "load": ("jax._src.pallas.mosaic.sc_primitives", "jax._src.pallas.mosaic_gpu.primitives"),
    "store": ("jax._src.pallas.mosaic_gpu.primitives",),
}


def has_effects(eqn: Any) -> bool:
    """Whether an equation does more than compute its results. Seen in JAX 0.11.2 and 0.12.0.1."""
    return bool(eqn.effects)


def untraced() -> AbstractContextManager[Any]:
    """Evaluate at once what is bound inside, also within a function that is being traced.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    return importlib.import_module("jax._src.core").eval_context()


def masked_parts(name: str, params: Any, count: int) -> tuple[Any, Any, Any, Any]:
    """Reference, transforms, mask, and value or ``other`` of a masked load or store.

    Each is a ``windows.Operand`` where it is an operand, or None. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      name: ``"masked_load"`` or ``"masked_swap"``.
      params: of the equation.
      count: of its operands.
    """
    util = importlib.import_module("jax.tree_util")
    operands = [Operand(number) for number in range(count)]
    ref, transforms, third, fourth = util.tree_unflatten(params["args_tree"], operands)
    if name == "masked_swap":
        return ref, transforms, fourth, third
    return ref, transforms, third, fourth


def scan_parts(params: Any, count: int) -> tuple[int, int, int]:
    """How many of a scan's operands are constants, carried, and scanned over.

    JAX 0.12 keeps them in trees of flags. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    if "num_consts" in params:
        consts, carry = params["num_consts"], params["num_carry"]
        return consts, carry, count - consts - carry
    util = importlib.import_module("jax.tree_util")
    parts = [list(part) for part in params["ft_in"].update(range(count)).unpack()]
    consts, carry, scanned = (len(util.tree_leaves(part)) for part in parts)
    return consts, carry, scanned


def expanded(params: Any, avals: Sequence[Any]) -> Any:
    """What a high-level primitive computes, as a jaxpr of lower ones.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    import jax

    hijax: Any = importlib.import_module("jax._src.hijax")
    lower = hijax.call_hi_primitive_p.to_lojax
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    return jax.make_jaxpr(lambda *args: lower(*args, **params))(*shapes)


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """The names of the parameters of the function that an open jaxpr was traced from, or "".

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    count = len(jaxpr.invars)
    names = list(getattr(jaxpr.debug_info, "arg_names", None) or ())
    return tuple(name or "" for name in names) if len(names) == count else ("",) * count


def composition(primitive: Any, avals: Sequence[Any], params: Any) -> Any:
    """What JAX lowers a primitive to, as a jaxpr of other primitives; None if it is no such.

    ``mlir.lower_fun`` makes a lowering of a Python function, which it keeps in its closure. That
    for a TPU goes first, then the one for every platform. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      primitive: of JAX or anybody else.
      avals: of its operands.
      params: of the equation.
    """
    import jax

    function = _of_keys(primitive.name, avals, params) or _composed(primitive)
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


def _of_keys(name: str, avals: Sequence[Any], params: Any) -> Any:
    """What a primitive of typed keys does, by the functions of their implementation."""
    if name not in ("random_seed", "random_split", "random_fold_in", "random_bits"):
        return None
    prng: Any = importlib.import_module("jax._src.random.prng")
    impl = params["impl"] if name == "random_seed" else avals[0].dtype._impl
    shape = avals[0].shape

    def wrapped(words: Any) -> Any:
        return prng.random_wrap(words, impl=impl)

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
