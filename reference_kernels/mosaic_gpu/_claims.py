"""Where the kernels of Mosaic GPU run: which chips have what they use."""

from __future__ import annotations


def _on(*chips: str) -> tuple[str, ...]:
    simulated = [f"gpu-sim:{chip}" for chip in chips]
    compiled = [f"gpu-compile:{chip}" for chip in chips]
    return (*simulated, *compiled, "gpu")


#: On every GPU, Ampere's included.
ANY = _on("a100", "h100", "h200", "b200")

#: With copies by the TMA.
TMA = _on("h100", "h200", "b200")

#: With products by ``wgmma``, which Blackwell has no more.
WGMMA = _on("h100", "h200")

#: With tensor memory. Other GPUs than Blackwell have none.
BLACKWELL = ("gpu-sim:b200", "gpu-compile:b200", "gpu:b200")
