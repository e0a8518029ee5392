"""Private names of JAX: the interpreters."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


def interpreter_modules() -> list[Any]:
    """The modules that hold ``_shared_memory``, of the interpreters that were used so far.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    names = (
        "jax._src.pallas.mosaic.interpret.interpret_pallas_call",
        "jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks",
    )
    return [sys.modules[name] for name in names if name in sys.modules]


def reset_interpreters() -> None:
    """Forget the state of the TPU and GPU interpreters, as is due after an exception in them.

    ``reset_gpu_interpret_mode_state`` has no public name. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    for module in interpreter_modules():
        for name in ("reset_tpu_interpret_mode_state", "reset_gpu_interpret_mode_state"):
            if hasattr(module, name):
                getattr(module, name)()


def fail_interpreters(error: Exception) -> bool:
    """Make every simulated device that waits in an interpreter raise ``error``.

    The interpreters' waits poll ``check_failed``, so this ends a deadlock without killing the
    process. ``top_level=False`` because the caller is none of the simulated devices: it must not
    take a place at their clean-up barrier. True if there was an interpreter to stop.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    stopped = False
    for module in interpreter_modules():
        memory = getattr(module, "_shared_memory", None)
        if memory is not None:
            memory.set_failed(error, top_level=False)
            stopped = True
    return stopped


def release_interpreters() -> None:
    """Let go of devices that have failed and wait at the end for others, which never began.

    After ``fail_interpreters``: a device that failed waits until all have, and one that does not
    call the kernel never does. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    for module in interpreter_modules():
        memory = getattr(module, "_shared_memory", None)
        if memory is not None:
            memory.clean_up_barrier.abort()


@contextmanager
def mended_tpu_interpreter() -> Generator[None]:
    """Let the TPU interpreter run three kinds of kernels that the compiler takes.

    A kernel that is vmapped and has ``dimension_semantics``: the batch is a new leading grid
    dimension, which the user's tuple does not count; the interpreter zips the two and raises. The
    members of a batch are independent, so that dimension is as parallel as the one behind it.

    A kernel with ``input_output_aliases`` whose blocks overhang the array: the interpreter returns
    the aliased output with its padding, and lowering fails.

    A kernel that stores with a mask to a buffer with more rows than columns: the interpreter
    compares rows with the size of every axis, and says that the store is out of bounds.

    Seen in JAX 0.11.2 and 0.12.0.1; does nothing where the lengths and shapes agree.
    """
    import numpy as np

    memory: Any = importlib.import_module(
        "jax._src.pallas.mosaic.interpret.shared_memory"
    ).SharedMemory
    module: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.interpret_pallas_call")
    semantics_of = module._get_parallel_dim_semantics
    interpret, swap = module.interpret_pallas_call, memory.swap_buffer_content

    def masked(
        self: Any, key: Any, where: Any, value: Any, mask: Any, *args: Any, **options: Any
    ) -> tuple[Any, ...]:
        old: Any = None if mask is None else self.mem[key][where]
        if old is None or old.shape != value.shape:
            return swap(self, key, where, value, mask, *args, **options)
        chosen: Any = np.where
        before, *rest = swap(self, key, where, chosen(mask, value, old), None, *args, **options)
        return None if before is None else chosen(mask, before, value), *rest

    def counted(params: Any, dimensions: int) -> tuple[bool, ...]:
        semantics = semantics_of(params, dimensions)
        missing = dimensions - len(semantics)
        return (*([semantics[0]] * missing if semantics else []), *semantics)

    def cropped(*args: Any, out_avals: Any, **params: Any) -> list[Any]:
        outputs = interpret(*args, out_avals=out_avals, **params)
        return [
            output if output.shape == aval.shape else output[tuple(map(slice, aval.shape))]
            for output, aval in zip(outputs, out_avals, strict=True)
        ]

    module._get_parallel_dim_semantics = counted
    module.interpret_pallas_call = cropped
    memory.swap_buffer_content = masked
    try:
        yield
    finally:
        module._get_parallel_dim_semantics = semantics_of
        module.interpret_pallas_call = interpret
        memory.swap_buffer_content = swap


@contextmanager
def printed_races() -> Generator[list[str]]:
    """Collect the races that the interpreters print instead of raising.

    JAX 0.11.2 has no ``on_race`` and prints; 0.12.0.1 raises, and this collects nothing.
    """
    races: list[str] = []

    def collect(*words: object, **options: object) -> None:
        del options
        races.append(" ".join(map(str, words)))

    modules: list[Any] = [
        importlib.import_module(f"jax._src.pallas.{kind}.interpret.race_detection_state")
        for kind in ("mosaic", "mosaic_gpu")
    ]
    for module in modules:
        module.print = collect  # shadows the builtin for that module
    try:
        yield races
    finally:
        for module in modules:
            del module.print


@contextmanager
def quiet_callbacks() -> Generator[None]:
    """Keep JAX from logging the traceback of a callback that fails: the error itself has it.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    logger = logging.getLogger("jax._src.callback")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def quick_callbacks() -> Generator[None]:
    """Hand the TPU interpreter's callbacks numpy arrays as they come from XLA, and not JAX's.

    Each operation of an interpreted kernel is a callback. JAX makes arrays of its own from its
    arguments, and every conversion of one to a number gives up Python's lock, which a simulated
    device that others wait for then has to get back: 400 us a callback instead of 20 on two cores,
    and much more where many devices wait. All other callbacks are left alone, and the one that
    starts the interpreter's threads, which compile.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    import numpy as np

    module: Any = importlib.import_module("jax._src.callback")
    general = module.io_callback_impl

    def direct(*args: Any, callback: Any, **params: Any) -> Any:
        if not _is_of_tpu_interpreter(callback.callback_func):
            return general(*args, callback=callback, **params)
        # Copies, because XLA's memory is only lent.
        return [np.asarray(each) for each in callback(*(np.array(each) for each in args))]

    module.io_callback_impl = direct
    try:
        yield
    finally:
        module.io_callback_impl = general


def _is_of_tpu_interpreter(function: Any) -> bool:
    while hasattr(function, "func"):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    name = getattr(function, "__name__", "")
    return name != "_thread_map_callback" and str(getattr(function, "__module__", "")).startswith(
        ("jax._src.pallas.mosaic.", "pytest_pallas.compat.")
    )


def clear_effect_tokens() -> None:
    """Drop the ordered-effect tokens of this process.

    The interpreters' callbacks are ordered effects. A callback that fails leaves its error in
    the token, and the next kernel, which waits for that token, fails with the previous one's
    error. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    importlib.import_module("jax._src.dispatch").runtime_tokens.clear()


