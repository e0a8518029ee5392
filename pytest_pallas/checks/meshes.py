"""The same kernel on other numbers of devices than those of its spec.

On two devices one neighbour is everybody else, on three two neighbours are. So a barrier that hears
from one neighbour only is right on two devices, and shows on three. A spec that has ``meshes`` for
two or four devices does not say that its kernel must run on others, and many cannot. Therefore
another mesh counts only where the answers are right: then what is out of order there is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from pallas_sim.findings import OF_TRANSFERS, Finding
from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.checks.context import CheckContext, OtherMeshes, exactly, expect, judge
from pytest_pallas.errors import DmaError, PallasError, RaceError, facts_of
from pytest_pallas.record import Note


def check_other_meshes(context: CheckContext) -> tuple[Note, ...]:
    """Run the kernel on other numbers of devices, once for all examples of a spec.

    Returns:
      What ran where, for the record; nothing for kernels whose spec has no meshes.

    Raises:
      RaceError, DmaError: what is out of order on a mesh on which the answers are right.
    """
    others = context.meshes
    if others is None:
        return ()
    if others.disorder is None:
        _run(others)
    if others.disorder:
        races = [finding for finding in others.disorder if finding.kind == "race"]
        error: PallasError = RaceError.of(*races) if races else DmaError.of(*others.disorder)
        error = error.with_message(
            f"with mesh={dict(others.sizes)}, where the answers are right, too (a kernel that is "
            f"not for it must reject it): {error}"
        )
        facts_of(error).context = others.failed
        raise error
    return others.notes


def _run(others: OtherMeshes) -> None:
    """Run on each mesh, from the cheapest, until something is out of order."""
    right: list[Mapping[str, int]] = []
    refused: list[Mapping[str, int]] = []
    others.disorder = ()
    for sizes, make in others.candidates():
        if any(math.prod(sizes.values()) > math.prod(kept.values()) > 4 for kept in right):
            continue  # six devices or eight
        ran = _ran(make)
        if ran is None:
            refused.append(sizes)
            continue
        right.append(sizes)
        others.failed, findings = ran
        if findings:
            others.sizes, others.disorder = sizes, findings
            return
    texts = [f"also in order with mesh={_listed(right)}"] if right else []
    if refused:
        texts.append(
            f"with mesh={_listed(refused)} the kernel does not run, or its answers are wrong; the "
            "spec does not claim it"
        )
    others.notes = tuple(Note(text, "run") for text in texts)


def _listed(meshes: Sequence[Mapping[str, int]]) -> str:
    return ", ".join(str(dict(sizes)) for sizes in meshes)


def _ran(make: Callable[[], CheckContext]) -> tuple[CheckContext, Sequence[Finding]] | None:
    """Return a call on a mesh, and what is out of order; None if its answers are not right."""
    try:
        context = make()
        outcome = context.runs.get(context, Schedule())
        if outcome.error is not None and not isinstance(outcome.error, (RaceError, DmaError)):
            return None
        judged = judge(context, outcome.values, expect(context), exact=exactly(context))
    except Exception:  # whatever a kernel, its inputs or its reference raise on such a mesh
        return None
    if not all(comparison.passed for comparison in judged):
        return None
    kinds = OF_TRANSFERS | {"race"}
    return context, [finding for finding in outcome.findings if finding.kind in kinds]
