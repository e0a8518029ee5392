"""What can be asked of a run besides its answer."""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal

from pytest_pallas import compat

#: ``"outputs"``: what each kernel returned. ``"separate"``: nothing, but outputs that are aliased
#: to an input get memory of their own. ``"late"``: nothing, but blocks are fetched just before the
#: body that reads them (interpreters always fetch so). ``"loads"``: what each load and copy read.
#: Only the simulator is asked for the last two.
Probe = Literal["", "outputs", "separate", "late", "loads"]


@contextmanager
def probed(probe: Probe) -> Generator[list[Any]]:
    """Ask the GPU interpreter; the list that this gives is filled when the context ends.

    It holds the parameters of the equation with the outputs, in numpy arrays, for outputs. What is
    traced inside is not mixed up with other traces.
    """
    key = _key()  # always: a context that is made later empties jit's caches
    found: list[Any] = []
    if probe in ("", "late", "loads"):
        yield found
        return
    import jax

    answers: list[Any] = []  # appending is atomic, and the answers come from several threads
    asked = {
        "outputs": lambda: compat.outputs_told(lambda *told: answers.append(told)),
        "separate": compat.separate_aliases,
    }
    with asked[probe](), key(probe):
        yield found
        jax.effects_barrier()
        found += answers


@functools.cache
def _key() -> Any:
    """A context whose value is part of jit's key."""
    import jax

    return jax.make_user_context(default_value="")