@contextmanager
def memory_filled(value_of: Callable[[Any], Any]) -> Generator[None]:
    """Let the interpreters fill memory that nobody has written with other values.

    All of them, and what pads blocks beyond the edge of an array, ask one function each: the
    portable interpreter ``uninitialized_value``, the others ``get_uninitialized_value``. The
    latter also has a mode ``"zero"``, which is left alone: Mosaic GPU's accumulators start so.

    Args:
      value_of: the value for a dtype; None leaves the interpreter's own.

    Traces made inside are cached by JAX as any other: the caller must be in a context that is
    part of jit's key. Seen in JAX 0.11.2 and 0.12.0.1.
    """
    import jax.numpy as jnp

    portable: Any = importlib.import_module("jax._src.pallas.primitives")
    shared: Any = importlib.import_module("jax._src.pallas.mosaic.interpret.utils")
    semaphore = importlib.import_module("jax._src.pallas.core").SEMAPHORE_INTERPRET_DTYPE
    array_of, scalar_of = portable.uninitialized_value, shared.get_uninitialized_value

    def filled_array(shape: Any, dtype: Any) -> Any:
        # There semaphores are integers of their own kind, which must stay 0.
        value = None if jnp.issubdtype(dtype, semaphore) else value_of(dtype)
        return array_of(shape, dtype) if value is None else jnp.full(shape, value, dtype)

    def filled_scalar(dtype: Any, uninitialized_memory: str) -> Any:
        value = value_of(dtype) if uninitialized_memory == "nan" else None
        return scalar_of(dtype, uninitialized_memory) if value is None else value

    portable.uninitialized_value, shared.get_uninitialized_value = filled_array, filled_scalar
    try:
        yield
    finally:
        portable.uninitialized_value, shared.get_uninitialized_value = array_of, scalar_of
