"""The compiling backends ``tpu-compile`` and ``gpu-compile``, for chips that are not present."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Target
from pallas_sim.errors import PallasError
from pytest_pallas.backends.protocol import Call, Kind, Outcome, RunSettings
from pytest_pallas.compilers import cuda, libtpu
from pytest_pallas.errors import CompileError, CompilerFailedError, NoPallasCallError

if TYPE_CHECKING:
    from pytest_pallas.analysis import KernelCall
    from pytest_pallas.analysis.machine_code import Cost
    from pytest_pallas.backends.lowering import Lowered, Lowering
    from pytest_pallas.compilers.report import CompileReport
    from pytest_pallas.compilers.service import Service

#: Number of calls whose results are kept for checks whose compilation started in advance.
KEPT = 512

#: Maximum length of the name of a folder of ``--pallas-dump``.
_LONGEST_NAME = 80

_COMPILERS: Mapping[str, Any] = {"tpu": libtpu, "gpu": cuda}


@dataclass(frozen=True, eq=False)
class KernelAlone:
    """A kernel of a traced program as a function of its operands.

    Attributes:
      kernel: its equation.
    """

    kernel: Any

    def __call__(self, *operands: Any) -> Any:
        """Bind the kernel."""
        return self.kernel.primitive.bind(*operands, **self.kernel.params)


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
    _started: OrderedDict[Any, Callable[[], Outcome]] = field(
        default_factory=OrderedDict[Any, Any], repr=False, compare=False
    )

    @property
    def chip(self) -> Target:
        """The chip it compiles for."""
        return self.target or TARGETS[DEFAULT_TARGETS[self.platform]]

    def available(self) -> str | None:
        """None if the compiler is installed, else how to install it."""
        return _COMPILERS[self.platform].missing()

    def run(self, call: Call) -> Outcome:
        """Compile a call; the outcome has a report and no values."""
        return self.start(call)()

    def start(self, call: Call) -> Callable[[], Outcome]:
        """Lower a call and start its compilation in a worker; the returned function waits."""
        from pytest_pallas.backends.tracing import abstract

        static, arrays = abstract(call)
        key = (static, tuple(map(str, arrays)), call.jit, call.dump)
        if key not in self._started:
            self._started[key] = self._start(call, static, arrays)
            if len(self._started) > KEPT:
                self._started.popitem(last=False)
        return self._started[key]

    def shared_bytes(self, kernel: Any, timeout: float) -> int | None:
        """Bytes of shared memory that a block of a kernel of the Triton route takes.

        The kernel is compiled alone, once for each chip.

        Args:
          kernel: the equation of its ``pallas_call``.
          timeout: seconds after which the compiler is stopped.

        Returns:
          The bytes, also of a kernel that is refused because these are too many; None if the
          compiler does not say.
        """
        import jax

        from pytest_pallas.analysis.refusals.memory import requested_shared_bytes

        call = Call(
            function=KernelAlone(kernel),
            args=tuple(
                jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in kernel.invars
            ),
            settings=RunSettings(timeout=timeout),
        )
        report = self.run(call).report
        if report is None or report.status not in ("compiled", "refused"):
            return None
        if report.status == "refused":
            return requested_shared_bytes(report.text)
        return report.kernels[0].shared_bytes if len(report.kernels) == 1 else None

    def _start(self, call: Call, static: Any, arrays: list[Any]) -> Callable[[], Outcome]:
        from pytest_pallas.backends.execution import readable
        from pytest_pallas.backends.lowering import Lowered

        lowered = Lowered()
        try:
            lowered = self.lowering().lower(call, static, arrays, self.chip, into=lowered)
        except PallasError as error:
            return _ended(Outcome(error=error, kernels=lowered.kernels))
        except Exception as error:  # tracing and lowering run user code
            if not lowered.traced:
                return _ended(Outcome(error=readable(error)))
            report = self._refused(lowered, error)
            return _ended(self._outcome(report, lowered, cause=error))
        from pytest_pallas.compilers.service import LoweredProgram

        program = LoweredProgram(
            platform=self.platform,
            target=self.chip.name,
            module=lowered.module,
            devices=lowered.devices,
            dump=None if call.dump is None else _dump(Path(call.dump), self.chip.name, lowered),
        )
        future = self.service().submit(program, timeout=call.timeout)
        return lambda: self._outcome(
            self._described(future, lowered), lowered, needs_kernel=call.needs_kernel
        )

    def _described(self, future: Future[CompileReport], lowered: Lowered) -> CompileReport:
        """The compiler's report with the data that only this process has."""
        from pytest_pallas.analysis.refusals import short

        report = future.result()
        # The output of a compiler that was stopped is not the reason.
        text = report.text if report.status in _TELLING else report.text.partition("\n")[0]
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
        """The report for a kernel that could not be lowered for the chip."""
        from pytest_pallas.analysis.refusals import full_text, short
        from pytest_pallas.compilers.report import CompileReport

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
    """Costs by the names of the Pallas kernels, because HLO has other names."""
    if len(costs) != len(kernels):
        return costs  # one was inlined, repeated or removed
    return tuple(
        dataclasses.replace(cost, kernel=kernel.name)
        for cost, kernel in zip(costs, kernels, strict=True)
    )


def _error(report: CompileReport, cause: Exception | None) -> Exception | None:
    """The error of a report for its check."""
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


def _ended(outcome: Outcome) -> Callable[[], Outcome]:
    return lambda: outcome


def _dump(folder: Path, target: str, lowered: Lowered) -> Path:
    """Write the lowered module, and make the folder in which the worker writes the rest.

    A test may compile several programs. Each has a folder, named by chip and arguments.
    """
    from jax import export

    words = f"{target} {lowered.signature}"
    name = re.sub(r"[^\w.,=-]+", "-", words).strip("-")
    if len(name) > _LONGEST_NAME:
        digest = hashlib.blake2b(words.encode(), digest_size=4).hexdigest()
        name = f"{name[:_LONGEST_NAME]}-{digest}"
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jaxpr.txt").write_text(str(lowered.jaxpr), encoding="utf-8")
    module = export.deserialize(bytearray(lowered.module)).mlir_module()
    (folder / "lowered.mlir").write_text(module, encoding="utf-8")
    return folder
