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

Every public name of `jax.experimental.pallas` (`pl`), `jax.experimental.pallas.tpu` (`pltpu`),
`jax.experimental.pallas.tpu_sc` (`plsc`) and `jax.experimental.pallas.mosaic_gpu` (`plgpu`) of JAX
{version} that is not deprecated, and the modules of `reference_kernels` whose code uses it; or why
none does. Written by `scripts/kernel_api.py`; a test computes it anew.

There are {names} names. {outside} are not for kernels, but for who runs, compiles or embeds them.
Of the other {inside}, {used} are used, {share:.1%}.
"""


def main() -> None:
    """Write the page."""
    from pallas_test_support import api_coverage

    names, inside, used = api_coverage.share()
    parts = [
        HEAD.format(
            version=jax.__version__,
            names=names,
            outside=names - inside,
            inside=inside,
            used=used,
            share=used / inside,
        )
    ]
    for short, module in api_coverage.MODULES.items():
        table = api_coverage.table(short, importlib.import_module(module))
        parts.append(f"## {module}\n\n{table}")
    api_coverage.PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
