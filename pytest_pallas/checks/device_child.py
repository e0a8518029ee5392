"""Run the call in a file written by ``device``: ``python -m ... FILE``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pickle
import sys
import types
from pathlib import Path
from typing import Any


def main(path: str) -> None:
    """Load the call, run it on the first device, and wait for its output."""
    import jax

    from pytest_pallas.backends.protocol import expected_warnings

    module, file, called = pickle.loads(Path(path).read_bytes())
    _find(module, file)
    function, args, options, jit = pickle.loads(called)
    called: Any = functools.partial(function, **options)
    with expected_warnings():
        jax.block_until_ready((jax.jit(called) if jit else called)(*args))


def _find(module: str, file: str) -> None:
    """Import a module from its file if it cannot be imported by name, such as a test module."""
    if not file or module == "__main__":
        return
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        spec = importlib.util.spec_from_file_location(module, file)
        if spec is None or spec.loader is None:
            raise
        for end in range(1, len(parts := module.split("."))):
            package = ".".join(parts[:end])
            sys.modules.setdefault(package, types.ModuleType(package))
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])


if __name__ == "__main__":
    main(sys.argv[1])
