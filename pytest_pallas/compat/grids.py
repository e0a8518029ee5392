"""Private names of JAX: what a ``pallas_call`` says of its grid and blocks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BlockFacts:
    """What a ``pallas_call`` says of the blocks of one operand.

    Attributes:
      name: of the body's parameter, or where the operand came from.
      shape: of the whole array.
      dtype: of the whole array.
      dims: for each axis its kind (``"Blocked"``, ``"Squeezed"``, ``"Element"``,
        ``"BoundedSlice"``, ``"Indirect"``), the size of a block and the padding before and after.
      space: the memory space of the blocks, in lower case.
      home: the module that defines that memory space.
      buffers: how many buffers it asks for; None if it does not say.
      any_revisit: whether it asks that blocks may be visited again at any time.
      index_map: its jaxpr, of the grid point and the scalar operands' refs.
      of_dims: from the index map's outputs to one entry for each axis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    dims: tuple[tuple[str, int, tuple[int, int]], ...]
    space: str
    home: str
    buffers: int | None
    any_revisit: bool
    index_map: Any
    of_dims: Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class GridFacts:
    """What a ``pallas_call`` says of its grid.

    Attributes:
      grid: its sizes; None where one is given by an operand.
      axes: the name of each dim, where the grid gives names; else empty.
      vmapped: the dims that ``jax.vmap`` has added, which the body does not count.
      sizes: positions of the operands that give the sizes of dynamic dims.
      scalars: positions of the operands that are prefetched.
      inputs: blocks of the inputs.
      outputs: blocks of the outputs.
      scratch: name and aval of the scratch operands.
      aliases: pairs of an input and the output that shares its memory.
      params: the compiler params, or None.
    """

    grid: tuple[int | None, ...]
    axes: tuple[Any, ...]
    vmapped: tuple[int, ...]
    sizes: tuple[int, ...]
    scalars: tuple[int, ...]
    inputs: tuple[BlockFacts, ...]
    outputs: tuple[BlockFacts, ...]
    scratch: tuple[tuple[str, Any], ...]
    aliases: tuple[tuple[int, int], ...]
    params: Any


def grid_facts(eqn: Any) -> GridFacts:
    """What the equation of a ``pallas_call`` says of its grid and blocks.

    Its operands are the sizes of dynamic dims, the prefetched scalars, the inputs; aliases count
    the latter two, and the body's parameters are these, the outputs and scratch. Seen in JAX 0.11.2
    and 0.12.0.1.
    """
    mapping, body = eqn.params["grid_mapping"], eqn.params["jaxpr"]
    grid = tuple(n if isinstance(n, int) else None for n in mapping.grid)
    dynamic, scalars, inputs = grid.count(None), mapping.num_index_operands, mapping.num_inputs
    names = list(getattr(body.debug_info, "arg_names", None) or ())
    names += [""] * (len(body.invars) - len(names))
    blocks = [
        _block_facts(block, name)
        for block, name in zip(mapping.block_mappings, names[mapping.slice_block_ops], strict=True)
    ]
    scratch = range(scalars + len(blocks), len(body.invars))
    return GridFacts(
        grid=grid,
        axes=tuple(mapping.grid_names or ()),
        vmapped=tuple(mapping.vmapped_dims),
        sizes=tuple(range(dynamic)),
        scalars=tuple(range(dynamic, dynamic + scalars)),
        inputs=tuple(blocks[:inputs]),
        outputs=tuple(blocks[inputs:]),
        scratch=tuple((names[i] or f"scratch {i}", body.invars[i].aval) for i in scratch),
        aliases=tuple((int(i) - scalars, int(o)) for i, o in eqn.params["input_output_aliases"]),
        params=eqn.params.get("compiler_params"),
    )


