"""Where an answer comes from: the backend, the device, the versions, the kernel's source."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_pallas._version import __version__
from pytest_pallas.backends import Backend, default_target, label
from pytest_pallas.goldens.entry import Origin


def origin_of(backend: Backend, kernel: Callable[..., Any]) -> Origin:
    """Where the answers of a kernel on a backend come from."""
    device, compiler = _device(backend)
    versions = {"jax": metadata.version("jax"), "jaxlib": metadata.version("jaxlib")}
    if compiler:
        versions["compiler"] = compiler
    else:
        versions["pytest-pallas"] = __version__  # it simulates, and mends interpreters
    return Origin(
        backend=label(backend), device=device, versions=versions, source=source_of(kernel)
    )


def source_of(kernel: Callable[..., Any]) -> str:
    """SHA-256 of the file that a kernel is in, or "" if it is in none."""
    while isinstance(kernel, functools.partial):
        kernel = kernel.func
    try:
        path = inspect.getsourcefile(inspect.unwrap(kernel))
        return hashlib.sha256(Path(path or "").read_bytes()).hexdigest()
    except (TypeError, OSError):
        return ""


def _device(backend: Backend) -> tuple[str, str]:
    """The kind of device, and the version of what compiles for it."""
    if backend.kind == "hardware":
        import jax

        device = jax.devices(backend.platform)[0]
        return device.device_kind, " ".join(device.client.platform_version.split())
    target = backend.target or default_target(backend.platform)
    return target.device_kind if target else "cpu", ""
