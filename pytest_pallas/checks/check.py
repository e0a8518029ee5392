"""``Check``: one question about one kernel, and the checks that exist."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pytest_pallas.backends import Backend
    from pytest_pallas.checks.trial import Finding, Trial
    from pytest_pallas.spec import KernelSpec
    from pytest_pallas.strategies.arguments import Arguments

#: A function and its positional arguments.
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _anywhere(backend: Backend) -> str | None:
    del backend
    return None


def _alone(spec: KernelSpec, others: Sequence[Backend]) -> str | None:
    del spec, others
    return None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question about one kernel. Projects add their own by ``pytest_pallas_checks``.

    Attributes:
      name: as written in ``--pallas-checks`` and in test ids.
      kind: ``"sanitizer"`` for one that watches runs for what a wrong number may not show, and is
        chosen by ``--pallas-sanitize``, too.
      asks: the question, in a few words.
      run: answers it for one drawn example. It raises what the kernel raises.
      needs: why it cannot be asked of a spec, or None if it can.
      share: the share of ``--pallas-max-examples`` that it draws, because it costs more a piece.
      program: the call that a compiling backend compiles in place of ``run``; None if there is
        nothing to compile that another check does not compile.
      prepare: begins, in another thread, with what ``run`` will need for an example to come.
      on: why it cannot be asked on a backend, or None if it can.
      against: why it cannot be asked of a spec, given the other backends that it can be compared
        with, or None if it can.
      conclude: asked after the last example with the ``evidence`` of every finding that has some:
        what is wrong over all of them, or None. For what no single example can tell.
      subjects: what of it can be asked about a drawn call, such as the relations that hold for it;
        draws are chosen so that all can be. None where a call makes no difference.
      named: whether it is asked only where its name is given, and not by ``all``.
      least: how many examples it draws at least, where they are cheap and a conclusion needs them.
    """

    name: str
    asks: str
    run: Callable[[Trial], Finding]
    needs: Callable[[KernelSpec], str | None]
    share: float = 1.0
    program: Callable[[Trial], Program] | None = None
    prepare: Callable[[Trial], None] | None = None
    on: Callable[[Backend], str | None] = _anywhere
    against: Callable[[KernelSpec, Sequence[Backend]], str | None] = _alone
    conclude: Callable[[Sequence[Any]], str | None] | None = None
    least: int = 1
    subjects: Callable[[KernelSpec, Arguments], Collection[Any]] | None = None
    kind: Literal["check", "sanitizer"] = "check"
    named: bool = False

    def unmet(
        self, spec: KernelSpec, backend: Backend, others: Sequence[Backend] = ()
    ) -> str | None:
        """Why it cannot be asked of a spec on a backend, or None if it can.

        ``others`` are the backends that executed the spec before this one.
        """
        return self.needs(spec) or self.on(backend) or self.against(spec, others)

    def examples(self, most: int) -> int:
        """How many examples it draws when ``most`` are allowed."""
        return max(self.least, round(most * self.share))
