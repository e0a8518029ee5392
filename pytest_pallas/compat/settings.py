"""Private names of JAX: every setting that a call could leave changed.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when ``jax.config`` lists what contexts set, too.
Probe: ``tests/unit/isolation/test_leaks.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

#: What a setting was: for the process, and for this thread; the latter as JAX says that there is
#: nothing of its own.
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
    """The value that holds in this thread."""
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
