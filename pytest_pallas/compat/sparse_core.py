"""Private names of JAX: SparseCores in the TPU interpreter, which knows TensorCores only.

It runs a kernel on a mesh of subcores as if there were one, so that ``axis_index`` is 0 for all;
memory that subcores share is one for each; a kernel of several bodies on several meshes is
refused. Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_pallas.compat.cores import require_threads
from pytest_pallas.compat.teams import Teams, with_fields

_MODULE = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"
_MEMORY = "jax._src.pallas.mosaic.interpret.shared_memory"
_MPMD = "jax._src.pallas.mpmd"
_SHARED = "vmem_shared"


@contextmanager
def sparse_core_meshes() -> Generator[None]:
    """Run kernels on meshes of SparseCores with a simulated core for each subcore.

    The grid has one program for each core, in order; each interprets the body of its team.
    ``VMEM_SHARED`` belongs to the first subcore of a SparseCore.
    """
    module: Any = importlib.import_module(_MODULE)
    memory: Any = importlib.import_module(_MEMORY).SharedMemory
    mpmd: Any = importlib.import_module(_MPMD)
    interpret, initialize = module.interpret_pallas_call, module._initialize_shared_memory
    owner, allocate = module._local_core_id_or_zero_if_hbm, memory.allocate_buffer
    space, lower = module._forward_any_to_hbm, mpmd._mpmd_map_fallback_lowering

    def lowered(ctx: Any, *nodes: Any, meshes: Any, jaxprs: Any, **params: Any) -> Any:
        if params["interpret"] and any(is_sparse_core_mesh(mesh) for mesh in meshes):
            teams = Teams(tuple(meshes))
            meshes, jaxprs = [teams], [_by_teams(teams, jaxprs)]
        return lower(ctx, *nodes, meshes=meshes, jaxprs=jaxprs, **params)

    def on_teams(*args: Any, mesh: Any, interpret_params: Any, **params: Any) -> Any:
        if not isinstance(mesh, Teams):
            return interpret(*args, mesh=mesh, interpret_params=interpret_params, **params)
        require_threads(mesh.size)
        params["compiler_params"] = _parallel(params["compiler_params"])
        interpret_params = dataclasses.replace(
            with_fields(interpret_params, teams=mesh), num_cores_or_threads=mesh.size
        )
        with _grid_in_order(module):
            return interpret(*args, mesh=None, interpret_params=interpret_params, **params)

    @functools.wraps(initialize)
    def initialized(*args: Any, interpret_params: Any) -> Any:
        token = initialize(*args, interpret_params=interpret_params)
        module._shared_memory.teams = getattr(interpret_params, "teams", None)
        return token

    def owned(core: int, space: str) -> int:
        if space == _SHARED:
            return sparse_core(module._shared_memory, core)[0]
        return owner(core, space)

    def allocated(self: Any, key: Any, ref_count: int, *args: Any, **options: Any) -> None:
        if key[0] == _SHARED:
            sharing = sparse_core(self, key[3])
            key = (*key[:3], sharing[0])
            ref_count = len(sharing)  # each leaves the scope of the allocation
        allocate(self, key, ref_count, *args, **options)

    def of_any_core(memory_space: Any) -> Any:
        return space(_without_core(memory_space))

    with ExitStack() as stack:
        for place, name, value in (
            (mpmd, "_mpmd_map_fallback_lowering", lowered),
            (module, "interpret_pallas_call", on_teams),
            (module, "_initialize_shared_memory", initialized),
            (module, "_local_core_id_or_zero_if_hbm", owned),
            (module, "_forward_any_to_hbm", of_any_core),
            (memory, "allocate_buffer", allocated),
        ):
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        yield


def sparse_core(memory: Any, core: int) -> tuple[int, ...]:
    """The simulated cores that share memory with one of them, itself included."""
    return memory.teams.sparse_core(core) if memory.teams else (core,)


def is_sparse_core_mesh(mesh: Any) -> bool:
    """Whether a mesh is one of scalar or vector subcores."""
    return type(mesh).__name__ in ("ScalarSubcoreMesh", "VectorSubcoreMesh")


@functools.cache
def bodies_primitive() -> Any:
    """The equation that is a whole kernel: the bodies of its teams, in ``jaxprs``."""
    from jax.extend.core import Primitive

    primitive = Primitive("pytest_pallas_bodies")
    primitive.multiple_results = True
    return primitive


def _by_teams(teams: Teams, jaxprs: Sequence[Any]) -> Any:
    """One body for all cores."""
    core: Any = importlib.import_module("jax._src.core")
    first = jaxprs[0]
    effects = frozenset().union(*(jaxpr.effects for jaxpr in jaxprs))
    eqn = core.new_jaxpr_eqn(
        [*first.invars],
        [],
        bodies_primitive(),
        {"jaxprs": tuple(jaxprs), "teams": teams},
        core.no_effects,
        first.eqns[0].source_info if first.eqns else None,
    )
    return first.replace(eqns=[eqn], outvars=[], effects=effects)


def _without_core(memory_space: Any) -> Any:
    """A memory space, without the mesh whose cores have it."""
    if type(memory_space).__name__ == "CoreMemorySpace":
        return memory_space.memory_space
    return memory_space


def _parallel(params: Any) -> Any:
    if params is None:
        params = importlib.import_module("jax._src.pallas.mosaic.core").CompilerParams()
    return dataclasses.replace(params, dimension_semantics=("parallel",))


@contextmanager
def _grid_in_order(module: Any) -> Generator[None]:
    """Program ``i`` of a parallel grid is that of core ``i``, and not of one that was drawn."""
    coordinates = module._get_randomized_grid_coordinates
    module._get_randomized_grid_coordinates = lambda grid, *_: (
        (module.jnp.array((), dtype=module.jnp.int32),) * len(grid)
    )
    try:
        yield
    finally:
        module._get_randomized_grid_coordinates = coordinates
