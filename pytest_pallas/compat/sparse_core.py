"""Private names of JAX: SparseCores in the TPU interpreter, which knows TensorCores only.

It runs a kernel on a mesh of subcores as if there were one, so that ``axis_index`` is 0 for all;
memory that subcores share is one for each. Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_pallas.compat.jaxprs import sub_jaxprs

_MODULE = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"
_MEMORY = "jax._src.pallas.mosaic.interpret.shared_memory"
_SHARED = "vmem_shared"


@contextmanager
def sparse_core_meshes() -> Generator[None]:
    """Run kernels on meshes of SparseCores with a simulated core for each subcore.

    The grid is the mesh, one program for each core of it in order, and axis names are those of the
    grid: ``axis_index`` is what the interpreter then knows by itself. ``VMEM_SHARED`` belongs to
    the first subcore of a SparseCore.
    """
    module: Any = importlib.import_module(_MODULE)
    memory: Any = importlib.import_module(_MEMORY).SharedMemory
    interpret, initialize = module.interpret_pallas_call, module._initialize_shared_memory
    owner, allocate = module._local_core_id_or_zero_if_hbm, memory.allocate_buffer

    def on_mesh(*args: Any, mesh: Any, interpret_params: Any, **params: Any) -> Any:
        if not is_sparse_core_mesh(mesh):
            return interpret(*args, mesh=mesh, interpret_params=interpret_params, **params)
        params["compiler_params"] = _all_parallel(params["compiler_params"], len(mesh.shape))
        interpret_params = dataclasses.replace(
            _with_subcores(interpret_params, subcores=getattr(mesh, "num_subcores", 1)),
            num_cores_or_threads=mesh.size,
        )
        with _grid_in_order(module):
            return interpret(*args, mesh=None, interpret_params=interpret_params, **params)

    @functools.wraps(initialize)
    def initialized(*args: Any, interpret_params: Any) -> Any:
        token = initialize(*args, interpret_params=interpret_params)
        module._shared_memory.subcores = getattr(interpret_params, "subcores", 1)
        return token

    def owned(core: int, space: str) -> int:
        if space == _SHARED:
            return first_subcore(module._shared_memory, core)
        return owner(core, space)

    def allocated(self: Any, key: Any, ref_count: int, *args: Any, **options: Any) -> None:
        if key[0] == _SHARED:
            key = (*key[:3], first_subcore(self, key[3]))
            ref_count = self.subcores  # each leaves the scope of the allocation
        allocate(self, key, ref_count, *args, **options)

    with ExitStack() as stack:
        for place, name, value in (
            (module, "interpret_pallas_call", on_mesh),
            (module, "_initialize_shared_memory", initialized),
            (module, "_local_core_id_or_zero_if_hbm", owned),
            (memory, "allocate_buffer", allocated),
        ):
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        yield


def is_sparse_core_mesh(mesh: Any) -> bool:
    """Whether a mesh is one of scalar or vector subcores."""
    return type(mesh).__name__ in ("ScalarSubcoreMesh", "VectorSubcoreMesh")


def first_subcore(memory: Any, core: int) -> int:
    """The first subcore of the SparseCore that a simulated core belongs to."""
    return core - core % memory.subcores


def _all_parallel(params: Any, dimensions: int) -> Any:
    if params is None:
        params = importlib.import_module("jax._src.pallas.mosaic.core").CompilerParams()
    return dataclasses.replace(params, dimension_semantics=("parallel",) * dimensions)


def _with_subcores(params: Any, *, subcores: int) -> Any:
    """The interpreter's parameters, and the number of subcores of a SparseCore."""
    fields = [("subcores", int, dataclasses.field(default=1))]
    extended: Any = dataclasses.make_dataclass(
        "SparseCoreParams", fields, bases=(type(params),), frozen=True, kw_only=True
    )
    known = {each.name: getattr(params, each.name) for each in dataclasses.fields(params)}
    return extended(**known, subcores=subcores)


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


@contextmanager
def subcores_interpreted() -> Generator[None]:
    """Let the TPU interpreter run the operations that only SparseCores have."""
    from pytest_pallas.compat.equations import interpreted_by
    from pytest_pallas.compat.subcores import subcore_rule

    with interpreted_by(subcore_rule):
        yield


def subcore_operations(jaxpr: Any) -> Iterator[str]:
    """Names of the operations of a kernel's body that are run by rules of our own."""
    from pytest_pallas.compat.subcores import subcore_rule

    for eqn in jaxpr.eqns:
        if subcore_rule(eqn):
            yield eqn.primitive.name
        for inner in sub_jaxprs(eqn):
            yield from subcore_operations(inner)
