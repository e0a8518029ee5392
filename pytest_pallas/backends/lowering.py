"""Trace and lower a call on the CPU, for the compiler of another chip."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jax import export

from pallas_sim import chips as gpus
from pallas_sim.chips import Target
from pallas_sim.compat.compilers import exact_exports, interpret_ignored
from pallas_sim.tracing import AbsentChip, present
from pytest_pallas.analysis import kernel_calls, live_kernel_calls
from pytest_pallas.backends.ending import ending
from pytest_pallas.backends.protocol import Call, expected_warnings
from pytest_pallas.backends.tracing import jitted, signature
from pytest_pallas.compilers import cuda, libtpu, tpu_chips
from pytest_pallas.errors import CompileError, NoPallasCallError
from pytest_pallas.notes import Note

if TYPE_CHECKING:
    from pytest_pallas.analysis import KernelCall

#: Names of the platforms in ``jax.export``.
_EXPORTED = {"tpu": "tpu", "gpu": "cuda"}

#: Names of the custom calls of Pallas kernels.
_CUSTOM_CALLS = {"tpu": libtpu.CUSTOM_CALLS, "gpu": cuda.CUSTOM_CALLS}

#: Part of JAX's error for a callback, because its host is the backend of this process.
_OTHER_PLATFORM = "is different from the lowering platform"

#: Number of programs that are kept for other targets.
_KEPT = 512


@dataclass
class Lowered:
    """A call and the steps of its lowering that succeeded.

    Attributes:
      traced: whether it was traced.
      kernels: its Pallas kernels.
      module: the program, serialized by ``jax.export``.
      devices: the number of its devices.
      signature: dtypes and shapes of the arguments.
      jaxpr: the traced program.
      notes: for the record.
    """

    traced: bool = False
    kernels: tuple[KernelCall, ...] = ()
    module: bytes = b""
    devices: int = 1
    signature: str = ""
    jaxpr: Any = None
    notes: tuple[Note, ...] = ()


@dataclass
class Lowering:
    """Lowers calls for the chips of a platform, and only once if all chips get the same program.

    The program is the same if no code reads the chip while it is traced and lowered. But jit and
    Pallas cache traces, and a cached trace does not read the chip again. Therefore each chip has a
    stand-in device that is part of their cache keys, and that is replaced as soon as code reads it:
    caches under an unread stand-in do not depend on the chip.

    Attributes:
      platform: ``"tpu"`` or ``"gpu"``.
    """

    platform: str
    _shared: OrderedDict[Any, Lowered] = field(default_factory=OrderedDict[Any, Lowered])
    _unread: dict[str, AbsentChip] = field(default_factory=dict[str, AbsentChip])
    _read: dict[str, AbsentChip] = field(default_factory=dict[str, AbsentChip])
    _curious: set[Any] = field(default_factory=set[Any])

    def lower(
        self, call: Call, static: Any, arrays: list[Any], target: Target, into: Lowered
    ) -> Lowered:
        """Trace and lower a call, or return the same program of another chip.

        Args:
          call: the call to lower.
          static: its static part, from ``tracing.abstract``.
          arrays: shapes and dtypes of its arrays.
          target: the chip.
          into: records the steps that succeeded.

        Returns:
          ``into``, or the earlier lowering.

        Raises:
          NoPallasCallError: the lowered program has no Pallas kernel.
          CompileError: the call cannot be compiled as a whole.
          Exception: an error of the kernel or of Pallas.
        """
        key = (static, tuple(map(str, arrays)), call.jit, call.needs_kernel)
        if key in self._shared:
            return self._shared[key]
        # A call that read another chip will read this one, and may use caches of the other.
        chips = self._read if key in self._curious else self._unread
        if target.name not in chips:
            chips[target.name] = AbsentChip(target.device_kind, target.platform, attributes(target))
        chip = chips[target.name]
        with _context(chip):
            try:
                lower(call, static, arrays, self.platform, into)
            finally:
                if chip.identified:
                    self._curious.add(key)
                    self._unread.pop(target.name, None)
        if key not in self._curious:
            self._shared[key] = into
            if len(self._shared) > _KEPT:
                self._shared.popitem(last=False)
        return into


def attributes(target: Target) -> Mapping[str, Any]:
    """Attributes of ``jax.Device`` that depend on the chip."""
    chips = {"tpu": tpu_chips, "gpu": gpus}[target.platform]
    return chips.attributes(target.name)


@contextmanager
def _context(chip: AbsentChip) -> Generator[None]:
    """Lower for a chip, and override interpret=."""
    with (
        exact_exports(),
        interpret_ignored(),
        present(chip),
        expected_warnings(),
    ):
        yield


def lower(call: Call, static: Any, arrays: list[Any], platform: str, into: Lowered) -> None:
    """Trace and lower a call for a platform, and record the steps in ``into``.

    Raises:
      NoPallasCallError: the lowered program has no Pallas kernel.
      CompileError: the call cannot be compiled as a whole.
      SimulationLimitError: it is not traced within its time limit.
      Exception: an error of the kernel or of Pallas.
    """
    name = getattr(call.function, "__name__", type(call.function).__name__)
    if not call.jit:
        raise CompileError(
            f"{name} needs the values of its arguments (jit=False), so it cannot be compiled "
            "without running it. Leave this test out on compiling backends: "
            '@pytest.mark.pallas(backends=["interpret", ...]).'
        )
    into.signature = signature(call)
    with ending(call.timeout, "still not traced after {:g} s; the limit is --pallas-timeout"):
        traced = jitted(static).trace(arrays)
    into.traced = True
    into.jaxpr = traced.jaxpr
    into.kernels = tuple(kernel_calls(traced.jaxpr))
    custom_calls = _CUSTOM_CALLS[platform]
    checks = [export.DisabledSafetyCheck.custom_call(each) for each in custom_calls]
    exporting = export.export(
        jitted(static), platforms=(_EXPORTED[platform],), disabled_checks=checks
    )
    try:
        exported = exporting(arrays)
    except ValueError as error:
        if _OTHER_PLATFORM not in str(error):
            raise
        raise ValueError(
            "calls back to Python (jax.pure_callback, io_callback or jax.debug.print outside of "
            "the kernel), and a compilation for an absent chip has no host"
        ) from error
    into.devices = exported.nr_devices
    into.module = bytes(exported.serialize())
    # not in ``into.module``, which lists the custom calls that it allows
    lowered = exported.mlir_module_serialized
    needed = call.needs_kernel or live_kernel_calls(traced.jaxpr)
    if needed and not any(each.encode() in lowered for each in custom_calls):
        raise NoPallasCallError(
            f"{name}, lowered for {platform}, has none of {', '.join(custom_calls)}: there is no "
            "Pallas kernel to compile. Pass the function that calls pl.pallas_call, or arguments "
            "for which it does not fall back to jnp."
        )
