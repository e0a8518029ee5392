"""Arithmetic: the wrong operation, a scale, a rounding, a product of the wrong operands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_sim.compat.jaxprs import is_literal
from pytest_pallas.mutation.declaring import operator
from pytest_pallas.mutation.model import Change, EquationSite, Replacement
from pytest_pallas.mutation.rewriting import equations_of, variable

_OTHER = {"add": "sub", "sub": "add", "mul": "add", "max": "min", "min": "max"}
_REDUCED = {"reduce_sum": "reduce_max", "reduce_max": "reduce_min", "reduce_min": "reduce_max"}
_FUNCTIONS = {"add": lax.add, "sub": lax.sub, "max": lax.max, "min": lax.min}


@operator(
    "arithmetic",
    mistake="another operation: - for +, + for *, min for max, max for a sum",
    before="m = jnp.maximum(m, s)",
    after="m = jnp.minimum(m, s)",
)
def arithmetic(at: EquationSite) -> Iterator[Change]:
    """Another operation."""
    if not at.eqn.outvars or not at.used():
        return
    if at.name in _OTHER and _is_number(at.eqn.outvars[0]):
        name = _OTHER[at.name]
        yield Change(f"{at.name} -> {name}", lambda: at.traced(_FUNCTIONS[name], *at.eqn.invars))
    elif at.name in _REDUCED and at.eqn.invars[0].aval.shape:
        name = _REDUCED[at.name]
        axes = tuple(at.eqn.params["axes"])
        if int(np.prod([at.eqn.invars[0].aval.shape[axis] for axis in axes])) < 2:
            return  # of one element all are equal
        function = {"reduce_max": jnp.max, "reduce_min": jnp.min}[name]
        yield Change(
            f"{at.name} -> {name}",
            lambda: at.traced(lambda x: function(x, axis=axes), at.eqn.invars[0]),
        )


@operator(
    "scale",
    mistake="a factor left out, or taken twice",
    before="s = q @ k.T * scale",
    after="s = q @ k.T",
)
def scale(at: EquationSite) -> Iterator[Change]:
    """A factor that is the same everywhere: left out, or taken twice."""
    if at.name not in ("mul", "div") or not _is_float(at.eqn.outvars[0]) or not at.used():
        return
    left, right = at.eqn.invars
    sides = [(left, right)] if at.name == "div" else [(left, right), (right, left)]
    for rest, factor in sides:
        if not _is_uniform(at, factor) or _is_uniform(at, rest):
            continue
        yield Change("dropped", lambda rest=rest: Replacement([], [rest]), part="factor")
        yield Change(
            "squared", lambda rest=rest, factor=factor: _twice(at, rest, factor), part="factor"
        )
        return


@operator(
    "accumulation",
    mistake="sums held in bfloat16 in place of float32",
    before="preferred_element_type=jnp.float32",
    after="preferred_element_type=jnp.bfloat16",
)
def accumulation(at: EquationSite) -> Iterator[Change]:
    """Sums held in bfloat16 where they were held in float32."""
    if at.name == "dot_general":
        out = at.eqn.outvars[0]
        if out.aval.dtype == jnp.float32 and at.used():
            yield Change("float32 -> bfloat16", lambda: _rounded_result(at))
    elif at.name in ("swap", "addupdate") and _accumulates(at):
        yield Change("float32 -> bfloat16", lambda: _rounded_store(at))


@operator(
    "product",
    mistake="operands of a product swapped, or the wrong axis summed over",
    before="jnp.dot(x, y)",
    after="jnp.dot(y, x)",
)
def product(at: EquationSite) -> Iterator[Change]:
    """The operands of a product swapped, or the wrong axis summed over."""
    if at.name != "dot_general" or not at.used():
        return
    left, right = at.eqn.invars
    ((contracted, others), (batch, other_batch)) = at.eqn.params["dimension_numbers"]
    shape = at.eqn.outvars[0].aval.shape
    if left.aval.dtype == right.aval.dtype and left is not right:
        numbers = at.eqn.params["dimension_numbers"]
        if _product_shape(right.aval.shape, left.aval.shape, numbers) == shape:
            yield Change("operands swapped", lambda: _product(at, (right, left), numbers))
    for side, name in ((0, "left"), (1, "right")):
        dims = [list(contracted), list(others)]
        used = {*dims[side], *(batch, other_batch)[side]}
        free = [axis for axis in range(at.eqn.invars[side].aval.ndim) if axis not in used]
        if len(dims[side]) != 1 or len(free) != 1:
            continue
        dims[side] = free
        wrong = ((tuple(dims[0]), tuple(dims[1])), (batch, other_batch))
        if _product_shape(left.aval.shape, right.aval.shape, wrong) == shape:
            yield Change(
                f"the {name} operand transposed",
                lambda wrong=wrong: _product(at, (left, right), wrong),
            )


@operator(
    "cast",
    mistake="a cast to a narrower float before an operation, and not after it",
    before="(x - y).astype(jnp.bfloat16)",
    after="x.astype(jnp.bfloat16) - y.astype(jnp.bfloat16)",
)
def cast(at: EquationSite) -> Iterator[Change]:
    """A cast to a narrower float before an operation, and not after it."""
    if at.name not in _ROUNDED or not at.used():
        return
    out = at.eqn.outvars[0]
    users = at.scope.users(out)
    if at.scope.is_result(out) or not users or not _is_float(out):
        return
    narrow = {each.params.get("new_dtype") for each in users}
    if any(each.primitive.name != "convert_element_type" for each in users) or len(narrow) != 1:
        return
    dtype: Any = np.dtype(narrow.pop())
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize >= out.aval.dtype.itemsize:
        return
    operands = [a for a in at.eqn.invars if _is_float(a) and not is_literal(a)]
    if operands:
        yield Change(f"to {dtype.name} before {at.name}", lambda: _rounded_operands(at, dtype))


#: Operations that a cast may come before, and that can make much of its error. Not products and
#: quotients: rounding their operands is no more than rounding their results a few times.
_ROUNDED = frozenset({"add", "sub", "exp", "exp2"})


def _product_shape(left: Any, right: Any, numbers: Any) -> tuple[int, ...] | None:
    ((contracted, others), (batch, other_batch)) = numbers
    if [left[a] for a in contracted] != [right[a] for a in others]:
        return None
    if [left[a] for a in batch] != [right[a] for a in other_batch]:
        return None
    rows = [n for axis, n in enumerate(left) if axis not in {*contracted, *batch}]
    columns = [n for axis, n in enumerate(right) if axis not in {*others, *other_batch}]
    return (*(left[a] for a in batch), *rows, *columns)


def _product(at: EquationSite, operands: Any, numbers: Any) -> Replacement:
    return at.replaced(
        invars=list(operands), params={**at.eqn.params, "dimension_numbers": numbers}
    )


def _twice(at: EquationSite, rest: Any, factor: Any) -> Replacement:
    function = lax.div if at.name == "div" else lax.mul
    return at.traced(lambda x, s: function(function(x, s), s), rest, factor)


def _rounded_result(at: EquationSite) -> Replacement:
    new = variable(at.eqn.outvars[0].aval)
    eqns, outs = equations_of(lambda x: (_in_bfloat16(x),), [new], at.eqn)
    return Replacement([at.eqn.replace(outvars=[new]), *eqns], outs)


def _rounded_store(at: EquationSite) -> Replacement:
    eqns, [value] = equations_of(lambda x: (_in_bfloat16(x),), [at.eqn.invars[1]], at.eqn)
    stored = at.eqn.replace(invars=[at.eqn.invars[0], value, *at.eqn.invars[2:]])
    return Replacement([*eqns, stored], list(stored.outvars))


def _rounded_operands(at: EquationSite, dtype: Any) -> Replacement:
    eqns: list[Any] = []
    operands: list[Any] = []
    for atom in at.eqn.invars:
        if not _is_float(atom) or is_literal(atom):
            operands.append(atom)
            continue
        more, [out] = equations_of(lambda x: (x.astype(dtype).astype(x.dtype),), [atom], at.eqn)
        eqns += more
        operands.append(out)
    new = at.eqn.replace(invars=operands)
    return Replacement([*eqns, new], list(new.outvars))


def _in_bfloat16(x: Any) -> Any:
    # A cast there and back is what XLA may leave out.
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _accumulates(at: EquationSite) -> bool:
    """Whether it stores what it adds to: float32, in a ref that the kernel also reads."""
    value = at.eqn.invars[1]
    if getattr(value.aval, "dtype", None) != jnp.float32 or is_literal(value):
        return False
    if at.name == "addupdate":
        return True
    maker = at.scope.maker(value)
    return (
        maker is not None
        and maker.primitive.name in ("add", "sub", "mul", "dot_general", "jit", "pjit")
        and at.kernel.root(at.eqn.invars[0]) in at.kernel.read
    )


def _is_uniform(at: EquationSite, atom: Any) -> bool:
    """Whether it is one number, maybe for every element."""
    if not atom.aval.shape:
        return True
    maker = at.scope.maker(atom)
    return (
        maker is not None
        and maker.primitive.name == "broadcast_in_dim"
        and not maker.invars[0].aval.shape
    )


def _is_float(atom: Any) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.floating)


def _is_number(atom: Any) -> bool:
    dtype = atom.aval.dtype
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