def homes_of_kernel(eqn: Any) -> frozenset[str]:
    """The modules that define what a ``pallas_call`` says of its platform.

    That is its compiler parameters, the memory spaces of its blocks and scratch operands, and what
    is done to its blocks. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    mapping, body = eqn.params["grid_mapping"], eqn.params["jaxpr"]
    first = mapping.num_index_operands + len(mapping.block_mappings)
    said: list[Any] = [eqn.params.get("compiler_params")]
    for block in mapping.block_mappings:
        said += [block.transformed_block_aval.memory_space, *getattr(block, "transforms", ())]
    said += [getattr(var.aval, "memory_space", None) for var in body.invars[first:]]
    return frozenset(type(each).__module__ for each in said if each is not None)


def _block_facts(block: Any, name: str) -> BlockFacts:
    tree = importlib.import_module("jax.tree_util")
    dims: list[tuple[str, int, tuple[int, int]]] = []
    for dim in block.block_shape:
        kind = "Blocked" if isinstance(dim, int) else type(dim).__name__
        kind = "Squeezed" if dim is None else kind
        size = 1 if kind == "Squeezed" else int(getattr(dim, "block_size", dim) or 0)
        low, high = getattr(dim, "padding", (0, 0))
        dims.append((kind, size, (int(low), int(high))))
    space = block.transformed_block_aval.memory_space
    mode = block.pipeline_mode
    buffers = getattr(mode, "buffer_count", None)
    revisit = getattr(getattr(mode, "revisit", None), "value", None)
    return BlockFacts(
        name=name or block.origin,
        shape=tuple(block.array_aval.shape),
        dtype=block.array_aval.dtype,
        dims=tuple(dims),
        space="default" if space is None else str(space).lower().rpartition(".")[2],
        home=type(space).__module__,
        buffers=buffers if isinstance(buffers, int) else None,
        any_revisit=revisit == "any",
        index_map=block.index_map_jaxpr,
        of_dims=lambda leaves: tuple(tree.tree_unflatten(block.index_map_out_tree, list(leaves))),
    )


def window_of(ref_eqn: Any, operands: Sequence[Any]) -> list[Any] | None:
    """The index of each axis of a ref in a ``get``, ``swap`` or ``addupdate``.

    None if it cannot be followed: the ref is reshaped or indexed twice. An entry is a number or
    one of ``operands`` for a single index, or an object with ``start``, ``size`` and ``stride``.
    An empty list is the whole ref. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      ref_eqn: the equation.
      operands: what it has after the ref, and the value if it has one.
    """
    tree = importlib.import_module("jax.tree_util")
    transforms: Any = tree.tree_unflatten(ref_eqn.params["tree"], list(operands))
    transforms = transforms if isinstance(transforms, (tuple, list)) else (transforms,)
    return _indices(transforms)


def masked_window(ref_eqn: Any, operands: Sequence[Any]) -> tuple[list[Any] | None, Any, bool]:
    """The indices of a ``masked_load`` or ``masked_swap``, the value, and whether it has a mask.

    As ``window_of``; the value is None for a load. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    tree = importlib.import_module("jax.tree_util")
    parts: Any = tree.tree_unflatten(ref_eqn.params["args_tree"], list(operands))
    transforms, rest = parts[1], parts[2:]
    if ref_eqn.primitive.name == "masked_swap":
        return _indices(transforms), rest[0], rest[1] is not None
    return _indices(transforms), None, rest[0] is not None


def _indices(transforms: Sequence[Any]) -> list[Any] | None:
    if not transforms:
        return []
    if len(transforms) != 1 or type(transforms[0]).__name__ != "NDIndexer":
        return None
    return list(transforms[0].indices)


def batched_index_map(index_map: Any, points: Any, scalars: Sequence[Any]) -> Any:
    """An index map of many grid points, as a closed jaxpr of ``points`` and ``scalars``.

    Its first outputs are those of the map, an array[points] each; after them come the scalars,
    which are refs in the map and are discharged. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      index_map: its jaxpr.
      points: int32[dims, points], with one dim at least.
      scalars: values of the scalar operands.
    """
    import jax

    discharge: Any = importlib.import_module("jax._src.state.discharge")
    core: Any = importlib.import_module("jax._src.core")
    pure = core.jaxpr_as_fun(discharge.discharge_state(index_map, strip_memory_space=True))
    axes = (*(0,) * len(points), *(None,) * len(scalars))
    return jax.make_jaxpr(jax.vmap(pure, axes))(*points, *scalars)


def bind(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation on concrete values.

    ``jax.core`` exports no such function for one equation. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    params = eqn.primitive.get_bind_params(eqn.params)
    if isinstance(params, tuple):  # functions that are passed as operands, and the rest
        functions, params = params  # pyright: ignore[reportUnknownVariableType]
        values = [*functions, *values]  # pyright: ignore[reportUnknownVariableType]
    results = eqn.primitive.bind(*values, **params)
    return results if eqn.primitive.multiple_results else [results]
