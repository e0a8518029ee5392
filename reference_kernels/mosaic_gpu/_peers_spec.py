"""What specs of kernels over several GPUs draw alike."""

from __future__ import annotations

import jax

from reference_kernels.mosaic_gpu._peers import Schedule


def schedules(mesh: jax.sharding.Mesh) -> tuple[Schedule, ...]:
    """Those that a mesh allows."""
    return ("direct", "switch") if mesh.size > 1 and len(mesh.axis_names) == 1 else ("direct",)
