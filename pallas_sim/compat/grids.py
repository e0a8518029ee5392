"""Private names of JAX: what a ``pallas_call`` says of its grid and blocks, and of its platform.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.extend.pallas.GridMapping`` is documented.
Probe: ``tests/pallas_sim/compat/test_grids.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pallas_sim.compat.jaxprs import name_of_space

#: With lookahead, a block may be fetched any number of steps ahead.
_ANY_STEP = 2**31


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
      buffers: how many buffers it asks for; None if it does not say.
      any_revisit: whether it asks that blocks may be visited again at any time.
      lookahead: whether it asks for blocks ahead as soon as a buffer is free.
      trivial: whether there is one block, the whole array.
      index_map: its jaxpr, of the grid point and the scalar operands' refs.
      of_dims: from the index map's outputs to one entry for each axis.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    dims: tuple[tuple[str, int, tuple[int, int]], ...]
    space: str
    buffers: int | None
    any_revisit: bool
    lookahead: bool
    trivial: bool
    index_map: Any
    of_dims: Callable[[Sequence[Any]], Sequence[Any]]

    @property
    def lag(self) -> int:
        """How many steps a block is fetched ahead at most, or comes later to the array.

        A step of JAX's pipeline fetches ahead into the free buffers, and ends when all that was
        written back to the others is there.
        """
        return _ANY_STEP if self.lookahead else (self.buffers or 2) - 1

    def starts(self, indices: Sequence[Any]) -> list[Any]:
        """Return the first element of a block along each axis, before the array is padded.

        Args:
          indices: outputs of the index map: numbers, or arrays of them for many grid points. They
            must hold positions in the array, and not only indices of blocks.
        """
        starts: list[Any] = []
        for (kind, size, (low, _)), index in zip(self.dims, self.of_dims(indices), strict=True):
            if kind == "BoundedSlice":
                starts.append(index.start)
            else:
                starts.append(index * size if kind == "Blocked" else index - low)
        return starts


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
      written_for: ``"Mosaic GPU"``, ``"Triton"``, ``"TPUs"``, or "" for anything.
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
    written_for: str


def grid_facts(eqn: Any) -> GridFacts:
    """Return what the equation of a ``pallas_call`` says of its grid and blocks.

    Its operands are the sizes of dynamic dims, the prefetched scalars, the inputs; aliases count
    the latter two, and the body's parameters are these, the outputs and scratch.
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
        written_for=written_for(eqn),
    )


def platform_of(eqn: Any) -> str:
    """Return ``"gpu"`` or ``"tpu"`` if an equation shows what its kernel is for; else ""."""
    return {"": "", "TPUs": "tpu"}.get(written_for(eqn), "gpu")


def written_for(eqn: Any) -> str:
    """Return ``"Mosaic GPU"``, ``"Triton"``, ``"TPUs"``, or "" for anything.

    By the modules that define the parameters, memory spaces and transforms of blocks of a
    ``pallas_call``, and the meshes of ``pl.kernel`` and ``plgpu.kernel``.
    """
    if "grid_mapping" not in eqn.params:
        clues = [eqn.params.get("mesh"), *(eqn.params.get("meshes") or ())]
        return _platform_of(clues)
    mapping, body = eqn.params["grid_mapping"], eqn.params["jaxpr"]
    first = mapping.num_index_operands + len(mapping.block_mappings)
    clues = [eqn.params.get("compiler_params")]
    for block in mapping.block_mappings:
        clues += [block.transformed_block_aval.memory_space, *getattr(block, "transforms", ())]
    clues += [getattr(var.aval, "memory_space", None) for var in body.invars[first:]]
    return _platform_of(clues)


def _platform_of(clues: Sequence[Any]) -> str:
    homes = {f"{type(clue).__module__}." for clue in clues}
    names = {".mosaic_gpu.": "Mosaic GPU", ".triton.": "Triton", ".mosaic.": "TPUs"}
    return next((name for part, name in names.items() if any(part in h for h in homes)), "")


def _block_facts(block: Any, name: str) -> BlockFacts:
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
        space="default" if space is None else name_of_space(space),
        buffers=buffers if isinstance(buffers, int) else None,
        any_revisit=revisit == "any",
        lookahead=bool(getattr(mode, "use_lookahead", False)),
        trivial=block.has_trivial_window(),
        index_map=block.index_map_jaxpr,
        of_dims=lambda leaves: tuple(block.index_map_out_tree.unflatten(leaves)),
    )


@contextmanager
def in_body(eqn: Any, axes: Mapping[str, int]) -> Generator[None]:
    """Trace what a body of a ``pallas_call`` does: it may ask for the grid, and for mesh axes.

    Args:
      eqn: of the ``pallas_call``.
      axes: sizes of the mesh axes around it.
    """
    core: Any = importlib.import_module("jax._src.core")
    with core.extend_axis_env_nd(list(axes.items())), eqn.params["grid_mapping"].trace_env():
        yield
