"""Whether random bits can be what they should be: asked of a generator whose numbers are unknown.

A count S of n independent events of probability p is off by t or more with a probability of at
most ``2 exp(-t^2 / (2 (n p (1 - p) + t / 3)))`` (Bernstein). The bounds here take
``t = L / 3 + sqrt(L^2 / 9 + 2 L n p (1 - p))``, which makes it ``2 exp(-L)``: with L = 21 a right
generator fails once in 600 million.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

_EXPONENT = 21.0


def share(events: Any, probability: float, among: Any) -> Any:
    """Whether as many of ``among`` are events as independent ones would be."""
    n = jnp.sum(among, dtype=jnp.float32)
    found = jnp.sum(events & among, dtype=jnp.float32)
    variance = n * probability * (1 - probability)
    allowed = _EXPONENT / 3 + jnp.sqrt(_EXPONENT**2 / 9 + 2 * _EXPONENT * variance)
    return jnp.abs(found - n * probability) <= allowed


def independent(one: Any, other: Any, probability: float, among: Any) -> Any:
    """Whether two masks, each True with this probability, agree as often as independent ones."""
    return share(one == other, probability**2 + (1 - probability) ** 2, among)


def repeated(one: Any, other: Any) -> Any:
    """Whether two draws of at least 23 bits an element have elements in common.

    Of 4096 such elements, 5 or more are equal by chance once in 10^18 times.
    """
    return jnp.sum(one == other) >= 5
