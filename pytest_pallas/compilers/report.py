"""``CompileReport``: what a compiler made of a program for one chip, and what its code costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pallas_sim.findings import Text
from pytest_pallas.analysis.machine_code import Cost, total
from pytest_pallas.compilers.messages import CompileReply
from pytest_pallas.decoding import Count, Seconds, decode

#: How a compilation ended.
Status = Literal["compiled", "refused", "timed out", "crashed", "out of memory"]


@dataclass(frozen=True, kw_only=True)
class CompileReport(Cost):
    """How a program was compiled for a chip.

    It has the fields of ``Cost``, for all kernels of the program together: ``vmem_bytes`` is that
    of the kernel that needs most, ``bundles`` the sum, and so on.

    Attributes:
      target: the chip, such as ``"v6e"``.
      status: how it ended.
      message: why it did not compile, in a few lines.
      text: output of the compiler, in full.
      seconds: wall time in the compiler; of the first time, if the result was cached.
      compiler: the compiler's name and version.
      cached: whether an earlier run had compiled the same.
      signature: dtypes, shapes and options that it was compiled for.
      typical: whether its spec names this call as typical.
      kernel_calls: Pallas kernels in the executable; None where nothing was compiled.
      kernels: what each kernel costs. Equal kernels are compiled once.
      costs_skipped: whether the compiler was not asked for costs (``--pallas-cost=skip``).
    """

    target: str
    status: Status
    message: Text = ""
    text: Text = ""
    seconds: Seconds = 0.0
    compiler: str = ""
    cached: bool = False
    signature: Text = ""
    typical: bool = False
    kernel_calls: Count | None = None
    kernels: tuple[Cost, ...] = ()
    costs_skipped: bool = False


def compiled(reply: CompileReply, **fields: Any) -> CompileReport:
    """The report of a program that compiled."""
    costs = total(reply.kernels)
    costs["code_bytes"] = reply.code_bytes if costs["code_bytes"] is None else costs["code_bytes"]
    return CompileReport(
        status="compiled",
        kernels=reply.kernels,
        kernel_calls=reply.kernel_calls,
        costs_skipped=reply.costs_skipped,
        **costs,
        **fields,
    )


def to_json(report: CompileReport) -> dict[str, Any]:
    """A report as plain JSON values, without what does not apply."""
    plain = dataclasses.asdict(report)
    empty: tuple[Any, ...] = (None, "", (), {})
    return {
        name: list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType]
        for name, value in plain.items()
        if value not in empty and value is not False  # 0 is a number, and equals False
    }


def from_json(plain: Mapping[str, Any]) -> CompileReport:
    """The report that ``to_json`` wrote.

    Raises:
      DataError: it is no report.
    """
    return decode(CompileReport, plain)
