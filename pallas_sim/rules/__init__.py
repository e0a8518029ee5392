"""The rules, by group. Importing this package registers them.

Kernels for TPUs need no rule of Mosaic GPU or Triton, and these import the whole simulated GPU.
They are registered when a primitive has no other rule.
"""

from __future__ import annotations

import importlib
import pkgutil

from pallas_sim.registry import defer_rules

_OF_GPUS = (f"{__name__}.mosaic_", f"{__name__}.triton")

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    if _module.name.startswith(_OF_GPUS):
        defer_rules(_module.name)
    else:
        importlib.import_module(_module.name)
