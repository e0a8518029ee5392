"""Write docs/kernels/api.md: every public name of Pallas, and which reference kernel uses it.

uv run python scripts/kernel_api.py
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import jax

sys.path.append(str(Path(__file__).parents[1] / "tests/support"))

HEAD = """# Which kernel uses what

Every public name of `jax.experimental.pallas` (`pl`), `jax.experimental.pallas.tpu` (`pltpu`) and
`jax.experimental.pallas.tpu_sc` (`plsc`) of JAX {version} that is not deprecated, and the modules
of `reference_kernels` whose code uses it; or why none does. Written by `scripts/kernel_api.py`; a
test computes it anew.
"""


def main() -> None:
    """Write the page."""
    import api_coverage

    parts = [HEAD.format(version=jax.__version__)]
    for short, module in api_coverage.MODULES.items():
        names = importlib.import_module(module)
        parts.append(f"## {module}\n\n{api_coverage.table(short, names)}")
    api_coverage.PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
