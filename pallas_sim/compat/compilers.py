"""Private names of JAX: lowering for chips that are not there, and what that decides.

First the options of the lowering (of ``jax.export``, ``interpret=``, the mesh, Triton's verifier);
then what Mosaic GPU decides in it: tiles and bytes of shared memory, which no kernel says.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.export`` has these options, the abstract mesh
of a mesh can be of another device, kernels say their tiles, and JAX has a public function for their
shared memory. Probe: ``tests/pallas_sim/compat/test_compilers.py`` and
``tests/pallas_sim/compat/test_tiles.py``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any
from unittest.mock import patch

from pallas_sim.compat.jaxprs import is_reference


@contextmanager
def exact_exports() -> Generator[None]:
    """Let ``jax.export`` lower kernels as ``jax.jit`` does, and alike wherever that is called.

    By default it lowers for compilers that are older than this JAX, and notes with every operation
    the whole call stack, down to the test runner's. The user's own line is noted still.
    """
    config: Any = importlib.import_module("jax._src.config")
    with (
        config.export_ignore_forward_compatibility(True),
        config.include_full_tracebacks_in_locations(False),
    ):
        yield


@contextmanager
def interpret_ignored() -> Generator[None]:
    """Make every Pallas kernel that is traced one to compile, whatever it says of interpret=.

    Many packages choose ``interpret=True`` by themselves where the default backend is the CPU. All
    ways to a kernel, also those imported by name, end in the ``bind`` of a primitive.
    """
    _hide_this_file()
    primitives = _kernel_primitives()

    def compiled(primitive: Any) -> Any:
        def bind(*args: Any, **params: Any) -> Any:
            if "interpret" in params:
                params["interpret"] = False
            return type(primitive).bind(primitive, *args, **params)

        return bind

    for primitive in primitives:
        primitive.bind = compiled(primitive)
    try:
        yield
    finally:
        for primitive in primitives:
            del primitive.bind


@functools.cache
def _hide_this_file() -> None:
    """Keep JAX from taking a line of this file for the user's, where it wraps a function of JAX."""
    importlib.import_module("jax.extend.source_info_util").register_exclusion(__file__)


def _kernel_primitives() -> list[Any]:
    """Return the primitives named in ``KERNEL_PRIMITIVES``, of the JAX that is installed."""
    places = ("pallas_call:pallas_call_p", "core:core_map_p", "mpmd:mpmd_map_p")
    primitives: list[Any] = []
    for path in places:
        module, _, name = path.partition(":")
        with suppress(ImportError):
            primitive = getattr(importlib.import_module(f"jax._src.pallas.{module}"), name, None)
            primitives += [] if primitive is None else [primitive]
    return primitives


@contextmanager
def meshes_of(current: Callable[[], Any]) -> Generator[None]:
    """Let meshes of this process' devices be meshes of a chip, in ``jax.shard_map`` too.

    ``Mesh.abstract_mesh`` is cached and says "cpu", and in ``shard_map`` it is what a kernel asks
    that wants to know the chip, as ``pltpu.emit_pipeline`` does. An ``AbstractMesh`` of no device
    says nothing. What JAX keeps of the chip by mesh is forgotten before and after.

    Args:
      current: gives the chip, a ``jax.sharding.AbstractDevice``, or None for what is there.
    """
    from jax.sharding import AbstractMesh, AxisType, Mesh, use_abstract_mesh

    shard_map: Any = importlib.import_module("jax._src.shard_map")
    tpu: Any = importlib.import_module("jax.experimental.pallas.tpu")
    forget = tpu.get_tpu_info.cache_clear
    own, manual = vars(Mesh)["abstract_mesh"], shard_map._as_manual_mesh
    begin: Any = use_abstract_mesh.__init__

    def on_chip(of: Any) -> Any:
        """Return an abstract mesh with the chip, where it has no device."""
        chip = current()
        if chip is None or of.empty or of.abstract_device is not None:
            return of
        return of.update(abstract_device=chip)

    def abstract_mesh(of: Any) -> Any:
        chip = current()
        if chip is None or not of.axis_names:
            return own.__get__(of, Mesh)
        return AbstractMesh(
            of.axis_sizes, of.axis_names, axis_types=of.axis_types, abstract_device=chip
        )

    def manual_mesh(of: Any, axes: Any) -> Any:
        if current() is None:
            return manual(of, axes)
        # What this replaces is kept by mesh, and would say afterwards what it says here.
        return on_chip(of.abstract_mesh).update_axis_types(dict.fromkeys(axes, AxisType.Manual))

    def use(self: Any, of: Any) -> None:
        begin(self, on_chip(of))

    with (
        patch.object(Mesh, "abstract_mesh", property(abstract_mesh)),
        patch.object(shard_map, "_as_manual_mesh", manual_mesh),
        patch.object(use_abstract_mesh, "__init__", use),
    ):
        forget()
        try:
            yield
        finally:
            forget()


