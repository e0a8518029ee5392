"""From a call to a program for a compiler: traced and lowered on the CPU, for another chip."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jax import export

from pytest_pallas.analysis import kernel_calls
from pytest_pallas.backends.protocol import Call, expected_warnings
from pytest_pallas.backends.tracing import jitted, signature
from pytest_pallas.compat.compilers import exact_exports, interpret_ignored
from pytest_pallas.compilers import cuda, libtpu, tpu_chips
from pytest_pallas.devices import gpus
from pytest_pallas.devices.absent import AbsentChip, present
from pytest_pallas.devices.targets import Target
from pytest_pallas.errors import CompileError, NoPallasCallError
from pytest_pallas.notes import Note

if TYPE_CHECKING:
    from pytest_pallas.analysis import KernelCall

#: What ``jax.export`` calls a platform.
_EXPORTED = {"tpu": "tpu", "gpu": "cuda"}

#: Names of the custom calls that a Pallas kernel becomes.
_CUSTOM_CALLS = {"tpu": libtpu.CUSTOM_CALLS, "gpu": cuda.CUSTOM_CALLS}

#: Part of what JAX says of a callback, because its host is this process' backend.
_OTHER_PLATFORM = "is different from the lowering platform"

#: Programs that are kept for other targets.
_KEPT = 512


@dataclass
class Lowered:
    """A call on its way to the compiler, as far as it got.

    Attributes:
      traced: whether it was traced.
      kernels: its Pallas kernels.
      module: the program, serialized by ``jax.export``.
      devices: how many devices it runs on.
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
    """Lowers calls for the chips of a platform, and once for all of them where that is the same.

    It is the same where nothing has asked which chip it is for while it was traced and lowered.
    jit and Pallas keep traces, though, and what is kept does not ask again. So each chip has a
    stand-in that is part of the key of what they keep, and that is replaced as soon as it was
    asked: under one that was not, nothing is kept that depends on the chip.

    Attributes:
      platform: ``"tpu"`` or ``"gpu"``.
    """

    platform: str
    _shared: OrderedDict[Any, Lowered] = field(default_factory=OrderedDict[Any, Lowered])
    _unasked: dict[str, AbsentChip] = field(default_factory=dict[str, AbsentChip])
    _asked: dict[str, AbsentChip] = field(default_factory=dict[str, AbsentChip])
    _curious: set[Any] = field(default_factory=set[Any])

    def lower(
        self, call: Call, static: Any, arrays: list[Any], target: Target, into: Lowered
    ) -> Lowered:
        """Trace and lower a call, or find what is the same for another chip.

        Args:
          call: what to lower.
          static: what it has besides arrays, by ``tracing.abstract``.
          arrays: shapes and dtypes of its arrays.
          target: the chip.
          into: notes how far it got.

        Returns:
          ``into``, or what was lowered before.

        Raises:
          NoPallasCallError: the lowered program holds no Pallas kernel.
          CompileError: the call cannot be compiled as a whole.
          Exception: what the kernel or Pallas raised.
        """
        key = (static, tuple(map(str, arrays)), call.jit, call.needs_kernel)
        if key in self._shared:
            return self._shared[key]
        # A call that has asked for another chip will ask again, and may find what was kept.
        chips = self._asked if key in self._curious else self._unasked
        if target.name not in chips:
            chips[target.name] = AbsentChip(target.device_kind, target.platform, attributes(target))
        chip = chips[target.name]
        with _context(chip):
            try:
                lower(call, static, arrays, self.platform, into)
            finally:
                if chip.identified:
                    self._curious.add(key)
                    self._unasked.pop(target.name, None)
        if key not in self._curious:
            self._shared[key] = into
            if len(self._shared) > _KEPT:
                self._shared.popitem(last=False)
        return into


def attributes(target: Target) -> Mapping[str, Any]:
    """What ``jax.Device`` has on a chip besides what it has on every platform."""
    chips = {"tpu": tpu_chips, "gpu": gpus}[target.platform]
    return chips.attributes(target.name)


@contextmanager
def _context(chip: AbsentChip) -> Generator[None]:
    """Lower for a chip, and overrule interpret=."""
    with (
        exact_exports(),
        interpret_ignored(),
        present(chip),
        expected_warnings(),
    ):
        yield


def lower(call: Call, static: Any, arrays: list[Any], platform: str, into: Lowered) -> None:
    """Trace and lower a call for a platform, and note in ``into`` how far it got.

    Raises:
      NoPallasCallError: the lowered program holds no Pallas kernel.
      CompileError: the call cannot be compiled as a whole.
      Exception: what the kernel or Pallas raised.
    """
    name = getattr(call.function, "__name__", type(call.function).__name__)
    if not call.jit:
        raise CompileError(
            f"{name} needs the values of its arguments (jit=False), so it cannot be compiled "
            "without running it. Leave this test out on compiling backends: "
            '@pytest.mark.pallas(backends=["interpret", ...]).'
        )
    into.signature = signature(call)
    traced = jitted().trace(static, arrays)
    into.traced = True
    into.jaxpr = traced.jaxpr
    into.kernels = tuple(kernel_calls(traced.jaxpr))
    custom_calls = _CUSTOM_CALLS[platform]
    checks = [export.DisabledSafetyCheck.custom_call(each) for each in custom_calls]
    exporting = export.export(jitted(), platforms=(_EXPORTED[platform],), disabled_checks=checks)
    try:
        exported = exporting(static, arrays)
    except ValueError as error:
        if _OTHER_PLATFORM not in str(error):
            raise
        raise ValueError(
            "calls back to Python (jax.pure_callback, io_callback or jax.debug.print outside of "
            "the kernel), and there is no host beside a chip that is not there"
        ) from error
    into.devices = exported.nr_devices
    into.module = bytes(exported.serialize())
    # Not in ``into.module``: that names the calls it allows.
    lowered = exported.mlir_module_serialized
    if call.needs_kernel and not any(each.encode() in lowered for each in custom_calls):
        raise NoPallasCallError(
            f"{name}, lowered for {platform}, holds none of {', '.join(custom_calls)}: there is no "
            "Pallas kernel to compile. Pass the function that calls pl.pallas_call, or arguments "
            "for which it does not fall back to jnp."
        )
