"""Write docs/kernels/performance.md: the table of benchmarks/tpu_cost.py, with what it means.

uv run python scripts/performance_page.py

Compiles every kernel that is compared for three chips: a quarter of an hour. Needs libtpu.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/kernels/performance.md"

HEAD = """# Machine code beside that of the kernels bundled with JAX

`benchmarks/tpu_cost.py` compiles our kernels and those of `jax.experimental.pallas.ops.tpu` for the
same chips, shapes, dtypes and block sizes in one run, and divides: below 1.00 ours is better.

- `step`: bundles of a round of the grid's loop by unit of work, loops inside of it as often as they
  run. What a chip does most of its time. A block under `pl.when` counts in each round, taken or
  not: who has less code there looks better than it runs, by as much as that code is of the round.
- `code`: bundles of the whole kernel, each once.
- `spilled`: registers that spills store in a round, by unit of work, ours / theirs.
- `spills`: those of the whole code, each once. Under a causal mask our attention has two versions
  of a block in its code, with a mask and without; a round runs one of them, and is half of the
  work that the row counts.
- `VMEM`: bytes allocated at once.
- `mxu`: of ours, the share of the bundles of a round in which the matrix unit is in use; `window`
  the same from the first to the last bundle that uses it.

A row without ratios has nobody to compare with: it shows bundles and bytes. A bundle is one VLIW
instruction word: code, not time. DMAs are not in it, and nothing here was run on a TPU. What a row
compares in detail is said in its module in `benchmarks/tpu_comparisons`.

The last table has the kernels over several devices; it is the same for all chips, ours / theirs:

- `wire`: bytes that a device sends to others, counted in the traced program: copies with a device
  id, times the rounds of the loops around them; where copies are under conditions, or as long as
  is known at run time only, by the formula in the row's module.
- `least`: the fewest with which it can be done, and `ratio` the one by the other.
- `steps`: messages that are sent one after another, because each waits for one that comes in.

JAX {jax}, libtpu {libtpu}:

"""


def main() -> None:
    """Write the page."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/tpu_cost.py"), "--markdown"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    head = HEAD.format(jax=metadata.version("jax"), libtpu=metadata.version("libtpu"))
    PAGE.write_text(head + done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
