"""Modules of JAX that warn when they are imported."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def triton(name: str) -> Any:
    """A module of kernels for Triton; all of them are deprecated, in favor of tokamax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(f"jax.experimental.pallas.ops.gpu.{name}")
