"""The spec of a right kernel, from the spec of its wrong twin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pytest_pallas.spec import KernelSpec

#: Where these kernels run: their blocks are small to be quick, and no TPU's compiler takes them.
INTERPRETERS = ("tpu-sim", "interpret", "tpu-interpret")

#: What the name of a right kernel's spec ends with.
RIGHT = "_right"


def twin(spec: KernelSpec, kernel: Callable[..., Any]) -> KernelSpec:
    """The spec for ``kernel``, which is right, called and checked like that of the wrong one."""
    return dataclasses.replace(spec, name=spec.name + RIGHT, kernel=kernel)
