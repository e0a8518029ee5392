"""Mutation operators for values: what a kernel computes, loads, stores, copies and signals.

Each operator below is one kind of mistake, with an example of it. Those for comparisons, guards,
grids and masks are in ``control_operators``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_sim.traces import is_literal
from pytest_pallas.backends.rewriting import equations_of, literal, variable
from pytest_pallas.mutate.model import (
    Change,
    EquationSite,
    Replacement,
    indices_of,
    operand_groups,
    operator,
    reindexed,
)

_OTHER = {"add": "sub", "sub": "add", "mul": "add", "max": "min", "min": "max"}
_REDUCED = {"reduce_sum": "reduce_max", "reduce_max": "reduce_min", "reduce_min": "reduce_max"}
_FUNCTIONS = {"add": lax.add, "sub": lax.sub, "max": lax.max, "min": lax.min}


@operator(before="m = jnp.maximum(m, s)", after="m = jnp.minimum(m, s)")
def arithmetic(at: EquationSite) -> Iterator[Change]:
    """Another operation: - for +, + for *, min for max, max for a sum."""
    if not at.eqn.outvars or not at.used():
        return
    if at.name in _OTHER and _is_number(at.eqn.outvars[0]):
        name = _OTHER[at.name]
        yield Change(f"{at.name} -> {name}", lambda: at.traced(_FUNCTIONS[name], *at.eqn.invars))
    elif at.name in _REDUCED and at.eqn.invars[0].aval.shape:
        name = _REDUCED[at.name]
        axes = tuple(at.eqn.params["axes"])
        if int(np.prod([at.eqn.invars[0].aval.shape[axis] for axis in axes])) < 2:
            return  # they are equal for one element
        function = {"reduce_max": jnp.max, "reduce_min": jnp.min}[name]
        yield Change(
            f"{at.name} -> {name}",
            lambda: at.traced(lambda x: function(x, axis=axes), at.eqn.invars[0]),
        )


@operator(before="s = q @ k.T * scale", after="s = q @ k.T")
def scale(at: EquationSite) -> Iterator[Change]:
    """A factor left out, or taken twice."""
    if at.name not in ("mul", "div") or not _is_float(at.eqn.outvars[0]) or not at.used():
        return
    left, right = at.eqn.invars
    sides = [(left, right)] if at.name == "div" else [(left, right), (right, left)]
    for rest, factor in sides:
        if not _is_uniform(at, factor) or _is_uniform(at, rest):
            continue
        yield Change("dropped", partial(Replacement, outs=[rest]), part="factor")
        yield Change("squared", partial(_twice, at, rest, factor), part="factor")
        return


@operator(before="preferred_element_type=jnp.float32", after="preferred_element_type=jnp.bfloat16")
def accumulation(at: EquationSite) -> Iterator[Change]:
    """Sums held in bfloat16 in place of float32."""
    if at.name == "dot_general":
        out = at.eqn.outvars[0]
        if out.aval.dtype == jnp.float32 and at.used():
            yield Change("float32 -> bfloat16", lambda: _rounded_result(at))
    elif at.name in ("swap", "addupdate") and _accumulates(at):
        yield Change("float32 -> bfloat16", lambda: at.with_operand(1, _in_bfloat16))


@operator(before="jnp.dot(x, y)", after="jnp.dot(y, x)")
def product(at: EquationSite) -> Iterator[Change]:
    """Operands of a product swapped, or the wrong axis summed over."""
    if at.name != "dot_general" or not at.used():
        return
    left, right = at.eqn.invars
    ((contracted, others), (batch, other_batch)) = at.eqn.params["dimension_numbers"]
    shape = at.eqn.outvars[0].aval.shape
    if left.aval.dtype == right.aval.dtype and left is not right:
        numbers = at.eqn.params["dimension_numbers"]
        if _product_shape(right.aval.shape, left.aval.shape, numbers) == shape:
            yield Change("operands swapped", lambda: at.replaced(invars=[right, left]))
    for side, name in ((0, "left"), (1, "right")):
        dims = [list(contracted), list(others)]
        used = {*dims[side], *(batch, other_batch)[side]}
        free = [axis for axis in range(at.eqn.invars[side].aval.ndim) if axis not in used]
        if len(dims[side]) != 1 or len(free) != 1:
            continue
        dims[side] = free
        wrong = ((tuple(dims[0]), tuple(dims[1])), (batch, other_batch))
        if _product_shape(left.aval.shape, right.aval.shape, wrong) == shape:
            params = {**at.eqn.params, "dimension_numbers": wrong}
            yield Change(f"the {name} operand transposed", partial(at.replaced, params=params))


@operator(
    before="(x - y).astype(jnp.bfloat16)", after="x.astype(jnp.bfloat16) - y.astype(jnp.bfloat16)"
)
def cast(at: EquationSite) -> Iterator[Change]:
    """A cast to a narrower float before an operation, and not after it."""
    if at.name not in _ROUNDED or not at.used():
        return
    out = at.eqn.outvars[0]
    users = at.scope.users(out)
    if at.scope.is_result(out) or not users or not _is_float(out):
        return
    narrow = {user.params.get("new_dtype") for user in users}
    if any(user.primitive.name != "convert_element_type" for user in users) or len(narrow) != 1:
        return
    dtype: Any = np.dtype(narrow.pop())
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize >= out.aval.dtype.itemsize:
        return
    operands = [a for a in at.eqn.invars if _is_float(a) and not is_literal(a)]
    if operands:
        yield Change(f"to {dtype.name} before {at.name}", lambda: _rounded_operands(at, dtype))


#: Operations that can amplify the error of a cast before them. Products and quotients do not:
#: rounding their operands is no worse than rounding their results a few times.
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


def _twice(at: EquationSite, rest: Any, factor: Any) -> Replacement:
    function = lax.div if at.name == "div" else lax.mul
    return at.traced(lambda x, s: function(function(x, s), s), rest, factor)


def _rounded_result(at: EquationSite) -> Replacement:
    new = variable(at.eqn.outvars[0].aval)
    eqns, outs = equations_of(lambda x: (_in_bfloat16(x),), [new], at.eqn)
    return Replacement([at.eqn.replace(outvars=[new]), *eqns], outs)


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
    # XLA may leave out a cast to bfloat16 and back.
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _accumulates(at: EquationSite) -> bool:
    """Whether it stores a sum of float32 in a ref that the kernel also reads."""
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
    """Whether an operand is one number, perhaps broadcast."""
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


# Loads and stores: left out, or in the slot beside the right one.


@operator(before="acc[...] = jnp.zeros_like(acc)", after="")
def init(at: EquationSite) -> Iterator[Change]:
    """An accumulator that is not initialized."""
    if at.name == "swap" and not at.used() and _is_init(at):
        yield Change("dropped", Replacement)


@operator(before="out[slot] = x", after="out[slot + 1] = x")
def store(at: EquationSite) -> Iterator[Change]:
    """A store left out, or to the neighbouring place."""
    if at.name not in ("swap", "addupdate") or at.used():
        return
    if not _is_init(at):
        yield Change("dropped", Replacement)
    yield from _neighbours(at)


@operator(before="x = buffers[slot]", after="x = buffers[(slot + 1) % 2]")
def load(at: EquationSite) -> Iterator[Change]:
    """A load from the neighbouring place, such as the other buffer of a pair."""
    if at.name == "get" and at.used():
        yield from _neighbours(at)


def _is_init(at: EquationSite) -> bool:
    """Whether it stores a constant in a ref that the kernel also reads."""
    return at.kernel.root(at.eqn.invars[0]) in at.kernel.read and at.scope.is_constant(
        at.eqn.invars[1]
    )


def _neighbours(at: EquationSite) -> Iterator[Change]:
    for axis, (index, size) in enumerate(indices_of(at.eqn) or ()):
        if not isinstance(size, int):
            continue
        part = f"axis {axis}"
        if not hasattr(index, "start"):
            if _is_scalar(index) and size > 1:
                build = partial(_moved, at, axis, index, partial(_next, count=size))
                yield Change("the next slot", build, part)
        elif isinstance(index.size, int):
            room = size - ((index.size - 1) * index.stride + 1)  # how far it can be moved
            if room > 0:
                build = partial(_moved, at, axis, index.start, partial(_one_further, room=room))
                yield Change("a slice from one further", build, part)


def _next(index: Any, count: int) -> Any:
    return (index + 1) % count


def _one_further(start: Any, room: int) -> Any:
    return jnp.where(start < room, start + 1, start - 1)


def _is_scalar(index: Any) -> bool:
    if isinstance(index, int):
        return True
    aval = getattr(index, "aval", None)
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    return shape == () and dtype is not None and jnp.issubdtype(dtype, jnp.integer)


def _moved(at: EquationSite, axis: int, index: Any, function: Any) -> Replacement:
    """Replace an index of the equation by a function of it."""
    if isinstance(index, int) or is_literal(index):
        with jax.ensure_compile_time_eval():
            value = int(function(jnp.int32(getattr(index, "val", index))))
        eqns = []
        new = value if isinstance(index, int) else literal(value, index.aval)
    else:
        eqns, [new] = equations_of(lambda i: (function(i).astype(i.dtype),), [index], at.eqn)
    eqn = reindexed(at.eqn, axis, new)
    return Replacement([*eqns, eqn], list(eqn.outvars))


# Asynchronous copies, semaphores, barriers: left out, shared, doubled, to the wrong device.


#: ``wgmma_wait`` is not among them: no interpreter can see it missing.
_WAITS = frozenset(
    {"dma_wait", "semaphore_wait", "barrier_wait", "wait_smem_to_gmem", "wait_gmem_to_smem"}
)
_STARTS = frozenset({"dma_start", "copy_gmem_to_smem", "copy_smem_to_gmem", "async_store_smem"})
_SIGNALS = frozenset({"semaphore_signal", "barrier_arrive"})
_BARRIERS = frozenset({"barrier", "barrier_arrive_and_wait", "commit_smem", "cluster_barrier"})


@operator(before="copy.wait()", after="")
def wait(at: EquationSite) -> Iterator[Change]:
    """A copy, semaphore or barrier without a wait."""
    if at.name in _WAITS:
        yield Change("dropped", Replacement, part=at.name)


@operator(before="copy.start()", after="")
def start(at: EquationSite) -> Iterator[Change]:
    """A copy that is never started."""
    if at.name in _STARTS:
        yield Change("dropped", Replacement, part=at.name)


@operator(before="sems.at[slot]", after="sems.at[0]")
def semaphore(at: EquationSite) -> Iterator[Change]:
    """One semaphore for all copies."""
    if at.name not in ("dma_start", "dma_wait"):
        return
    groups = operand_groups(at.eqn)
    names = ("target_semaphore", "source_semaphore")
    for name in names[:1] if at.name == "dma_wait" else names:  # a wait looks at one of them
        positions = groups.get(name, [])
        if len(positions) != 2:  # the array of semaphores, and an index
            continue
        ref, index = (at.eqn.invars[position] for position in positions)
        shape = getattr(ref.aval, "shape", ())
        if len(shape) != 1 or shape[0] < 2 or getattr(index.aval, "shape", None) != ():
            continue
        build = partial(at.with_operand, positions[1], jnp.zeros_like)
        yield Change("the first for all", build, part=f"{at.name} {name}")


@operator(before="pl.semaphore_signal(ready)", after="")
def signal(at: EquationSite) -> Iterator[Change]:
    """A signal left out, or given twice."""
    if at.name in _SIGNALS:
        yield Change("dropped", Replacement, part=at.name)
        yield Change("doubled", lambda: Replacement([at.eqn, at.eqn], []), part=at.name)


@operator(before="device_id=right", after="device_id=(right + 1) % n")
def device(at: EquationSite) -> Iterator[Change]:
    """A copy or signal to the device after the right one."""
    positions = operand_groups(at.eqn).get("device", [])
    if at.name not in ("dma_start", "semaphore_signal") or not positions:
        return
    sizes = list(at.kernel.axes.values())
    total = math.prod(sizes)
    if total < 2:
        return
    for number, position in enumerate(positions):
        # One number is the index of a device among all; several are its indices along the axes.
        size = total if len(positions) == 1 else sizes[number] if number < len(sizes) else 0
        if size < 2 or getattr(at.eqn.invars[position].aval, "shape", None) != ():
            continue
        build = partial(at.with_operand, position, partial(_next, count=size))
        yield Change("the next one", build, part=f"{at.name} {number}")


@operator(before="plsc.subcore_barrier()", after="")
def barrier(at: EquationSite) -> Iterator[Change]:
    """A barrier left out."""
    if at.name in _BARRIERS:
        yield Change("dropped", Replacement, part=at.name)


# Random bits that are used twice.


@operator("random", before="pltpu.prng_seed(seed, block)", after="pltpu.prng_seed(seed, 0)")
def randomness(at: EquationSite) -> Iterator[Change]:
    """Random bits that are used twice."""
    if at.name == "prng_seed":
        for position, seed in enumerate(at.eqn.invars):
            if not is_literal(seed) and seed.aval.shape == ():
                build = partial(at.with_operand, position, jnp.zeros_like)
                yield Change("without one of its numbers", build, part=f"seed {position}")
    elif at.name == "random_fold_in" and at.used():
        key, _ = at.eqn.invars
        yield Change("the key without the number", lambda: Replacement([], [key]))
