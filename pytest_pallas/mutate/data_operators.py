"""Arithmetic: the wrong operation, a scale, a rounding, a product of the wrong operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_sim.traces import is_literal
from pytest_pallas.mutate.model import (
    Change,
    EquationSite,
    Replacement,
    equations_of,
    indexed,
    literal,
    operand_groups,
    operator,
    reindexed,
    variable,
)

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


# Loads and stores: left out, or in the slot beside the right one.


@operator(
    "init",
    mistake="an accumulator that is not initialized",
    before="acc[...] = jnp.zeros_like(acc)",
    after="",
)
def init(at: EquationSite) -> Iterator[Change]:
    """An accumulator that starts as whatever memory holds."""
    if at.name == "swap" and _is_store(at) and _is_init(at):
        yield Change("dropped", lambda: Replacement([], [None] * len(at.eqn.outvars)))


@operator(
    "store",
    mistake="a store left out, or to the neighbouring place",
    before="out[slot] = x",
    after="out[slot + 1] = x",
)
def store(at: EquationSite) -> Iterator[Change]:
    """A store left out, or to the neighbouring place."""
    if at.name not in ("swap", "addupdate") or not _is_store(at):
        return
    if not _is_init(at):
        yield Change("dropped", lambda: Replacement([], [None] * len(at.eqn.outvars)))
    yield from _neighbours(at)


@operator(
    "load",
    mistake="a load from the neighbouring place, such as the other buffer of a pair",
    before="x = buffers[slot]",
    after="x = buffers[(slot + 1) % 2]",
)
def load(at: EquationSite) -> Iterator[Change]:
    """A load from the neighbouring place, such as the other buffer of a pair."""
    if at.name == "get" and at.used():
        yield from _neighbours(at)


def _is_store(at: EquationSite) -> bool:
    """Whether nothing uses what was there before."""
    return not at.eqn.outvars or not at.used()


def _is_init(at: EquationSite) -> bool:
    """Whether it stores a constant in what the kernel also reads."""
    return at.kernel.root(at.eqn.invars[0]) in at.kernel.read and at.scope.is_constant(
        at.eqn.invars[1]
    )


def _neighbours(at: EquationSite) -> Iterator[Change]:
    found = indexed(at.eqn)
    if found is None:
        return
    _, _, pairs = found
    for axis, (index, size) in enumerate(pairs):
        if hasattr(index, "start"):
            room = _room(index, size)
            if room:
                yield Change(
                    "a slice from one further",
                    lambda axis=axis, index=index, room=room: _moved(
                        at,
                        axis,
                        index.start,
                        lambda i, room=room: jnp.where(i < room, i + 1, i - 1),
                    ),
                    part=f"axis {axis}",
                )
        elif _is_scalar(index) and isinstance(size, int) and size > 1:
            yield Change(
                "the next slot",
                lambda axis=axis, index=index, size=size: _moved(
                    at, axis, index, lambda i: (i + 1) % size
                ),
                part=f"axis {axis}",
            )


def _room(index: Any, size: Any) -> int:
    """How far a slice could be moved."""
    if not isinstance(size, int) or not isinstance(index.size, int):
        return 0
    return max(0, size - ((index.size - 1) * index.stride + 1))


def _is_scalar(index: Any) -> bool:
    if isinstance(index, int):
        return True
    aval = getattr(index, "aval", None)
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    return shape == () and dtype is not None and jnp.issubdtype(dtype, jnp.integer)


def _moved(at: EquationSite, axis: int, index: Any, function: Any) -> Replacement:
    """The equation with a function of an index in place of it."""
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


#: What waits, by primitive. ``wgmma_wait`` is not among them: no interpreter can see it missing.
_WAITS: Mapping[str, str] = {
    "dma_wait": "dropped",
    "semaphore_wait": "dropped",
    "barrier_wait": "dropped",
    "wait_smem_to_gmem": "dropped",
    "wait_gmem_to_smem": "dropped",
}
_STARTS = frozenset({"dma_start", "copy_gmem_to_smem", "copy_smem_to_gmem", "async_store_smem"})
_SIGNALS = frozenset({"semaphore_signal", "barrier_arrive"})
_BARRIERS = frozenset({"barrier", "barrier_arrive_and_wait", "commit_smem", "cluster_barrier"})


@operator(
    "wait",
    mistake="a copy, semaphore or barrier without a wait",
    before="copy.wait()",
    after="",
)
def wait(at: EquationSite) -> Iterator[Change]:
    """A wait is left out."""
    if at.name in _WAITS:
        yield Change(_WAITS[at.name], lambda: Replacement(), part=at.name)


@operator(
    "start",
    mistake="a copy that is never started",
    before="copy.start()",
    after="",
)
def start(at: EquationSite) -> Iterator[Change]:
    """A copy that is waited for and never started."""
    if at.name in _STARTS:
        yield Change("dropped", lambda: Replacement(), part=at.name)


@operator(
    "semaphore",
    mistake="one semaphore for all copies",
    before="sems.at[slot]",
    after="sems.at[0]",
)
def semaphore(at: EquationSite) -> Iterator[Change]:
    """Two copies that share a semaphore."""
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
        yield Change(
            "the first for all",
            lambda position=positions[1]: _with_operand(at, position, lambda i: jnp.zeros_like(i)),
            part=f"{at.name} {name}",
        )


@operator(
    "signal",
    mistake="a signal left out, or given twice",
    before="pl.semaphore_signal(ready)",
    after="",
)
def signal(at: EquationSite) -> Iterator[Change]:
    """A signal left out, or given twice."""
    if at.name in _SIGNALS:
        yield Change("dropped", lambda: Replacement(), part=at.name)
        yield Change("doubled", lambda: Replacement([at.eqn, at.eqn], []), part=at.name)


@operator(
    "device",
    mistake="a copy or signal to the device after the right one",
    before="device_id=right",
    after="device_id=(right + 1) % n",
)
def device(at: EquationSite) -> Iterator[Change]:
    """A message to the device after the right one."""
    positions = operand_groups(at.eqn).get("device", [])
    if at.name not in ("dma_start", "semaphore_signal") or not positions:
        return
    total = 1
    for size in at.kernel.axes.values():
        total *= size
    if total < 2:
        return
    sizes = list(at.kernel.axes.values())
    for number, position in enumerate(positions):
        # One number counts all devices, or those of the only axis; several are one for each axis.
        size = total if len(positions) == 1 else sizes[number] if number < len(sizes) else 0
        if size < 2 or getattr(at.eqn.invars[position].aval, "shape", None) != ():
            continue
        yield Change(
            "the next one",
            lambda position=position, size=size: _with_operand(
                at, position, lambda i: (i + 1) % size
            ),
            part=f"{at.name} {number}",
        )


@operator(
    "barrier",
    mistake="a barrier left out",
    before="plsc.subcore_barrier()",
    after="",
)
def barrier(at: EquationSite) -> Iterator[Change]:
    """The wait for the others is left out."""
    if at.name in _BARRIERS:
        yield Change("dropped", lambda: Replacement(), part=at.name)


def _with_operand(at: EquationSite, position: int, function: Any) -> Replacement:
    operands = list(at.eqn.invars)
    old = operands[position]
    eqns, [operands[position]] = equations_of(
        lambda i: (function(i).astype(i.dtype),), [old], at.eqn
    )
    new = at.eqn.replace(invars=operands)
    return Replacement([*eqns, new], list(new.outvars))


# Random bits that are used twice.


@operator(
    "random",
    mistake="random bits that are used twice",
    before="pltpu.prng_seed(seed, block)",
    after="pltpu.prng_seed(seed, 0)",
)
def randomness(at: EquationSite) -> Iterator[Change]:
    """The same bits for every block, or for two purposes."""
    if at.name == "prng_seed":
        for position, seed in enumerate(at.eqn.invars):
            if not is_literal(seed) and seed.aval.shape == ():
                yield Change(
                    "without one of its numbers",
                    lambda position=position: _zeroed(at, position),
                    part=f"seed {position}",
                )
    elif at.name == "random_fold_in" and at.used():
        key, _ = at.eqn.invars
        yield Change("the key without the number", lambda: Replacement([], [key]))


def _zeroed(at: EquationSite, position: int) -> Replacement:
    operands = list(at.eqn.invars)
    eqns, [operands[position]] = equations_of(
        lambda x: (jnp.zeros_like(x),), [operands[position]], at.eqn
    )
    return Replacement([*eqns, at.eqn.replace(invars=operands)], list(at.eqn.outvars))
