"""Private names of JAX: what it takes to write an equation of a jaxpr anew."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from pytest_pallas.compat.jaxprs import KERNEL_PRIMITIVES, sub_jaxprs

#: Files of JAX whose equations belong to a loop or pipeline that JAX wrote, and not to the line of
#: the user that asked for it. Seen in JAX 0.11.2 and 0.12.0.1.
_MACHINERY = (
    "/pallas/pipelining/",
    "/pallas/mosaic/pipeline.py",
    "/pallas/mosaic_gpu/pipeline.py",
    "/pallas/mosaic_gpu/helpers.py",
    "/pallas/utils.py",
    "/lax/control_flow/loops.py",
    "/lax/control_flow/for_loop.py",
)

#: Files of JAX that trace a kernel's body: what is outside of them is not the kernel.
_CALLERS = ("/pallas/pallas_call.py", "/pallas/mpmd.py", "/pallas/core.py")


class Spot(NamedTuple):
    """A stretch of source code.

    Attributes:
      file: its path.
      line: the first line, from 1.
      column: the first column, from 0.
      end_line: the last line.
      end_column: the column after the last.
      function: the qualified name of the function that it is in.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str


def _core() -> Any:
    return importlib.import_module("jax._src.core")


def places_in_kernel(eqn: Any) -> tuple[Spot, ...]:
    """Where an equation of a kernel's body was made: the user's frames inside the body.

    The outermost first; frames of whoever called the kernel are left out. Empty if JAX does not
    know. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    traceback = getattr(eqn.source_info, "traceback", None)
    return () if traceback is None else _frames(traceback)[0]


def is_machinery(eqn: Any) -> bool:
    """Whether JAX made an equation for a loop or pipeline of its own, in whatever line."""
    traceback = getattr(eqn.source_info, "traceback", None)
    return traceback is not None and _frames(traceback)[1]


@functools.lru_cache(maxsize=65536)
def _frames(traceback: Any) -> tuple[tuple[Spot, ...], bool]:
    info = importlib.import_module("jax._src.source_info_util")
    codes, instructions = traceback.raw_frames()
    user: list[Spot] = []
    machinery = False
    for code, instruction in zip(codes, instructions, strict=True):
        if user and code.co_filename.endswith(_CALLERS):
            break
        if info.is_user_filename(code.co_filename):
            user.append(_spot(info.raw_frame_to_frame(code, instruction)))
        elif not user:
            machinery = machinery or any(part in code.co_filename for part in _MACHINERY)
    return tuple(reversed(user)), machinery


def place_of_call(eqn: Any) -> Spot | None:
    """The user's innermost frame of an equation outside of a kernel, such as a ``pallas_call``.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    info = importlib.import_module("jax._src.source_info_util")
    frame = info.user_frame(getattr(eqn.source_info, "traceback", None))
    return None if frame is None else _spot(frame)


def _spot(frame: Any) -> Spot:
    return Spot(
        frame.file_name,
        frame.start_line,
        frame.start_column,
        frame.end_line,
        frame.end_column,
        frame.function_name,
    )


@contextmanager
def own_lines() -> Generator[None]:
    """Have what is traced inside know its own lines.

    Of what JAX traces for a gradient, or of a function that it evaluates again, it says the line of
    the call that was differentiated: a kernel's body would be one line. Seen in JAX 0.11.2 and
    0.12.0.1.
    """
    info = importlib.import_module("jax._src.source_info_util")
    partial_eval: Any = importlib.import_module("jax._src.interpreters.partial_eval")
    state = info._source_info_context
    original = partial_eval.trace_to_jaxpr

    @functools.wraps(original)
    def traced(*args: Any, **kwargs: Any) -> Any:
        before = state.context
        state.context = info.SourceInfo(None, before.name_stack)
        try:
            return original(*args, **kwargs)
        finally:
            state.context = before

    def without_lines(source: Any) -> Any:
        stack = info.current_name_stack() + source.name_stack
        return info.user_context(None, name_stack=stack)

    derivatives: Any = importlib.import_module("jax._src.interpreters.ad")
    context = derivatives._name_stack_ctx
    partial_eval.trace_to_jaxpr, derivatives._name_stack_ctx = traced, without_lines
    try:
        yield
    finally:
        partial_eval.trace_to_jaxpr, derivatives._name_stack_ctx = original, context


