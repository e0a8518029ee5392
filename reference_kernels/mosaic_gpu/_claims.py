"""Where the kernels of Mosaic GPU run: which chips have what they use."""

from __future__ import annotations


def _on(*chips: str) -> tuple[str, ...]:
    simulated = [f"gpu-sim:{chip}" for chip in chips]
    compiled = [f"gpu-compile:{chip}" for chip in chips]
    return (*simulated, "gpu-interpret", *compiled, "gpu")


#: With copies by the TMA.
TMA = _on("h100", "h200", "b200")

#: With products by ``wgmma``, which Blackwell has no more.
WGMMA = _on("h100", "h200")
