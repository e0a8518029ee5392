"""The public names of ``pallas_sim``, under the name that they had before it was a package.

They are imported when they are used. New code imports them from ``pallas_sim``; this module stays
for one minor version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pallas_sim

if TYPE_CHECKING:
    from pallas_sim import *  # noqa: F403

__all__: list[str] = dir(pallas_sim)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Return a public name of ``pallas_sim``."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(pallas_sim, name)


def __dir__() -> list[str]:
    return __all__
