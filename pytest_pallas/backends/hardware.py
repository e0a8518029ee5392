"""The hardware backends ``tpu`` and ``gpu``, and the check that a kernel really runs there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pallas_sim.chips import Target
from pytest_pallas.analysis import KernelCall
from pytest_pallas.backends.protocol import Call, Kind, Outcome, expected_warnings
from pytest_pallas.errors import NoPallasCallError

#: Custom calls that a Pallas kernel becomes: Mosaic TPU; Mosaic GPU; Triton (two spellings).
CUSTOM_CALLS = {
    "tpu": ("tpu_custom_call",),
    "gpu": ("mosaic_gpu", "triton_kernel_call", "__gpu$xla.gpu.triton"),
}

#: Number of executables to keep for each backend: a session repeats shapes, and executables hold
#: device memory.
KEPT = 64


@dataclass(frozen=True)
class Hardware:
    """A backend that runs kernels on an accelerator of this machine."""

    name: str
    platform: str
    target: Target | None = None
    kind: Kind = "hardware"
    _executables: OrderedDict[Any, Any] = field(
        default_factory=OrderedDict[Any, Any], repr=False, compare=False
    )

    def available(self) -> str | None:
        """None if JAX finds a device of the platform, else the devices that it finds."""
        import jax

        try:
            devices = jax.local_devices(backend=self.platform)
        except RuntimeError:
            found = sorted({device.device_kind for device in jax.devices()})
            return (
                f"jax.devices({self.platform!r}) finds no {self.platform.upper()}, only "
                f"{', '.join(found)}; it needs a {self.platform.upper()} and "
                f"pip install 'pytest-pallas[{self.platform}]'"
            )
        if self.target is not None and devices[0].device_kind != self.target.device_kind:
            return f"the {self.platform.upper()} here is a {devices[0].device_kind}"
        return None

    def run(self, call: Call) -> Outcome:
        """Compile a call, check that its kernels are in the executable, and run it."""
        from pytest_pallas.backends import execution

        return execution.execute(
            call,
            self.context,
            runner=self._run if call.jit else None,
            prepare=self._executable,
        )

    @contextmanager
    def context(self) -> Generator[None]:
        """Run on the first device of the platform."""
        import jax

        with jax.default_device(jax.local_devices(backend=self.platform)[0]), expected_warnings():
            yield

    def _run(self, static: Any, arrays: list[Any]) -> Any:
        return self._executable(static, arrays)(arrays)

    def _executable(self, static: Any, arrays: list[Any]) -> Any:
        places = (array.sharding if array.committed else None for array in arrays)
        shapes = ((array.shape, str(array.dtype)) for array in arrays)
        key = (static, tuple(shapes), tuple(places))
        executable = self._executables.get(key)
        if executable is None:
            executable = self._executables[key] = compile_proven(static, arrays, self.platform)
            if len(self._executables) > KEPT:
                self._executables.popitem(last=False)
        self._executables.move_to_end(key)
        return executable


def compile_proven(static: Any, arrays: list[Any], platform: str) -> Any:
    """Compile a call for the default device and check that its kernels are in the executable."""
    from pytest_pallas.analysis import live_kernel_calls
    from pytest_pallas.backends import tracing

    traced = tracing.jitted(static).trace(arrays)
    kernels = live_kernel_calls(traced.jaxpr)
    executable = traced.lower().compile()
    prove(kernels, executable.as_text() or "", platform)
    return executable


def prove(kernels: list[KernelCall], text: str, platform: str) -> None:
    """Check that every kernel of a call is a custom call in the compiled ``text``.

    Args:
      kernels: the kernels of the traced call that are no dead code.
      text: the text of the executable, or of the lowered module.
      platform: ``"tpu"`` or ``"gpu"``.

    Raises:
      NoPallasCallError: a kernel is interpreted, or no custom call of Pallas is in the text.
    """
    interpreted = [kernel for kernel in kernels if kernel.interpreted]
    if interpreted:
        places = "; ".join(f"{kernel.name} at {kernel.source or '?'}" for kernel in interpreted)
        raise NoPallasCallError(
            f"a hard-coded interpret=True runs an interpreter instead of the {platform}: {places}. "
            "Remove interpret=; the backend sets it where needed."
        )
    if kernels and not any(name in text for name in CUSTOM_CALLS[platform]):
        names = ", ".join(kernel.name for kernel in kernels)
        raise NoPallasCallError(
            f"the executable for {platform} has none of {', '.join(CUSTOM_CALLS[platform])}, "
            f"although {names} was traced: the kernel was not compiled as a Pallas kernel."
        )


def tpu(target: Target | None = None) -> Hardware:
    """The TPU of this machine."""
    return Hardware("tpu", "tpu", target)


def gpu(target: Target | None = None) -> Hardware:
    """The GPU of this machine."""
    return Hardware("gpu", "gpu", target)
