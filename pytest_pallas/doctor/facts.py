"""What is installed and set on this machine, as data. Imports nothing that it looks at."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from pytest_pallas.tested import TESTED

#: Packages whose version decides what happens, in the order of the report.
PACKAGES = (
    *("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda13-pjrt", "jax-cuda12-plugin"),
    *("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt"),
    *("pytest", "hypothesis", "pluggy", "numpy", "ml_dtypes", "greenlet"),
)

#: The package that each extra without a backend needs.
EXTRAS: Mapping[str, str] = {
    "report": "jinja2",
    "golden": "safetensors",
    "benchmark": "pytest-benchmark",
    "fleet": "distributed",
    "redis": "redis",
    "jaxtyping": "jaxtyping",
}

#: Environment variables that change what JAX and the compilers do.
_VARIABLES = re.compile(
    r"^(JAX_\w+|XLA_FLAGS|TPU_\w+|LIBTPU_INIT_ARGS|ALLOW_MULTIPLE_LIBTPU_LOAD|CUDA_VISIBLE_DEVICES"
    r"|CUDA_HOME|NVIDIA_VISIBLE_DEVICES|MOSAIC_GPU_\w+|PYTEST_ADDOPTS|HYPOTHESIS_\w+)$"
)


@dataclass(frozen=True)
class Package:
    """A package.

    Attributes:
      name: of its distribution.
      version: the installed one; "" if it is not installed.
      tested: the versions that were tested, in words; "" if there is no record.
      newer: whether it is newer than those.
    """

    name: str
    version: str
    tested: str = ""
    newer: bool = False


@dataclass(frozen=True)
class Extra:
    """An extra of pytest-pallas that no backend needs, and whether its package is installed."""

    name: str
    package: str
    version: str

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'pytest-pallas[{self.name}]'"


@dataclass(frozen=True)
class Machine:
    """What is installed and set.

    Attributes:
      python: its version and implementation.
      system: the operating system, the processor and the number of CPUs.
      packages: those of ``PACKAGES`` that are installed, and that are not.
      plugins: of pytest: name and version.
      extras: of ``EXTRAS``.
      environment: the variables that are set, of those that matter.
    """

    python: Package
    system: str
    packages: tuple[Package, ...]
    plugins: tuple[str, ...]
    extras: tuple[Extra, ...]
    environment: Mapping[str, str]


def machine(plugins: Sequence[tuple[str, str]], environ: Mapping[str, str]) -> Machine:
    """What is installed and set here.

    Args:
      plugins: name and version of the distributions of pytest's plugins.
      environ: the environment.
    """
    cpus = os.cpu_count()
    return Machine(
        python=_package("python", platform.python_version()),
        system=f"{platform.platform()}, {platform.machine()}, {cpus} CPUs",
        packages=tuple(_package(name, _version(name)) for name in PACKAGES),
        plugins=tuple(sorted({f"{name} {version}" for name, version in plugins})),
        extras=tuple(Extra(name, each, _version(each)) for name, each in EXTRAS.items()),
        environment={name: environ[name] for name in sorted(environ) if _VARIABLES.match(name)},
    )


def _package(name: str, version: str) -> Package:
    tested = TESTED.get(name)
    if tested is None:
        return Package(name, version)
    return Package(name, version, str(tested), bool(version) and tested.newer(version))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
