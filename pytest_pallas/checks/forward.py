"""``forward``: the kernel's answer against the oracle."""

from __future__ import annotations

import jax
import numpy as np

from pytest_pallas.checks.check import Program
from pytest_pallas.checks.trial import Finding, Trial, expect, judge, run
from pytest_pallas.numerics import is_float, wide

#: Integers up to this size count as small: the product of two is exact in bfloat16, and a sum of
#: 2**15 such products is exact in float32.
SMALL = 16


def forward(trial: Trial) -> Finding:
    """Run the kernel once and judge every output."""
    expected = expect(trial)
    outcome = run(trial, trial.kernel, trial.arguments.args)
    exact = trial.exact and _small_integers(trial)
    comparisons = judge(trial, outcome.values, expected, exact=exact)
    return Finding(
        comparisons=comparisons, outcome=outcome, seconds=outcome.seconds, notes=outcome.notes
    )


def program(trial: Trial) -> Program:
    """What a compiling backend compiles."""
    return trial.kernel, trial.arguments.args


def _small_integers(trial: Trial) -> bool:
    """Whether every float input holds small integers only."""
    for leaf in jax.tree.leaves(trial.arguments.args):
        if hasattr(leaf, "dtype") and is_float(leaf.dtype):
            values = wide(np.asarray(leaf))
            if not (np.abs(values) <= SMALL).all() or (values != np.rint(values)).any():
                return False
    return True
