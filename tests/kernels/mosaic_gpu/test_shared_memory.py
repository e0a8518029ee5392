"""The simulator counts the shared memory of every kernel as JAX's lowering does.

``benchmarks/shared_memory.py`` compares every tuning.
"""

from __future__ import annotations

import pytest
from pallas_test_support.lowered_shared_memory import counted_and_lowered, tunings

from pallas_sim.chips import GPUS
from pytest_pallas import suite
from pytest_pallas.spec import KernelSpec

SPECS = [
    spec
    for spec in suite("reference_kernels").specs()
    if isinstance(spec, KernelSpec) and isinstance(spec.kernel, dict)
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_of_every_kernel(spec: KernelSpec) -> None:
    for call, target in tunings(spec, 3)[-1:]:
        counts, lowered = counted_and_lowered(call, target)
        assert counts == lowered
        assert max(lowered, default=0) <= GPUS[target].shared_per_block
