"""Private names of JAX: what its GPU interpreter refuses without need.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret.jaxpr_interpret"
_HELPERS = "jax._src.pallas.mosaic_gpu.helpers"


@contextmanager
def mended_gpu_interpreter() -> Generator[None]:
    """Let the GPU interpreter run kernels whose grid is scheduled dynamically.

    ``plgpu.dynamic_scheduling_loop`` has two fences in it that JAX writes in PTX, and inline code
    is refused. They order accesses, which an interpreter that does one thing after the other need
    not; other inline code is refused as before.
    """
    jaxprs: Any = importlib.import_module(_INTERPRETER)
    interpreter = jaxprs.JaxprInterpreter
    inline = interpreter._interpret_inline_mgpu_p

    def inlined(self: Any, eqn: Any, token: Any, *rest: Any) -> Any:
        function = eqn.params["mgpu_fn"]
        if function.__module__ == _HELPERS and function.__qualname__.startswith("inline_ptx."):
            return token, []
        return inline(self, eqn, token, *rest)

    interpreter._interpret_inline_mgpu_p = inlined
    try:
        yield
    finally:
        interpreter._interpret_inline_mgpu_p = inline
