"""All pictures of one failure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pallas_sim.errors import PallasError

if TYPE_CHECKING:
    from pytest_pallas.result_builder import ResultBuilder


def pictures_of(error: BaseException, builder: ResultBuilder) -> dict[str, Any]:
    """The pictures of a failure; at most about 15 KiB as JSON.

    A picture must not break its report: if one cannot be made, the entry ``unavailable`` has the
    reason.
    """
    found: dict[str, Any] = {}
    try:
        if isinstance(error, PallasError):
            found |= shown_of(error)
        found["examples"] = examples_of(builder)
    except Exception as problem:
        found["unavailable"] = f"{type(problem).__name__}: {problem}"[:300]
    return {name: value for name, value in found.items() if value}


def shown_of(error: PallasError) -> Mapping[str, Any]:
    """The pictures of arrays and grids."""
    found: dict[str, Any] = {}
    failure = error.failure
    if failure is not None and failure.finding is not None:
        from pytest_pallas.report.pictures.errors import errors_of

        found |= errors_of(failure.finding)
    if failure is not None:
        from pytest_pallas.report.pictures.arguments import arguments_of

        found["arguments"] = arguments_of(failure.context.arguments)
    if error.analysis is not None:
        from pytest_pallas.report.pictures.blocks import grids_of

        found["grids"] = grids_of(error.analysis)
    return found


def examples_of(builder: ResultBuilder) -> list[dict[str, Any]]:
    """The errors of the examples that were measured, if dims were drawn."""
    return [
        {
            "dims": dict(point.dims),
            "error": plain(point.error),
            "baseline": plain(point.baseline or 0.0),
            "failed": point.failed,
        }
        for point in builder.points
        if point.error is not None and point.dims
    ]


def plain(number: float) -> float | str:
    """A number for JSON, with the digits that a picture needs."""
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)
