"""Private names of JAX: lowering for chips, also for those that are not there.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.export`` has these options, and the abstract
mesh of a mesh can be of another device. Probe: ``tests/pallas_sim/compat/test_compilers.py``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch


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
    """The primitives named in ``KERNEL_PRIMITIVES``, of the JAX that is installed."""
    places = ("pallas_call:pallas_call_p", "core:core_map_p", "mpmd:mpmd_map_p")
    found: list[Any] = []
    for place in places:
        module, _, name = place.partition(":")
        with suppress(ImportError):
            primitive = getattr(importlib.import_module(f"jax._src.pallas.{module}"), name, None)
            found += [] if primitive is None else [primitive]
    return found


@contextmanager
def meshes_of(chip: Any) -> Generator[None]:
    """Let meshes of this process' devices be meshes of a chip, in ``jax.shard_map`` too.

    ``Mesh.abstract_mesh`` is cached and says "cpu", and in ``shard_map`` it is what a kernel asks
    that wants to know the chip, as ``pltpu.emit_pipeline`` does.

    Args:
      chip: a ``jax.sharding.AbstractDevice``.
    """
    from jax.sharding import AbstractMesh, AxisType, Mesh

    mesh: Any = importlib.import_module("jax._src.mesh")

    def abstract_mesh(of: Any) -> Any:
        if not of.axis_names:
            return mesh.empty_abstract_mesh
        return AbstractMesh(
            of.axis_sizes, of.axis_names, axis_types=of.axis_types, abstract_device=chip
        )

    def manual_mesh(of: Any, axes: Any) -> Any:
        # What this replaces is kept by mesh, and would say afterwards what it says here.
        return of.abstract_mesh.update_axis_types(dict.fromkeys(axes, AxisType.Manual))

    shard_map: Any = importlib.import_module("jax._src.shard_map")
    with (
        patch.object(Mesh, "abstract_mesh", property(abstract_mesh)),
        patch.object(shard_map, "_as_manual_mesh", manual_mesh),
    ):
        yield


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
    """Whether JAX raises an error in place of libtpu's, which is its cause."""
    return type(error).__name__ == "MosaicError"
