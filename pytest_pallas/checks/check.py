"""``Check``: one question about one kernel, and the checks that exist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_pallas.backends import Backend
    from pytest_pallas.checks.trial import Finding, Trial
    from pytest_pallas.spec import KernelSpec

#: A function and its positional arguments.
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _anywhere(backend: Backend) -> str | None:
    del backend
    return None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question about one kernel. Projects add their own by ``pytest_pallas_checks``.

    Attributes:
      name: as written in ``--pallas-checks`` and in test ids.
      asks: the question, in a few words.
      run: answers it for one drawn example. It raises what the kernel raises.
      needs: why it cannot be asked of a spec, or None if it can.
      share: the share of ``--pallas-max-examples`` that it draws, because it costs more a piece.
      program: the call that a compiling backend compiles in place of ``run``; None if there is
        nothing to compile that another check does not compile.
      on: why it cannot be asked on a backend, or None if it can.
    """

    name: str
    asks: str
    run: Callable[[Trial], Finding]
    needs: Callable[[KernelSpec], str | None]
    share: float = 1.0
    program: Callable[[Trial], Program] | None = None
    on: Callable[[Backend], str | None] = _anywhere

    def unmet(self, spec: KernelSpec, backend: Backend) -> str | None:
        """Why it cannot be asked of a spec on a backend, or None if it can."""
        return self.needs(spec) or self.on(backend)

    def examples(self, most: int) -> int:
        """How many examples it draws when ``most`` are allowed."""
        return max(1, round(most * self.share))
