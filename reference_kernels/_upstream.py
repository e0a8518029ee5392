"""What JAX cannot do yet, as strict expected failures: the day that it can is noticed."""

from __future__ import annotations

from pytest_pallas.spec import ExpectedFailure

#: ``jax.vmap`` of a ``pallas_call`` with ``dimension_semantics``. The TPU compiler adds the mapped
#: dimension to them; the TPU interpreter does not, and stops at the length of the grid.
VMAP_WITH_SEMANTICS = {
    "tpu-interpret": ExpectedFailure(
        reason="the TPU interpreter does not add a mapped dimension to dimension_semantics",
        jax="0.12.0.1",
        checks=("vmap",),
    )
}
