"""Rules: Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.registry import Equation, Evaluate, rule


@rule("fft")
def _fft(eqn: Equation) -> Evaluate:
    """Over the last axes; scipy's keep float32, as numpy's have done only since version 2."""
    import scipy.fft

    lengths, dtype = tuple(eqn.params["fft_lengths"]), eqn.out.dtype
    kind = eqn.params["fft_type"]
    name = getattr(kind, "name", str(kind)).lower()
    axes = tuple(range(-len(lengths), 0))
    transform = getattr(scipy.fft, f"{name}n")
    if 0 in eqn.ins[0].shape or 0 in eqn.out.shape:
        return lambda x: np.zeros(eqn.out.shape, dtype)

    def evaluate(x: Any) -> Any:
        return transform(x, s=lengths, axes=axes).astype(dtype, copy=False)

    return evaluate
