"""The type of what a kernel reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    # JAX annotates the primitives that take references with types of its own that are not public.
    Ref = Any
else:
    #: A reference to memory or to a barrier, or a part of one.
    Ref = jax.Ref