#: Modules of JAX, besides those of Pallas, that read which chip a kernel is for. The others need to
#: know what the devices are on which they run arrays, as for the shape of a mesh.
_OF_KERNELS = ("jax._src.tpu_info", "jax.experimental.mosaic.gpu.utils")

#: The module of the functions by which others ask for devices and platforms.
_OF_BACKENDS = "jax._src.xla_bridge"


def asks_for_the_chip(frame: FrameType | None) -> bool:
    """Return whether an attribute of a device is read for a kernel, and not by JAX for itself.

    Args:
      frame: of the function that answers.
    """
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_globals.get("__name__") == _OF_BACKENDS:
        frame = frame.f_back
    name: str = "" if frame is None else frame.f_globals.get("__name__", "")
    own = name.partition(".")[0] in ("jax", "jaxlib")
    return not own or "pallas" in name or name in _OF_KERNELS


@functools.cache
def primitives_of_cores(kind: str) -> frozenset[str]:
    """Return the names of the primitives that JAX lowers for a kind of cores of a TPU.

    Args:
      kind: ``"tc"``, ``"sc_scalar_subcore"`` or ``"sc_vector_subcore"``.
    """
    tpu: Any = importlib.import_module("jax.experimental.pallas.tpu")
    lowering: Any = importlib.import_module("jax._src.pallas.mosaic.lowering")
    if kind != "tc":
        importlib.import_module("jax._src.pallas.mosaic.sc_lowering")
        importlib.import_module("jax._src.pallas.mosaic.sc_primitives")
    return frozenset(primitive.name for primitive in lowering.lowering_rules[tpu.CoreType(kind)])


def vectors_of_subcores(dtype: Any) -> Sequence[tuple[int, ...]]:
    """Return the shapes that a vector of a SparseCore has, of the chip that is traced for."""
    core: Any = importlib.import_module("jax._src.pallas.mosaic.sc_core")
    return core.supported_shapes(dtype)


@functools.cache
def primitives_of_mosaic_gpu(semantics: Any, *, warp: bool) -> frozenset[str]:
    """Return the names of the primitives that JAX's Mosaic GPU lowers.

    Args:
      semantics: the ``lowering_semantics`` of ``plgpu.CompilerParams``; None for the default.
      warp: for one warp, and not for a warpgroup.
    """
    core: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.core")
    lowering: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.lowering")
    if semantics is None:
        plgpu: Any = importlib.import_module("jax.experimental.pallas.mosaic_gpu")
        semantics = plgpu.CompilerParams().lowering_semantics
    who = core.PrimitiveSemantics.Warp if warp else core.PrimitiveSemantics.Warpgroup
    return frozenset(primitive.name for primitive in lowering.mosaic_lowering_rules[semantics, who])


@contextmanager
def lowering_to_triton() -> Generator[list[Any]]:
    """Let JAX's lowering to Triton verify each module, as XLA does when it reads it.

    By itself the lowering verifies reductions only. The verifier raises an ``MLIRError``, for
    arrays whose size is no power of two, or more than Triton allows.

    Gives a list, which holds the equations of the kernel that were being lowered when an error came
    out: one inside of the other, the innermost last.
    """
    lowering: Any = importlib.import_module("jax._src.pallas.triton.lowering")
    _name_operations(lowering)
    original = lowering.lower_jaxpr_to_triton_module
    equations: list[Any] = []

    @functools.wraps(original)
    def verified(*args: Any, **kwargs: Any) -> Any:
        try:
            lowered = original(*args, **kwargs)
        except Exception as error:
            frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
            inner = lowering.lower_jaxpr_to_triton_ir.__code__
            equations.extend(frame.f_locals["eqn"] for frame in frames if frame.f_code is inner)
            raise
        lowered.module.operation.verify()
        return lowered

    with patch.object(lowering, "lower_jaxpr_to_triton_module", verified):
        yield equations