def home_of(jaxpr: Any) -> tuple[str, str, int]:
    """Name, file and line of the function that an open jaxpr was traced from, as far as known.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    info = getattr(jaxpr, "debug_info", None)
    words = str(getattr(info, "func_src_info", "") or "")
    name, _, rest = words.partition(" at ")
    file, _, line = rest.rpartition(":")
    return name, file, int(line) if line.isdigit() else 0


def is_of_jax(jaxpr: Any) -> bool:
    """Whether an open jaxpr is of a function that JAX defines, such as ``jnp.where``."""
    return "/jax/_src/" in home_of(jaxpr)[1]


def inner_operands(eqn: Any, jaxpr: Any) -> Sequence[Any] | None:
    """The operands of an equation that become the variables of a jaxpr inside, in their order.

    None where it is not known. The variables are ``inner_variables``. Seen in JAX 0.11.2 and
    0.12.0.1.
    """
    name, operands = eqn.primitive.name, list(eqn.invars)
    variables = inner_variables(eqn, jaxpr)
    if name == "cond":
        operands = operands[1:]
    elif name == "while":
        conditions, constants = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        carried = operands[conditions + constants :]
        condition = getattr(eqn.params["cond_jaxpr"], "jaxpr", None)
        if jaxpr is condition:
            operands = operands[:conditions] + carried
        else:
            operands = operands[conditions : conditions + constants] + carried
    return operands if len(operands) == len(variables) else None


def inner_variables(eqn: Any, jaxpr: Any) -> Sequence[Any]:
    """The variables of a jaxpr inside an equation that stand for operands of the equation."""
    if eqn.primitive.name == "run_scoped":  # what it allocates comes after what it closes over
        return [*jaxpr.constvars, *jaxpr.invars][: len(eqn.invars)]
    return list(jaxpr.invars)


def is_literal(atom: Any) -> bool:
    """Whether an operand is a constant in the jaxpr."""
    return hasattr(atom, "val")


def literal(value: Any, aval: Any) -> Any:
    """A scalar constant of an aval's dtype. Seen in JAX 0.11.2 and 0.12.0.1."""
    import numpy as np

    core = _core()
    return core.Literal(np.asarray(value, aval.dtype), aval)


def variable(aval: Any) -> Any:
    """A new variable. Seen in JAX 0.11.2 and 0.12.0.1."""
    return _core().Var(aval)


def with_equations(jaxpr: Any, eqns: Sequence[Any], outvars: Sequence[Any]) -> Any:
    """An open jaxpr with other equations and results. Seen in JAX 0.11.2 and 0.12.0.1."""
    return jaxpr.replace(eqns=list(eqns), outvars=list(outvars))


