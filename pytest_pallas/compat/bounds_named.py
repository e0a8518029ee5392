"""Private names of JAX: what the TPU and GPU interpreters say of accesses out of bounds.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

_OUT_OF_BOUNDS = re.compile(
    r"Out-of-bounds (?P<what>read|write|store|swap|masked swap) of (?P<buffer>\(.*?\)|\w+\(.*?\)): "
    r"(?P<rest>.*)$",
    re.DOTALL,
)
_TPU_BUFFER = re.compile(r"\d+ \d+ (?P<space>\w+) (?P<number>\d+)")
_GPU_BUFFER = re.compile(r"memory_space_id=(?P<space>\d+)")
_ACCESS = re.compile(r"Access\(range=\((.*?)\), permutation=[^)]*\)")
#: A slice in a message, of which the ends are told.
SLICE = re.compile(r"slice\((?:np\.\w+\()?(-?\d+)\)?, (?:np\.\w+\()?(-?\d+)\)?, [^)]*\)")


@contextmanager
def bounds_named(
    buffers: Mapping[tuple[str, int], str], place: str, point: tuple[int, ...] = ()
) -> Generator[None]:
    """Let an interpreter's error about bounds, raised inside, say what the kernel calls things.

    Args:
      buffers: the kernel's names, by memory space and number.
      place: ``file:line (function)`` of the access, or "".
      point: the program's coordinates in the grid, if they are known.

    Raises:
      IndexError: in place of the error, such as "Out-of-bounds read of x_ref at FILE:LINE: ...".
    """
    try:
        yield
    except (IndexError, ValueError) as error:
        found = _OUT_OF_BOUNDS.match(str(error))
        if found is None:
            raise
        name, rest = _name(found["buffer"], buffers), found["rest"]
        at = f" at {place}" if place else ""
        at += f" in program {point}" if point else ""
        rest = SLICE.sub(r"\1:\2", _ACCESS.sub(r"(\1)", rest))
        rest = (
            rest.replace("[(", "[")
            .replace(",)]", "]")
            .replace(")]", "]")
            .replace("swapping", "writing")
        )
        what = found["what"].replace("swap", "write")
        text = f"Out-of-bounds {what} of {name or 'a ref'}{at}: {rest.rstrip(' .')}"
        raise IndexError(text) from error


def _name(buffer: str, buffers: Mapping[tuple[str, int], str]) -> str:
    """The kernel's name for a buffer, or where it is."""
    found = _TPU_BUFFER.search(buffer)
    if found is not None:
        return buffers.get((found["space"], int(found["number"])), "")
    found = _GPU_BUFFER.search(buffer)
    if found is None:
        return ""
    return gpu_ref(int(found["space"]))


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
                with bounds_named({}, place):
                    raise error

        return naming

    with ExitStack() as stack:
        for name in ("_get", "_swap"):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, named(getattr(module, name)))
        yield
