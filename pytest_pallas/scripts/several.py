"""What a script needs that runs a kernel, or what computes the same, more than once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_pallas.backends import Backend, label
from pytest_pallas.backends.interpreters import Interpreter
from pytest_pallas.backends.simulators import Simulator
from pytest_pallas.checks.cross import accepted
from pytest_pallas.checks.ignored import masks_of
from pytest_pallas.checks.trial import Related, Trial, TrialResult
from pytest_pallas.numerics import Comparison
from pytest_pallas.relations import Relation
from pytest_pallas.scripts.literals import UnwritableError, Writer
from pytest_pallas.strategies.arguments import Arguments

#: Backends that a script can have beside each other: they need nothing but the host's CPU.
_HERE = (Interpreter, Simulator)


def calls(related: Related, comparisons: Sequence[Comparison]) -> tuple[Arguments, dict[str, Any]]:
    """The call that is judged, and what ``related`` of the scripts needs: none if it has none."""
    if not related.others:
        return related.call, {}
    claim = dict(related.claim)
    if "expect" in claim:
        if claim["expect"] is Relation.expect:  # the default, of this package
            claim["expect"] = None
        else:
            claim["recipe"] = _writable(related.call.recipe)
    others = tuple((call.args, dict(call.options), dict(call.tuning)) for call in related.others)
    exact = any(comparison.kind == "bitwise" for comparison in comparisons)
    return related.call, {"others": others, "claim": claim, "exact": exact}


def others(trial: Trial, finding: TrialResult | None) -> tuple[dict[str, Any], list[Backend]]:
    """What ``cross`` of the scripts needs, and the backends of the others.

    Only the pair that was found to differ; all that can be shown if the check came to no
    comparison. Nothing if there is none.
    """
    judged = () if finding is None else [each.where for each in finding.comparisons]
    here = label(trial.backend)
    chosen = [
        other
        for other in trial.others
        if finding is None
        or any(where.endswith((f" of {other.name}", f" against {other.name}")) for where in judged)
        if label(other.backend) == here
        or (isinstance(other.backend, _HERE) and isinstance(trial.backend, _HERE))
    ]
    if not chosen:
        return {}, []
    tuning = trial.arguments.tuning
    entries = tuple(
        (
            other.name,
            other.function,
            dict(tuning)
            if other.is_kernel
            else {name: tuning[name] for name in accepted(other.function, tuning)},
        )
        for other in chosen
    )
    return {"here": here, "others": entries}, [other.backend for other in chosen]


def unimportant(trial: Trial) -> dict[str, Any]:
    """What ``padding`` of the scripts needs."""
    masks = masks_of(trial.ignored, trial.arguments)
    return {
        "fills": bool(getattr(trial.backend, "fills", False)),
        "masks": tuple(masks or [None] * len(trial.arguments.args)),
    }


def _writable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a script can hold."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            Writer().write(value)
        except UnwritableError:
            continue
        found[name] = value
    return found