@functools.cache
def _name_operations(lowering: Any) -> None:
    """Let MLIR find the module of Triton's operations under the name of their dialect.

    For each operation of a dialect, MLIR's bindings import a module of its name, and ask all
    finders again until there is one. ``jaxlib`` keeps Triton's elsewhere, and looking for them was
    a third of a lowering.
    """
    name = "jaxlib.mlir.dialects.tt"
    operations = getattr(lowering, "tt_dialect", None)
    if operations is not None and importlib.util.find_spec(name) is None:
        sys.modules[name] = operations


def is_compiler_error(error: BaseException) -> bool:
    """Return whether JAX raises an error in place of libtpu's, which is its cause."""
    return type(error).__name__ == "MosaicError"


# The tiles that Mosaic GPU chooses for shared memory.
#
# Under ``LoweringSemantics.Warpgroup``, the default, JAX infers how shared memory is tiled where a
# kernel does not say it. That is part of its lowering, which needs no GPU and takes tenths of a
# second.


#: Names a copy: the identities of the trees of its transforms, which its equation keeps.
type CopyKey = tuple[int, int]

_COPIES = ("copy_gmem_to_smem_p", "copy_smem_to_gmem_p")
_OPERATIONS = ("mosaic_gpu.async_load", "mosaic_gpu.async_store")
_NUMBER = "pallas_sim.copy"


def key_of(params: Mapping[str, Any]) -> CopyKey:
    """Return names the copy with these parameters, as long as its equation lives."""
    return id(params["src_transforms_treedef"]), id(params["dst_transforms_treedef"])


def infers_tiles(compiler_params: Any) -> bool:
    """Return whether JAX infers the tiles of shared memory for a kernel with these parameters."""
    semantics = getattr(compiler_params, "lowering_semantics", None)
    return compiler_params is None or getattr(semantics, "name", "") == "Warpgroup"


class _InferredError(Exception):
    """Ends a lowering whose tiles are known."""


def inferred_tiles(
    params: Mapping[str, Any], avals: Sequence[Any], axes: Mapping[str, int]
) -> dict[CopyKey, tuple[int, ...]]:
    """Return the tiles that JAX infers for the shared memory of each copy of a ``plgpu.kernel``.

    Args:
      params: of its ``mpmd_map``.
      avals: of its operands.
      axes: sizes of the mesh's axes that it is mapped over.

    Returns:
      For each copy by TMA the tiles of the part of shared memory along its last axes, () for none.

    Raises:
      Exception: JAX cannot lower the kernel.
    """
    lowering: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.lowering")
    inference: Any = importlib.import_module("jax.experimental.mosaic.gpu.layout_inference")
    primitives: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.primitives")
    keys: list[CopyKey] = []
    tiles: dict[CopyKey, tuple[int, ...]] = {}
    infer = inference.infer_layout

    def read(module: Any, *args: Any, **options: Any) -> None:
        infer(module, *args, **options)
        for number, inferred in _tiles_in(module.operation):
            tiles[keys[number]] = inferred
        raise _InferredError

    with ExitStack() as stack:
        for rules in lowering.mosaic_lowering_rules.values():
            changed = {
                primitive: _numbered(rules[primitive], keys)
                for primitive in (getattr(primitives, name) for name in _COPIES)
                if primitive in rules
            }
            stack.enter_context(patch.dict(rules, changed))
        stack.enter_context(patch.object(inference, "infer_layout", read))
        with suppress(_InferredError):
            _lower(params, avals, axes)
    return tiles


def _numbered(rule: Callable[..., Any], keys: list[CopyKey]) -> Callable[..., Any]:
    """Return the lowering rule of a copy, which notes the copy and numbers its operation."""
    from jax.extend.mlir import ir

    def lower(context: Any, *args: Any, **params: Any) -> Any:
        results = rule(context, *args, **params)
        operation = list(ir.InsertionPoint.current.block.operations)[-1].operation
        if operation.name in _OPERATIONS:
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(keys))
            operation.attributes[_NUMBER] = number
            keys.append(key_of(params))
        return results

    return lower


