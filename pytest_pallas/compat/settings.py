"""Private names of JAX: every setting that a call could leave changed.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.config`` lists what contexts set, too.
Probe: ``tests/unit/isolate/test_leaks.py``.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

#: The values of a setting for the process and for this thread. A thread without one of its own has
#: JAX's value for that.
Setting = tuple[Any, Any]


def jax_settings() -> Mapping[str, Setting]:
    """Everything that ``jax.config`` holds, and what contexts such as ``jax.set_mesh`` set.

    A flag has ``value`` only; other holders have a global value
    and one of the thread, of which contexts set the latter.
    """
    return {
        name: (holder.get_global(), holder.get_local())
        if hasattr(holder, "get_local")
        else (holder.value, None)
        for name, holder in _holders().items()
    }


def set_jax_setting(name: str, setting: Setting) -> None:
    """Set one of ``jax_settings`` to what it was.

    The hooks of a state tell JAX's compiled half.

    Raises:
      Exception: JAX refuses, as for what must be set before its first use.
    """
    holder = _holders()[name]
    shared, local = setting
    if not hasattr(holder, "get_local"):
        holder._set(shared)
        return
    if not _same(holder.get_global(), shared):
        if hasattr(holder, "_set"):
            holder._set(shared)
        else:
            holder.set_global(shared)
    if not _same(holder.get_local(), local):
        holder.set_local(local)
        hook = getattr(holder, "_update_thread_local_hook", None)
        if hook is not None:
            unset = importlib.import_module("jax._src.config").config_ext.unset
            hook(None if local is unset else local)


def jax_setting_in_force(setting: Setting) -> Any:
    """Return the value that holds in this thread."""
    shared, local = setting
    unset = importlib.import_module("jax._src.config").config_ext.unset
    return shared if local is None or local is unset else local


def _holders() -> Mapping[str, Any]:
    import jax

    options: Any = jax.config
    config: Any = importlib.import_module("jax._src.config")
    kind = config.config_ext.Config
    # Contexts such as the mesh in force are no options of jax.config: variables of two modules.
    contexts = {
        name.removesuffix("_context_manager"): holder
        for module in (config, importlib.import_module("jax._src.mesh"))
        for name, holder in vars(module).items()
        if isinstance(holder, kind) and not hasattr(holder, "_set")
    }
    return {**contexts, **options._value_holders}


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and bool(a == b))


class _PluginErrors(logging.Handler):
    """Keeps errors that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        raised = record.exc_info[1] if record.exc_info else None
        self.texts.append(record.getMessage() if raised is None else str(raised))


@contextmanager
def errors_of_plugins() -> Generator[list[str]]:
    """Yield a list that gets the errors of plugins that do not start, which JAX only logs."""
    logger, handler = logging.getLogger("jax._src.xla_bridge"), _PluginErrors()
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)


def has_opened_an_accelerator() -> bool:
    """Return whether JAX has started in this process, and not on the CPU only."""
    if "jax" not in sys.modules:
        return False
    import jax

    if not importlib.import_module("jax._src.xla_bridge").backends_are_initialized():
        return False
    return any(device.platform != "cpu" for device in jax.devices())


# Private names of JAX: the state of its interpreters.
#
# Seen in JAX 0.11.2 and 0.12.0.1. It can go when both have a public reset, which also ends
# the devices that wait. Probe: ``tests/unit/backends/test_interpreters.py``.


def interpreter_modules() -> list[Any]:
    """Return the modules with ``_shared_memory`` of the interpreters that were used."""
    names = (
        "jax._src.pallas.mosaic.interpret.interpret_pallas_call",
        "jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks",
    )
    return [sys.modules[name] for name in names if name in sys.modules]


def interpreters_in_use() -> tuple[str, ...]:
    """Return which interpreters hold memory of a kernel: between two calls, none should."""
    return tuple(
        "the GPU interpreter" if "mosaic_gpu" in module.__name__ else "the TPU interpreter"
        for module in interpreter_modules()
        if getattr(module, "_shared_memory", None) is not None
    )


def reset_interpreters() -> None:
    """Forget the state of the TPU and GPU interpreters, as is due after an exception in them.

    ``reset_gpu_interpret_mode_state`` has no public name.
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
    call the kernel never does.
    """
    for module in interpreter_modules():
        memory = getattr(module, "_shared_memory", None)
        if memory is not None:
            memory.clean_up_barrier.abort()


@contextmanager
def quiet_callbacks() -> Generator[None]:
    """Keep JAX from logging the traceback of a callback that fails: the error itself has it."""
    logger = logging.getLogger("jax._src.callback")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def clear_effect_tokens() -> None:
    """Drop the ordered-effect tokens of this process.

    The interpreters' callbacks are ordered effects. A callback that fails leaves its error in
    the token, and the next kernel, which waits for that token, fails with the previous one's
    error.
    """
    importlib.import_module("jax._src.dispatch").runtime_tokens.clear()
