"""Runs scripts where nothing can be imported but the standard library, jax and numpy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax

from pallas_test_support.forked_scripts import Ended, run_forked

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


def run_bare(
    scripts: Sequence[Path],
    packages: Path,
    environment: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Run scripts, each in a process of its own.

    Args:
      scripts: the files.
      packages: an empty folder; packages are linked there.
      environment: variables besides the path.
    """
    installed = Path(jax.__file__).parents[1]
    for name in PACKAGES:
        if (installed / name).exists() and not (packages / name).exists():
            (packages / name).symlink_to(installed / name)
    variables = {"PATH": os.defpath, "PYTHONPATH": str(packages), **(environment or {})}
    alike: dict[str, list[Path]] = {}
    for script in scripts:
        alike.setdefault("\n".join(_settings(script)), []).append(script)
    ended: dict[Path, Ended] = {}
    for settings, paths in alike.items():
        # Without site-packages.
        done = run_forked(
            paths,
            modules="jax numpy",
            environment=variables,
            folder=packages,
            settings=settings,
            flags=["-S"],
        )
        ended.update(zip(paths, done, strict=True))
    return [ended[path] for path in scripts]


def _settings(script: Path) -> Iterator[str]:
    """The statements of a script before it imports jax that are no imports."""
    lines = script.read_text().splitlines()
    for line in lines[lines.index("import os") : lines.index("import jax")]:
        if not line.startswith(("import ", "from ")):
            yield line