def with_jaxprs(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """An equation with every open jaxpr inside replaced by ``change`` of it.

    The index maps of a ``pallas_call`` are left alone. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    params = {name: _changed(value, change) for name, value in eqn.params.items()}
    if all(params[name] is value for name, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=params)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    inner = getattr(value, "jaxpr", None)
    if hasattr(value, "eqns") and (inner is None or inner is value):
        return change(value)
    if hasattr(inner, "eqns") and hasattr(value, "consts"):  # JAX 0.11.2 has closed ones besides
        new = change(inner)
        return value if new is inner else value.replace(jaxpr=new)
    if isinstance(value, (tuple, list)):
        parts: list[Any] = [_changed(each, change) for each in value]  # pyright: ignore[reportUnknownVariableType]
        if all(new is old for new, old in zip(parts, value, strict=True)):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            return value  # pyright: ignore[reportUnknownVariableType]
        return type(value)(parts)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value


def renamed(eqn: Any, names: Mapping[Any, Any]) -> Any:
    """An equation with other operands in place of some."""
    if not any(not is_literal(atom) and atom in names for atom in eqn.invars):
        return eqn
    return eqn.replace(
        invars=[atom if is_literal(atom) else names.get(atom, atom) for atom in eqn.invars],
        effects={_of_other(effect, names) for effect in eqn.effects},
    )


def _of_other(effect: Any, names: Mapping[Any, Any]) -> Any:
    """The effect of an equation with other operands: in JAX 0.12 it names the variable."""
    var = getattr(effect, "input", None)
    return effect.replace(names[var]) if var is not None and var in names else effect


def equations_of(
    function: Callable[..., Any], atoms: Sequence[Any], like: Any
) -> tuple[list[Any], list[Any]]:
    """The equations that a function of arrays traces to, on operands of a jaxpr, and its results.

    Args:
      function: of arrays with the shapes and dtypes of ``atoms``, and of references where these
        are; it returns a sequence of arrays.
      atoms: its operands.
      like: the equation whose place in the source they take.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    core = _core()
    partial_eval = importlib.import_module("jax._src.interpreters.partial_eval")
    wrapping = importlib.import_module("jax._src.linear_util")
    # As jax.make_jaxpr, without the jit around it, which takes most of the time.
    avals = [
        atom.aval
        if hasattr(atom.aval, "inner_aval")
        else core.ShapedArray(atom.aval.shape, atom.aval.dtype)
        for atom in atoms
    ]
    named = wrapping.DebugInfo("equations_of", "equations_of", None, None)
    wrapped = wrapping.wrap_init(lambda *arrays: list(function(*arrays)), debug_info=named)
    traced, _, consts = partial_eval.trace_to_jaxpr_dynamic(wrapped, avals)
    names: dict[Any, Any] = dict(zip(traced.invars, atoms, strict=True))
    for var, const in zip(traced.constvars, consts, strict=True):
        names[var] = literal(const, var.aval)  # of scalars only; nothing here makes others
    eqns = [
        renamed(eqn, names).replace(source_info=like.source_info, ctx=like.ctx)
        for eqn in traced.eqns
    ]
    return eqns, [atom if is_literal(atom) else names.get(atom, atom) for atom in traced.outvars]


def indexed(eqn: Any) -> tuple[Any, list[Any], list[Any]] | None:
    """The ref, the other operands, and the indices of a ``get``, ``swap`` or ``addupdate``.

    The indices are those of the last transform, an operand, or an object with ``start``, ``size``
    and ``stride`` each, with the size of the axis: pairs. None where it is not indexed so. Seen in
    JAX 0.11.2 and 0.12.0.1.
    """
    count = {"get": 1, "swap": 2, "addupdate": 2}.get(eqn.primitive.name)
    if count is None or "tree" not in eqn.params or "has_mask" in eqn.params:
        return None  # those of SparseCores are others
    tree = importlib.import_module("jax.tree_util")
    transforms = tree.tree_unflatten(eqn.params["tree"], eqn.invars[count:])
    if not isinstance(transforms, tuple) or not transforms:
        return None
    last: Any = transforms[-1]  # pyright: ignore[reportUnknownVariableType]
    if type(last).__name__ != "NDIndexer":  # pyright: ignore[reportUnknownArgumentType]
        return None
    pairs: list[Any] = list(zip(last.indices, last.shape, strict=True))
    return eqn.invars[0], list(eqn.invars[1:count]), pairs


def reindexed(eqn: Any, axis: int, index: Any) -> Any:
    """The equation with another index for an axis; see ``indexed``."""
    import dataclasses

    count = {"get": 1, "swap": 2, "addupdate": 2}[eqn.primitive.name]
    tree = importlib.import_module("jax.tree_util")
    transforms = tree.tree_unflatten(eqn.params["tree"], eqn.invars[count:])
    last: Any = transforms[-1]
    indices = list(last.indices)
    old = indices[axis]
    if hasattr(old, "start"):
        index = dataclasses.replace(old, start=index)
    indices[axis] = index
    changed = (*transforms[:-1], dataclasses.replace(last, indices=tuple(indices)))
    leaves, structure = tree.tree_flatten(changed)
    return eqn.replace(
        invars=[*eqn.invars[:count], *leaves], params={**eqn.params, "tree": structure}
    )


def operand_groups(eqn: Any) -> Mapping[str, list[int]]:
    """Which operands of a DMA, a signal or a wait are what: positions by name.

    Names are ``source``, ``target``, ``target_semaphore``, ``source_semaphore`` and ``device`` of a
    ``dma_start`` or ``dma_wait``; ``semaphore``, ``value`` and ``device`` of the others. Seen in
    JAX 0.11.2 and 0.12.0.1.
    """
    names = {
        "dma_start": ("source", "target", "target_semaphore", "source_semaphore", "device"),
        "dma_wait": ("source", "target", "target_semaphore", "source_semaphore", "device"),
        "semaphore_signal": ("semaphore", "transforms", "value", "device", "core"),
        "semaphore_wait": ("semaphore", "transforms", "value", "decrement"),
    }.get(eqn.primitive.name)
    structure = eqn.params.get("tree", eqn.params.get("args_tree"))
    if names is None or structure is None:
        return {}
    tree = importlib.import_module("jax.tree_util")
    positions = [_Position(number) for number in range(len(eqn.invars))]
    if hasattr(structure, "unflatten"):
        parts = structure.unflatten(positions)
    else:
        parts = tree.tree_unflatten(structure, positions)
    if len(parts) == 9:  # JAX 0.11.2: each ref is followed by its transforms
        parts = (parts[0:2], parts[2:4], parts[4:6], parts[6:8], parts[8])
    return {name: list(_positions(part)) for name, part in zip(names, parts, strict=False)}


class _Position:
    """Of an operand. No ``int``, which a slice would take for a part of its structure."""

    def __init__(self, number: int) -> None:
        """The operand of this number."""
        self.number = number


def _positions(part: Any) -> Iterator[int]:
    """The numbers in what was unflattened; a ref with its transforms is no pytree of JAX's."""
    tree = importlib.import_module("jax.tree_util")
    if hasattr(part, "ref") and hasattr(part, "transforms"):
        yield from _positions(part.ref)
        yield from _positions(part.transforms)
        return
    for leaf in tree.tree_leaves(part):
        if isinstance(leaf, _Position):
            yield leaf.number
        elif hasattr(leaf, "ref") and hasattr(leaf, "transforms"):
            yield from _positions(leaf)


def guarded(eqn: Any, condition: Callable[[], Any], axes: Mapping[str, int]) -> Any:
    """A ``pallas_call`` whose programs do nothing where a condition does not hold.

    Args:
      eqn: the equation.
      axes: sizes of the mesh axes around it.
      condition: traces a scalar bool; it may ask for ``pl.program_id`` and ``pl.num_programs``.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    from jax.experimental import pallas as pl

    core = _core()
    partial_eval = importlib.import_module("jax._src.interpreters.partial_eval")
    wrapping = importlib.import_module("jax._src.linear_util")
    body = eqn.params["jaxpr"]

    def run(*refs: Any) -> list[Any]:
        @pl.when(condition())
        def _() -> None:
            core.eval_jaxpr(body, (), *refs)

        return []

    wrapped = wrapping.wrap_init(run, debug_info=body.debug_info)
    named = core.extend_axis_env_nd(list(axes.items()))
    with named, eqn.params["grid_mapping"].trace_env():
        traced = partial_eval.trace_to_jaxpr_dynamic(wrapped, [var.aval for var in body.invars])
    new = traced[0].replace(debug_info=body.debug_info)
    return eqn.replace(params={**eqn.params, "jaxpr": new})


def with_index_map(eqn: Any, position: int, function: Callable[..., Sequence[Any]]) -> Any:
    """A ``pallas_call`` with another index map for a block.

    Args:
      eqn: the equation.
      position: of the block, inputs first.
      function: of the old map's results and the sizes of the grid; it returns as many results.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    mapping = eqn.params["grid_mapping"]
    block = mapping.block_mappings[position]
    closed = block.index_map_jaxpr
    inner = getattr(closed, "jaxpr", closed)
    outs = list(inner.outvars)
    like = inner.eqns[-1] if inner.eqns else eqn
    eqns, results = equations_of(lambda *old: tuple(function(*old)), outs, like)
    new = inner.replace(eqns=[*inner.eqns, *eqns], outvars=list(results))
    changed = closed.replace(jaxpr=new) if hasattr(closed, "jaxpr") else new
    blocks = list(mapping.block_mappings)
    blocks[position] = block.replace(index_map_jaxpr=changed)
    return eqn.replace(
        params={**eqn.params, "grid_mapping": mapping.replace(block_mappings=tuple(blocks))}
    )


def jitted_jaxpr(closed: Any) -> Callable[..., Any]:
    """A function of arrays that evaluates a closed jaxpr. Seen in JAX 0.11.2 and 0.12.0.1."""
    return _core().jaxpr_as_fun(closed)


def closed_with(closed: Any, jaxpr: Any) -> Any:
    """A closed jaxpr with another open one inside. Seen in JAX 0.11.2 and 0.12.0.1."""
    return closed.replace(jaxpr=jaxpr)


def holds_kernels(eqn: Any) -> bool:
    """Whether there are Pallas kernels inside an equation, or it is one."""
    if eqn.primitive.name in KERNEL_PRIMITIVES:
        return True
    return any(holds_kernels(inner) for jaxpr in sub_jaxprs(eqn) for inner in jaxpr.eqns)
