"""Runs scripts where nothing can be imported but the standard library, jax and numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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


#: Runs scripts that set the same variables before they import jax, which takes longer than all that
#: comes after it: jax is imported once, as the scripts would, and each runs in a fork.
DRIVER = """
import os, runpy, sys, warnings

settings, modules, *paths = sys.argv[1:]
exec(settings)
for module in modules.split():
    __import__(module)
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # there are no threads yet
for path in paths:
    child = os.fork()
    if not child:
        output = os.open(path + ".output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        warnings.resetwarnings()
        sys.argv, sys.path[0] = [path], os.path.dirname(path)
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a script ended: its exit status, and what it wrote."""

    status: int
    output: str


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
        driven = subprocess.run(
            # Without site-packages.
            [sys.executable, "-S", "-c", DRIVER, settings, "jax numpy", *map(str, paths)],
            env=variables,
            cwd=packages,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120 * len(paths),
        )
        assert driven.returncode == 0, driven.stdout
        for path, status in zip(paths, driven.stdout.split(), strict=True):
            output = Path(f"{path}.output")
            ended[path] = Ended(int(status), output.read_text())
            output.unlink()
    return [ended[path] for path in scripts]


def _settings(script: Path) -> Iterator[str]:
    """The statements of a script before it imports jax that are no imports."""
    lines = script.read_text().splitlines()
    for line in lines[lines.index("import os") : lines.index("import jax")]:
        if not line.startswith(("import ", "from ")):
            yield line
