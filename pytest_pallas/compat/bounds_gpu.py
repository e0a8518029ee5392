"""Private names of JAX: what the GPU interpreter says of accesses out of bounds.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

_OUT_OF_BOUNDS = re.compile(
    r"Out-of-bounds (?P<what>read|write|store|swap|masked swap) of (?P<buffer>\(.*?\)|\w+\(.*?\)): "
    r"(?P<rest>.*)$",
    re.DOTALL,
)
_BUFFER = re.compile(r"memory_space_id=(?P<space>\d+)")
_ACCESS = re.compile(r"Access\(range=\((.*?)\), permutation=[^)]*\)")
#: A slice in a message, of which the ends are told.
_SLICE = re.compile(r"slice\((?:np\.\w+\()?(-?\d+)\)?, (?:np\.\w+\()?(-?\d+)\)?, [^)]*\)")


def _named(error: Exception, place: str) -> Exception:
    """An error about bounds that says what the kernel calls things, or the error as it is."""
    found = _OUT_OF_BOUNDS.match(str(error))
    if found is None:
        return error
    buffer, rest = _BUFFER.search(found["buffer"]), found["rest"]
    name = "" if buffer is None else gpu_ref(int(buffer["space"]))
    at = f" at {place}" if place else ""
    rest = _SLICE.sub(r"\1:\2", _ACCESS.sub(r"(\1)", rest))
    rest = rest.replace("[(", "[").replace(",)]", "]").replace(")]", "]")
    rest = rest.replace("swapping", "writing")
    what = found["what"].replace("swap", "write")
    return IndexError(f"Out-of-bounds {what} of {name or 'a ref'}{at}: {rest.rstrip(' .')}")


def gpu_ref(space: int) -> str:
    """What is known of a buffer of the GPU interpreter: ``a ref in SMEM``, or "" of another."""
    memory: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.interpret.shared_memory")
    names = {number: known.name for known, number in memory.IDX_BY_GPU_MEMORY_SPACE.items()}
    return f"a ref in {names[space]}" if space in names else ""


@contextmanager
def gpu_bounds_named() -> Generator[None]:
    """Let the GPU interpreter say at which line of the kernel an access is out of bounds."""
    module: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")
    sources: Any = importlib.import_module("jax._src.source_info_util")

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def naming(*args: Any, source_info: Any = None, **options: Any) -> Any:
            try:
                return function(*args, source_info=source_info, **options)
            except (IndexError, ValueError) as error:
                place = "" if source_info is None else sources.summarize(source_info)
                new = _named(error, place)
                if new is error:
                    raise
                raise new from error

        return naming

    with ExitStack() as stack:
        for name in ("_get", "_swap"):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, named(getattr(module, name)))
        yield
