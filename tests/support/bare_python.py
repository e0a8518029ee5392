"""Runs scripts where nothing can be imported but the standard library, jax and numpy.

And this package, which the scripts of simulated failures need: without pytest and hypothesis.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

#: jax, numpy and what they cannot be imported without; folders of libraries included.
PACKAGES = (
    "jax",
    "jaxlib",
    "ml_dtypes",
    "numpy",
    "numpy.libs",
    "opt_einsum",
    "scipy",
    "scipy.libs",
)

#: This package, whose simulator needs what follows.
OWN = Path(__file__).parents[2] / "pytest_pallas"
NEEDED = ("threadpoolctl.py", "greenlet")


@dataclass(frozen=True)
class Ended:
    """How a script ended: its exit status, and what it wrote."""

    status: int
    output: str


def run_bare(
    scripts: Sequence[Path],
    packages: Path,
    environment: Mapping[str, str] | None = None,
    *,
    own: bool = False,
) -> list[Ended]:
    """Run scripts, two at a time.

    Args:
      scripts: the files.
      packages: an empty folder; packages are linked there.
      environment: variables besides the path.
      own: whether this package can be imported.
    """
    installed = Path(jax.__file__).parents[1]
    for name in PACKAGES:
        if (installed / name).exists() and not (packages / name).exists():
            (packages / name).symlink_to(installed / name)
    if own and not (packages / OWN.name).exists():
        (packages / OWN.name).symlink_to(OWN)
        for name in NEEDED:
            (packages / name).symlink_to(installed / name)
    variables = {"PATH": os.defpath, "PYTHONPATH": str(packages), **(environment or {})}
    ended: list[Ended] = []
    for first in range(0, len(scripts), 2):
        started = [
            subprocess.Popen(
                [sys.executable, "-S", str(script)],  # without site-packages
                env=variables,
                cwd=packages,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for script in scripts[first : first + 2]
        ]
        for process in started:
            output, _ = process.communicate(timeout=120)
            ended.append(Ended(process.returncode, output))
    return ended
