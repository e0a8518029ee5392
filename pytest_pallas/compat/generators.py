"""Private names of JAX: the random number generator of a TPU core, which its interpreter has not.

In JAX 0.12.0.1 seeds are ignored there and all bits are zero, and samplers fail.
Here each simulated core has numpy's Philox generator (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC11), keyed by all seeds in their order. The numbers are not those of a chip,
which differ between generations, too; what a kernel may rely on is the same: equal seeds give equal
numbers, other seeds or another order of them others, and each draw goes on where the last ended. A
core that was not seeded begins as if by 0; on a chip it goes on from whatever ran before.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pytest_pallas.compat.equations import Rule, Staged

#: The implementation of the keys that ``pltpu.stateful_uniform`` and its like take, and ignore.
_STATEFUL = "_pallas_internal_stateful"


def generator_rule(eqn: Any) -> Rule | None:
    """The rule for an equation that seeds the generator or draws from it, or None."""
    match eqn.primitive.name:
        case "prng_seed":
            return _seed
        case "prng_random_bits":
            return _bits
        case "random_bits" if _implementation(eqn.invars[0]) == _STATEFUL:
            return _bits
        case _:
            return None


def _seed(staged: Staged, values: Sequence[Any], token: Any) -> tuple[Any, Sequence[Any]]:
    def seed(generators: dict[Any, Any], core: Any, *seeds: Any) -> None:
        generators[core] = _generator(*seeds)

    return _on_core(staged, token, seed, (), *values), []


def _bits(staged: Staged, values: Sequence[Any], token: Any) -> tuple[Any, Sequence[Any]]:
    del values  # A key, which says nothing.
    aval = staged.eqn.outvars[0].aval

    def draw(generators: dict[Any, Any], core: Any) -> Any:
        generator = generators.setdefault(core, _generator(0))
        limits = np.iinfo(aval.dtype)
        return generator.integers(limits.min, limits.max, aval.shape, aval.dtype, endpoint=True)

    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    token, drawn = _on_core(staged, token, draw, (shape,))
    return token, [drawn]


def _on_core(
    staged: Staged, token: Any, function: Callable[..., Any], results: tuple[Any, ...], *args: Any
) -> Any:
    """Stage a call with the generators of all cores and the number of this one."""
    module, ctx = staged.module, staged.ctx

    def call(token: Any, device: Any, core: Any, *args: Any) -> Any:
        memory = module._get_shared_memory()
        with memory.lock:
            if not hasattr(memory, "generators"):
                memory.generators = {}
            got = function(memory.generators, (int(device), int(core)), *args)
        return (token, got) if results else token

    shapes = (module.TOKEN_SHAPE_DTYPE, *results) if results else module.TOKEN_SHAPE_DTYPE
    return module.callback.io_callback(call, shapes, token, ctx.device_id, ctx.local_core_id, *args)


def _generator(*seeds: Any) -> np.random.Generator:
    words = [int(seed) % 2**32 for seed in seeds]
    # With their number: SeedSequence takes [1] and [1, 0] for the same.
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([len(words), *words])))


def _implementation(atom: Any) -> str:
    implementation = getattr(atom.aval.dtype, "_impl", None)
    return getattr(implementation, "name", "")
