"""The compiling backends ``tpu-compile`` and ``gpu-compile``, for chips that are not present.

A ``Compiler`` traces and lowers a call here, on the CPU, by the ``Lowering`` of its platform. It
submits the program to the session's ``Service``, and makes an outcome of the report.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax import export

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Target
from pallas_sim.errors import PallasError
from pallas_sim.traces import exact_exports, interpret_ignored
from pallas_sim.tracing import AbsentChip, absent_chip, present
from pytest_pallas.backends.ending import NOT_TRACED, ending
from pytest_pallas.backends.execution import readable
from pytest_pallas.backends.protocol import Call, Kind, Outcome, RunSettings, expected_warnings
from pytest_pallas.backends.tracing import abstract, jitted, signature
from pytest_pallas.budget import LastUsed
from pytest_pallas.compile import cuda, libtpu
from pytest_pallas.compile.cleaning import clean
from pytest_pallas.compile.refusals import full_text, requested_shared_bytes, short
from pytest_pallas.compile.service import CompileReport, CompileRequest
from pytest_pallas.errors import CompileError, CompilerFailedError, NoPallasCallError
from pytest_pallas.grid.kernel_calls import KernelCall, kernel_calls, live_kernel_calls
from pytest_pallas.record import Note

if TYPE_CHECKING:
    from pytest_pallas.compile.machine_code import Cost
    from pytest_pallas.compile.service import Service

#: Number of calls whose results are kept for checks whose compilation started in advance, and of
#: programs that are kept for other targets.
KEPT = 512

#: Maximum length of the name of a folder of ``--pallas-dump``.
_LONGEST_NAME = 80

_COMPILERS: Mapping[str, Any] = {"tpu": libtpu, "gpu": cuda}


@dataclass(frozen=True)
class Compiler:
    """A backend that compiles kernels for a chip, and does not execute them.

    Attributes:
      name: the family.
      platform: the platform of its kernels.
      service: returns the session's workers and cache.
      lowering: returns the lowering for the chips of the platform.
      target: the chip it compiles for; None is the platform's default.
    """

    name: str
    platform: str
    service: Callable[[], Service] = field(repr=False, compare=False)
    lowering: Callable[[], Lowering] = field(repr=False, compare=False)
    target: Target | None = None
    kind: Kind = "compiling"
    _started: LastUsed[Callable[[], Outcome]] = field(
        default_factory=lambda: LastUsed(KEPT), repr=False, compare=False
    )

    @property
    def chip(self) -> Target:
        """The chip that it compiles for."""
        return self.target or TARGETS[DEFAULT_TARGETS[self.platform]]

    def available(self) -> str | None:
        """Return None if the compiler is installed, else how to install it."""
        return _COMPILERS[self.platform].missing()

    def run(self, call: Call) -> Outcome:
        """Compile a call; the outcome has a report and no values."""
        return self.start(call)()

    def start(self, call: Call) -> Callable[[], Outcome]:
        """Lower a call and start its compilation in a worker; the returned function waits."""
        static, arrays = abstract(call)
        key = (static, tuple(map(str, arrays)), call.settings.jit, call.settings.dump)
        started = self._started.get(key)
        if started is None:
            started = self._start(call, static, arrays)
            self._started.add(key, started)
        return started

    def shared_bytes(self, kernel: Any, timeout: float) -> int | None:
        """Compile a kernel of the Triton route alone, and count the shared memory of a block.

        Args:
          kernel: the equation of its ``pallas_call``.
          timeout: seconds after which the compiler is stopped.

        Returns:
          The bytes, also of a kernel that is refused for too many; None if the compiler does not
          say.
        """

        def kernel_alone(*operands: Any) -> Any:
            return kernel.primitive.bind(*operands, **kernel.params)

        avals = (var.aval for var in kernel.invars)
        args = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
        settings = RunSettings(timeout=timeout)
        report = self.run(Call(function=kernel_alone, args=args, settings=settings)).report
        if report is None or report.status not in ("compiled", "refused"):
            return None
        if report.status == "refused":
            return requested_shared_bytes(report.text)
        return report.kernels[0].shared_bytes if len(report.kernels) == 1 else None

    def _start(self, call: Call, static: Any, arrays: list[Any]) -> Callable[[], Outcome]:
        lowered = Lowered()
        try:
            lowered = self.lowering().lower(call, static, arrays, self.chip, into=lowered)
        except PallasError as error:
            outcome = Outcome(error=error, kernels=lowered.kernels)
            return lambda: outcome
        except Exception as error:  # tracing and lowering run user code
            outcome = Outcome(error=readable(error))
            if lowered.traced:
                outcome = self._outcome(self._refused(lowered, error), lowered, cause=error)
            return lambda: outcome
        request = CompileRequest(
            target=self.chip.name,
            module=lowered.module,
            devices=lowered.devices,
            dump=""
            if call.settings.dump is None
            else str(_dump(call.settings.dump, self.chip.name, lowered)),
        )
        future = self.service().submit(request, timeout=call.settings.timeout)
        return lambda: self._outcome(
            self._described(future, lowered), lowered, needs_kernel=call.needs_kernel
        )

    def _described(self, future: Future[CompileReport], lowered: Lowered) -> CompileReport:
        """Add to the compiler's report what only this process knows."""
        report = future.result()
        # The output of a compiler that was stopped is not the reason.
        fate, _, output = report.text.partition("\n")
        text = report.text if report.status in _TELLING else fate
        if report.status == "crashed" and clean(output).lines:
            text = output  # its last words, and not how its process ended
        message = "" if report.status == "compiled" else short(text, kernels=lowered.kernels)
        kernels = _named(report.kernels, lowered.kernels)
        return dataclasses.replace(
            report,
            signature=lowered.signature,
            message=message,
            kernel=", ".join(cost.kernel for cost in kernels),
            kernels=kernels,
        )

    def _refused(self, lowered: Lowered, error: Exception) -> CompileReport:
        """Make the report for a kernel that could not be lowered for the chip."""
        return CompileReport(
            target=self.chip.name,
            status="refused",
            message=short(error, kernels=lowered.kernels),
            text=full_text(error),
            signature=lowered.signature,
            compiler="JAX's lowering",
        )

    def _outcome(
        self,
        report: CompileReport,
        lowered: Lowered,
        *,
        cause: Exception | None = None,
        needs_kernel: bool = True,
    ) -> Outcome:
        error = _error(report, cause)
        if error is None and needs_kernel and report.kernel_calls == 0:
            error = NoPallasCallError(
                f"the executable for {report.target} has no Pallas kernel: the compiler removed "
                "it, because no output depends on its result"
            )
        return Outcome(
            error=error,
            seconds=report.seconds if not report.cached else 0.0,
            kernels=lowered.kernels,
            report=report,
            notes=lowered.notes,
        )


