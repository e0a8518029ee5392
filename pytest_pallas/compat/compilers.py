"""Private names of JAX: lowering for chips, also for those that are not there."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any


@contextmanager
def exact_exports() -> Generator[None]:
    """Let ``jax.export`` lower kernels as ``jax.jit`` does, and alike wherever that is called.

    By default it lowers for compilers that are older than this JAX, and notes with every operation
    the whole call stack, down to the test runner's. The user's own line is noted still. The options
    have no public context managers. Seen in JAX 0.11.2 and 0.12.0.1.
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
    ways to a kernel, also those imported by name, end in the ``bind`` of a primitive. Seen in JAX
    0.11.2 and 0.12.0.1.
    """
    primitives = _kernel_primitives()
    _hide_this_file()

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
    """Keep JAX from taking a line of this file for the user's, where it wraps a function of JAX.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    importlib.import_module("jax._src.source_info_util").register_exclusion(__file__)


@contextmanager
def devices_answer(chip: Any, names: Sequence[str]) -> Generator[None]:
    """Let this process' devices answer as a chip does, and meshes of them be meshes of it.

    Kernels ask ``jax.default_backend()`` and ``jax.devices()[0]`` which platform, chip and number
    of cores they have, also for choosing ``interpret=`` or no kernel at all. JAX itself asks other
    functions for what it does on the devices that are there. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      chip: a ``jax.sharding.AbstractDevice`` with ``answer(name)``.
      names: attributes of ``jax.Device`` that it answers.
    """
    import jax

    def answering(name: str) -> Any:
        return property(lambda _: chip.answer(name))

    with ExitStack() as stack:
        stack.enter_context(device_attributes({name: answering(name) for name in names}))
        stack.enter_context(meshes_of(chip))
        stack.enter_context(_replaced(jax, "default_backend", lambda: chip.platform))
        yield


@contextmanager
def device_attributes(values: Mapping[str, Any]) -> Generator[None]:
    """Let this process' devices have attributes that they lack, such as ``core_count``.

    Args:
      values: by name; a property is asked for its value.
    """
    import jax

    with ExitStack() as stack:
        for name, value in values.items():
            stack.enter_context(_replaced(jax.Device, name, value))
        yield


@contextmanager
def meshes_of(chip: Any) -> Generator[None]:
    """Let meshes of this process' devices be meshes of a chip, in ``jax.shard_map`` too.

    ``Mesh.abstract_mesh`` is cached and says "cpu", and in ``shard_map`` it is what a kernel asks
    that wants to know the chip, as ``pltpu.emit_pipeline`` does. Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      chip: a ``jax.sharding.AbstractDevice``.
    """
    mesh: Any = importlib.import_module("jax._src.mesh")

    def abstract_mesh(of: Any) -> Any:
        if not of.axis_names:
            return mesh.empty_abstract_mesh
        return mesh.AbstractMesh(
            of.axis_sizes, of.axis_names, axis_types=of.axis_types, abstract_device=chip
        )

    def manual_mesh(of: Any, axes: Any) -> Any:
        # What this replaces is kept by mesh, and would say afterwards what it says here.
        return of.abstract_mesh.update_axis_types(dict.fromkeys(axes, mesh.AxisType.Manual))

    with ExitStack() as stack:
        stack.enter_context(_replaced(mesh.Mesh, "abstract_mesh", property(abstract_mesh)))
        shard_map: Any = importlib.import_module("jax._src.shard_map")
        stack.enter_context(_replaced(shard_map, "_as_manual_mesh", manual_mesh))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Generator[None]:
    """Set an attribute of a class or module, and put back what was there, if it was."""
    before = vars(owner).get(name, owner)  # owner: nothing was there
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is owner:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


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
