"""Programs of XLA's CPU compiler, kept from run to run: they are most of what the quick tests cost.

JAX has such a cache, but writes its files in place: where a test is killed, half of a file remains,
and each later run warns of it. Here a file appears when it is complete. Its name is JAX's key: a
digest of the program, the options, the devices and the versions of jaxlib and XLA.

They are in pytest's cache: with ``--cache-clear`` or ``-p no:cacheprovider`` each is compiled.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from jax._src.compilation_cache_interface import CacheInterface

#: Programs that no run has used for so many days are deleted.
DAYS = 14


class Programs(CacheInterface):
    """A folder with a file for each program."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """The program with a key, if there is one."""
        try:
            content = (self._path / key).read_bytes()
            os.utime(self._path / key)
        except FileNotFoundError:
            return None
        return content

    def put(self, key: str, value: bytes) -> None:
        """Keep a program. Of two processes that write one, the later replaces the earlier."""
        unfinished = self._path / f"{key}.{os.getpid()}"
        unfinished.write_bytes(value)
        unfinished.replace(self._path / key)

    def delete_unused(self) -> None:
        """Delete what has not been used for days, and what killed processes left."""
        oldest = time.time() - DAYS * 24 * 3600
        for file in self._path.iterdir():
            if file.stat().st_mtime < oldest:
                file.unlink(missing_ok=True)


def keep_programs(folder: Path) -> None:
    """Look for programs in a folder before they are compiled, in this process."""
    import jax
    from jax._src import compilation_cache

    programs = Programs(folder)
    programs.delete_unused()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache._cache = programs
    compilation_cache._cache_initialized = True
