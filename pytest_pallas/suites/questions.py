"""From an item to what fuzzing asks: a function of one drawn example, and the strategy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_pallas.checks.trial import Trial
from pytest_pallas.checks.verdict import ask
from pytest_pallas.options import Options, choose
from pytest_pallas.session import SANITIZERS, current
from pytest_pallas.strategies.arguments import as_arguments
from pytest_pallas.tolerances import dtypes_of, tolerance_for

if TYPE_CHECKING:
    from pytest_pallas.suites.items import SpecItem


def question(item: SpecItem, options: Options, mesh: Any) -> tuple[Callable[[Any], None], Any]:
    """What to ask about each example, and the strategy that draws them.

    Args:
      item: the check of a spec on a backend.
      options: as they hold for the item.
      mesh: the ``jax.sharding.Mesh`` to run on, or None.
    """
    spec, session = item.spec, current(item.config)
    kernel, reference = spec.kernel_for(item.backend.platform), spec.reference
    if mesh is not None:
        kernel = functools.partial(kernel, mesh=mesh)
        reference = functools.partial(reference, mesh=mesh)
    races = "races" in choose(options.sanitize, SANITIZERS, "sanitize")
    marks = list(item.iter_markers("pallas_tolerance"))

    def about(drawn: Any) -> None:
        __tracebackhide__ = True
        arguments = as_arguments(drawn)
        item.tally.begin()
        trial = Trial(
            kernel=kernel,
            reference=reference,
            arguments=arguments,
            backend=item.backend,
            devices=1 if mesh is None else mesh.size,
            exact=spec.exact,
            differentiable=spec.differentiable,
            tolerance=tolerance_for(
                item.config,
                marks,
                spec.tolerance,
                kernel=spec.name,
                check=item.check.name,
                backend=item.backend,
                dtypes=dtypes_of(arguments.args),
            ),
            nan_ok=spec.nan_ok,
            timeout=options.timeout,
            races=races,
            cache=session.cache,
        )
        ask(item.check, trial, spec.name, found=item.tally.add)

    inputs: Any = spec.inputs  # with meshes a function, else a strategy
    strategy = inputs(mesh) if mesh is not None else inputs
    return about, strategy
