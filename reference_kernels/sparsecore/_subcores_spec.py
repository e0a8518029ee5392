"""What specs of vector subcores share: where they run, and a mutant that is no mistake."""

from __future__ import annotations

from pytest_pallas.spec import EquivalentMutant

#: The chips with SparseCores; JAX's interpreters have the gap ``SPARSE_CORES``.
BACKENDS = (
    *("tpu-sim:v5p", "tpu-sim:v6e", "tpu-sim:tpu7x"),
    *("tpu-compile:v5p", "tpu-compile:v6e", "tpu-compile:tpu7x", "tpu"),
)

#: Of specs whose kernels call ``clear``.
CLEARED = EquivalentMutant(
    operator="store",
    change="the next slot",
    source="ref[i, pl.ds(j, width)] = zeros",
    reason="every row is cleared, in another order",
)