def _tiles_in(operation: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the number and the tiles of each numbered copy inside of an operation."""
    from jax.extend.mlir import ir

    mosaic: Any = importlib.import_module("jax.experimental.mosaic.gpu")
    kind = mosaic.dialect.TileTransformAttr
    for region in operation.regions:
        for block in region:
            for op in block:
                inner = op.operation
                if _NUMBER in inner.attributes:
                    number = ir.IntegerAttr(inner.attributes[_NUMBER]).value
                    transforms: Any = ir.ArrayAttr(inner.attributes["in_transforms"])[0]
                    tiled = [transform for transform in transforms if isinstance(transform, kind)]
                    yield number, tuple(map(int, tiled[0].tiling)) if tiled else ()
                yield from _tiles_in(inner)


def _lower(params: Mapping[str, Any], avals: Sequence[Any], axes: Mapping[str, int]) -> None:
    """Lower a kernel for CUDA, with an array for each operand."""
    import jax
    from jax.sharding import AbstractMesh, AxisType, PartitionSpec

    mpmd: Any = importlib.import_module("jax._src.pallas.mpmd")
    in_memory = [is_reference(aval) for aval in avals]

    def launch(*arrays: Any) -> Any:
        operands = [
            jax.new_ref(array) if wrapped else array
            for array, wrapped in zip(arrays, in_memory, strict=True)
        ]
        return mpmd.mpmd_map_p.bind(*operands, **params)

    whole: Any = launch
    if axes:
        types = (AxisType.Auto,) * len(axes)
        mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types)
        whole = jax.shard_map(
            launch, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
        )
    arrays = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    jax.jit(whole).trace(*arrays).lower(lowering_platforms=("cuda",))


# The shared memory that a Mosaic GPU kernel is launched with; its probe is ``test_resources.py``.


#: Bytes of a barrier, and of the address of tensor memory, which the hardware writes there.
_BARRIER, _ADDRESS = 8, 4

#: What a profiler keeps of an event: two ends, each of two words.
_EVENT = 2 * 2 * 4


def requested_shared_bytes(jaxpr: Any, mesh: Any, params: Any) -> int | None:
    """Return bytes of shared memory that a block of a Mosaic GPU kernel is launched with.

    JAX's own estimate gives the scratch and the barriers (``_estimate_resources`` in
    ``jax/_src/pallas/mosaic_gpu/lowering.py``), so the number follows the JAX that is installed.
    They lie as ``_smem_tree_size`` and ``_launch`` in ``jax/experimental/mosaic/gpu/core.py`` say.

    Args:
      jaxpr: body of the kernel.
      mesh: its ``plgpu.Mesh``.
      params: its ``plgpu.CompilerParams``, or None for the default.

    Returns:
      The bytes, or None for a kernel that JAX does not lower.
    """
    lowering: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.lowering")
    plgpu: Any = importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    params = plgpu.CompilerParams() if params is None else params
    axes = lowering._AxisNames(mesh.grid_names, mesh.cluster_names, mesh.thread_name)
    context = lowering.ResourceEstimatorContext(
        reduction_scratch_bytes=params.reduction_scratch_bytes,
        axis_names=axes.reverse(),
        lowering_semantics=params.lowering_semantics,
    )
    try:
        resources = lowering._estimate_resources(context, jaxpr)
    except (NotImplementedError, ValueError, LookupError):
        return None
    barriers = sum(barrier.num_barriers for barrier in resources.barriers)
    size = resources.smem_scratch_bytes + _BARRIER * barriers
    if resources.tmem_scratch_cols + resources.tmem_collective_scratch_cols:
        size += _ADDRESS
    if params.profile_space:
        threads = 128 * (mesh.num_threads or 1)
        by_warp = params.profile_trace_scope.name == "WARP"
        traces = threads // (32 if by_warp else 128)
        size = math.ceil(size / 8) * 8 + params.profile_space * _EVENT * traces
    return size
