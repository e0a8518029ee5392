"""Cache keys from the contents of arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.backends.tracing import identity


def digest(tree: Any) -> Hashable:
    """A key that is equal for pytrees of equal arrays; other leaves are compared directly."""
    leaves, structure = jax.tree.flatten(tree)
    parts: list[Hashable] = [structure]
    for leaf in leaves:
        if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
            content = np.ascontiguousarray(to_numpy(leaf)).tobytes()
            parts.append(
                (leaf.shape, str(leaf.dtype), hashlib.blake2b(content, digest_size=16).digest())
            )
        else:
            parts.append(identity(leaf))
    return tuple(parts)
