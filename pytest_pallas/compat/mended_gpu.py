"""Private names of JAX: what its GPU interpreter refuses or warns of without need.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret.jaxpr_interpret"
_CALLBACKS = "jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks"
_HELPERS = "jax._src.pallas.mosaic_gpu.helpers"


@contextmanager
def mended_gpu_interpreter() -> Generator[None]:
    """Let the GPU interpreter run kernels whose grid is scheduled dynamically.

    ``plgpu.dynamic_scheduling_loop`` has two fences in it that JAX writes in PTX, and inline code
    is refused. They order accesses, which an interpreter that does one thing after the other need
    not; other inline code is refused as before. Products of infinities and NaN are those of the
    hardware: without a warning of numpy, which is an error where warnings are.
    """
    jaxprs: Any = importlib.import_module(_INTERPRETER)
    interpreter = jaxprs.JaxprInterpreter
    inline = interpreter._interpret_inline_mgpu_p

    def inlined(self: Any, eqn: Any, token: Any, *rest: Any) -> Any:
        function = eqn.params["mgpu_fn"]
        if function.__module__ == _HELPERS and function.__qualname__.startswith("inline_ptx."):
            return token, []
        return inline(self, eqn, token, *rest)

    callbacks: Any = importlib.import_module(_CALLBACKS)
    products = {name: getattr(callbacks, name) for name in ("wgmma", "tcgen05_mma")}
    interpreter._interpret_inline_mgpu_p = inlined
    for name, product in products.items():
        setattr(callbacks, name, _without_warnings(product))
    try:
        yield
    finally:
        interpreter._interpret_inline_mgpu_p = inline
        for name, product in products.items():
            setattr(callbacks, name, product)


def _without_warnings(function: Callable[..., Any]) -> Callable[..., Any]:
    import numpy as np

    @functools.wraps(function)
    def quiet(*args: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **options)

    return quiet
