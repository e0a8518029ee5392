"""Random bits that are used twice."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from pallas_sim.compat.jaxprs import is_literal
from pytest_pallas.mutation.declaring import operator
from pytest_pallas.mutation.model import Change, EquationSite, Replacement
from pytest_pallas.mutation.rewriting import equations_of


@operator(
    "random",
    mistake="random bits that are used twice",
    before="pltpu.prng_seed(seed, block)",
    after="pltpu.prng_seed(seed, 0)",
)
def randomness(at: EquationSite) -> Iterator[Change]:
    """The same bits for every block, or for two purposes."""
    if at.name == "prng_seed":
        for position, seed in enumerate(at.eqn.invars):
            if not is_literal(seed) and seed.aval.shape == ():
                yield Change(
                    "without one of its numbers",
                    lambda position=position: _zeroed(at, position),
                    part=f"seed {position}",
                )
    elif at.name == "random_fold_in" and at.used():
        key, _ = at.eqn.invars
        yield Change("the key without the number", lambda: Replacement([], [key]))


def _zeroed(at: EquationSite, position: int) -> Replacement:
    operands = list(at.eqn.invars)
    eqns, [operands[position]] = equations_of(
        lambda x: (jnp.zeros_like(x),), [operands[position]], at.eqn
    )
    return Replacement([*eqns, at.eqn.replace(invars=operands)], list(at.eqn.outvars))