def _named(costs: tuple[Cost, ...], kernels: tuple[KernelCall, ...]) -> tuple[Cost, ...]:
    """Give costs the names of the Pallas kernels, because HLO has other names."""
    if len(costs) != len(kernels):
        return costs  # one was inlined, repeated or removed
    return tuple(
        dataclasses.replace(cost, kernel=kernel.name)
        for cost, kernel in zip(costs, kernels, strict=True)
    )


def _error(report: CompileReport, cause: Exception | None) -> Exception | None:
    """Make the error of a report for its check."""
    if report.status == "compiled":
        return None
    if report.status == "refused":
        error: PallasError = CompileError(f"refused for {report.target}: {report.message}")
    else:
        error = CompilerFailedError(
            f"the compiler for {report.target} {_FATES[report.status]}: {report.message}"
        )
    error.__cause__ = cause
    return error


#: Statuses for which the compiler itself gives the reason.
_TELLING = ("refused", "crashed")

_FATES = {
    "timed out": "did not finish in time and was stopped",
    "crashed": "crashed",
    "out of memory": "took too much memory and was stopped",
}


def _dump(root: str, target: str, lowered: Lowered) -> Path:
    """Write the lowered module; returns the folder in which the worker writes the rest.

    A test may compile several programs. Each has a folder, named by chip and arguments.
    """
    title = f"{target} {lowered.signature}"
    name = re.sub(r"[^\w.,=-]+", "-", title).strip("-")
    if len(name) > _LONGEST_NAME:
        digest = hashlib.blake2b(title.encode(), digest_size=4).hexdigest()
        name = f"{name[:_LONGEST_NAME]}-{digest}"
    folder = Path(root, name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jaxpr.txt").write_text(str(lowered.jaxpr), encoding="utf-8")
    module = export.deserialize(bytearray(lowered.module)).mlir_module()
    (folder / "lowered.mlir").write_text(module, encoding="utf-8")
    return folder


# Tracing and lowering on the CPU, for the compiler of another chip.


#: Names of the platforms in ``jax.export``.
_EXPORTED = {"tpu": "tpu", "gpu": "cuda"}

#: Part of JAX's error for a callback, because its host is the backend of this process.
_OTHER_PLATFORM = "is different from the lowering platform"


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
    _shared: LastUsed[Lowered] = field(default_factory=lambda: LastUsed(KEPT))
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
        key = (static, tuple(map(str, arrays)), call.settings.jit, call.needs_kernel)
        shared = self._shared.get(key)
        if shared is not None:
            return shared
        # A call that read another chip will read this one, and may use caches of the other.
        devices = self._read if key in self._curious else self._unread
        if target.name not in devices:
            devices[target.name] = absent_chip(target)
        chip = devices[target.name]
        with exact_exports(), interpret_ignored(), present(chip), expected_warnings():
            try:
                lower(call, static, arrays, self.platform, into)
            finally:
                if chip.identified:
                    self._curious.add(key)
                    self._unread.pop(target.name, None)
        if key not in self._curious:
            self._shared.add(key, into)
        return into


def lower(call: Call, static: Any, arrays: list[Any], platform: str, into: Lowered) -> None:
    """Trace and lower a call for a platform, and record the steps in ``into``.

    Raises:
      NoPallasCallError: the lowered program has no Pallas kernel.
      CompileError: the call cannot be compiled as a whole.
      SimulationLimitError: it is not traced within its time limit.
      Exception: an error of the kernel or of Pallas.
    """
    function = getattr(call.function, "__name__", type(call.function).__name__)
    if not call.settings.jit:
        raise CompileError(
            f"{function} needs the values of its arguments (jit=False), so it cannot be compiled "
            "without running it. Leave this test out on compiling backends: "
            '@pytest.mark.pallas(backends=["interpret", ...]).'
        )
    into.signature = signature(call)
    with ending(call.settings.timeout, NOT_TRACED):
        traced = jitted(static).trace(arrays)
    into.traced = True
    into.jaxpr = traced.jaxpr
    into.kernels = tuple(kernel_calls(traced.jaxpr))
    custom_calls = _COMPILERS[platform].CUSTOM_CALLS
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in custom_calls]
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
    # Not ``into.module``, which lists the custom calls that it allows.
    lowered = exported.mlir_module_serialized
    needed = call.needs_kernel or live_kernel_calls(traced.jaxpr)
    if needed and not any(name.encode() in lowered for name in custom_calls):
        raise NoPallasCallError(
            f"{function}, lowered for {platform}, has none of {', '.join(custom_calls)}: there is "
            "no Pallas kernel to compile. Pass the function that calls pl.pallas_call, or "
            "arguments for which it does not fall back to jnp."
        )
