"""Compiled programs take memory maps, of which Linux gives a process 65,530.

Each executable of XLA's CPU compiler takes about five and keeps them. Beyond the limit an
allocation fails inside LLVM, and the process dies of a segmentation fault: after some ten thousand
programs, which is minutes of fuzzing. JAX forgets its programs when it is asked to.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import jax

#: The share of the maps at which programs are forgotten: what is compiled next needs some, and
#: other threads compile too.
SHARE = 0.5

#: Runs between looks at the maps, which take a millisecond for a thousand of them.
EVERY = 32

_MAPS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")


def relieve() -> bool:
    """Forget all compiled programs if they took too many maps; looked at every so many calls.

    Nothing is done where there is no such limit. True if they were forgotten.
    """
    if next(_runs()) % EVERY or not near_limit(_MAPS, _LIMIT):
        return False
    jax.clear_caches()
    return True


def near_limit(maps: Path, limit: Path) -> bool:
    """Whether the process has more than its share of the maps that it may have.

    Args:
      maps: a file with a line a map.
      limit: a file with the number that is allowed.
    """
    try:
        most = int(limit.read_text())
        with maps.open("rb") as lines:
            return sum(1 for _ in lines) > SHARE * most
    except (OSError, ValueError):
        return False  # another system, or one that does not say


@functools.cache
def _runs() -> itertools.count[int]:
    return itertools.count(1)
